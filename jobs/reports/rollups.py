"""The arithmetic of rollups (time spans, and histograms with addable buckets), and the reader of ended
attempts and jobs from the event log, where every end is one event."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.db.models.functions import Coalesce

from jobs.domain.states import FINAL_JOB_STATES, JOB_MOVES, JobState
from jobs.models import Attempt, Event, Job

BOUNDS_SECONDS = (
    0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0,
    120.0, 180.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0, 43200.0, 86400.0,
)  # fmt: skip
"""Upper bounds of the buckets, inclusive (Prometheus' ``le``); one more bucket holds longer times. Their
number must not change: `sum_of_buckets` raises for stored histograms of another length."""

MINUTE, TEN_MINUTES, HOUR, DAY = 60, 600, 3600, 86400
EVER = 0
"""Span of the rows with the totals since the installation, for /metrics."""
BEGINNING = datetime.fromtimestamp(0, UTC)
"""Start of the span `EVER`."""
KEPT_SECONDS = {MINUTE: 2 * 3600, TEN_MINUTES: 26 * 3600, HOUR: 8 * 86400}
"""Retention by span, in seconds: minutes for charts of an hour, ten minutes for a day, hours for a week, each
with a margin. Each end is summed up in every span. Hours that are past it become days (UTC), which are kept
for `DISPATCHER_USAGE_DAYS`."""

Counts = Sequence[int]
"""A histogram: counts per bucket; empty: no values."""


@dataclass(frozen=True, slots=True)
class EndedEvent:
    """The end of a job, an attempt, or both, by one event.

    outcome: final state of the job; None: the job did not end. wait_seconds, run_seconds: of the job; None:
    it never ran. attempt: ``completed`` or the attempt's error code; None: no attempt ended. gpu_seconds: of
    the attempt. then: type of the event, which says what followed for the job. tags: of the job.
    """

    at: datetime
    model: str
    tenant_id: int
    outcome: str | None = None
    gpu_seconds: float = 0.0
    wait_seconds: float | None = None
    run_seconds: float | None = None
    attempt: str | None = None
    then: str = ""
    tags: tuple[str, ...] = ()


@dataclass(slots=True)
class Sums:
    """The sums in one `Rollup` row. waits, runs: histograms."""

    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    gpu_seconds: float = 0.0
    waits: Counts = field(default_factory=list)
    runs: Counts = field(default_factory=list)

    def add(self, other: Sums) -> None:
        self.completed += other.completed
        self.failed += other.failed
        self.cancelled += other.cancelled
        self.gpu_seconds += other.gpu_seconds
        self.waits = sum_of_buckets(self.waits, other.waits)
        self.runs = sum_of_buckets(self.runs, other.runs)


Key = tuple[datetime, str, int]
"""(start of the span, model, tenant id)."""


def sum_up(ended: Iterable[EndedEvent], span_seconds: int = MINUTE) -> dict[Key, Sums]:
    """Sum up ends by span, model and tenant."""
    found: dict[Key, Sums] = {}
    for one_end in ended:
        one = Sums(
            completed=int(one_end.outcome == "completed"),
            failed=int(one_end.outcome == "failed"),
            cancelled=int(one_end.outcome == "cancelled"),
            gpu_seconds=one_end.gpu_seconds,
            waits=counted(one_end.wait_seconds),
            runs=counted(one_end.run_seconds),
        )
        found.setdefault(
            (span_begin(one_end.at, span_seconds), one_end.model, one_end.tenant_id), Sums()
        ).add(one)
    return found


def span_begin(at: datetime, span_seconds: int) -> datetime:
    """Return the start of the span around `at`; spans start at multiples of their length since the epoch."""
    if span_seconds == EVER:
        return BEGINNING
    return datetime.fromtimestamp(at.timestamp() // span_seconds * span_seconds, UTC)


def day_of(now: datetime) -> datetime:
    """Return the start of the UTC day."""
    return now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def counted(seconds: float | None) -> list[int]:
    """Return the histogram of one value; None: an empty one. A negative value, from a clock that was set
    back, counts in the first bucket."""
    if seconds is None:
        return []
    counts = [0] * (len(BOUNDS_SECONDS) + 1)
    counts[bisect_left(BOUNDS_SECONDS, seconds)] = 1
    return counts


def sum_of_buckets(one: Counts, other: Counts) -> list[int]:
    """Return the sum of two histograms. Raises ValueError for different lengths."""
    if not one or not other:
        return list(one or other)
    return [a + b for a, b in zip(one, other, strict=True)]


def percentile(counts: Counts, share: float) -> float | None:
    """Return the seconds below which this share (0..1) of the values lies, by linear interpolation in the
    bucket; None without values, at most the last bound."""
    total = sum(counts)
    if not total:
        return None
    left = share * total
    for place, count in enumerate(counts[: len(BOUNDS_SECONDS)]):
        if count and left <= count:
            low = BOUNDS_SECONDS[place - 1] if place else 0.0
            return low + (BOUNDS_SECONDS[place] - low) * max(left, 0.0) / count
        left -= count
    return BOUNDS_SECONDS[-1]


# -- ends, from the event log -----------------------------------------------------------------------

CURSOR = "rollups.cursor"
"""Name of the `SweepRun` row that holds the last summed-up event; it is no sweep."""
CLOSE = sorted(
    {move.event for move in JOB_MOVES if move.target in FINAL_JOB_STATES or move.source is JobState.RUNNING}
)
"""Types of events that end an attempt or a job."""
_FINAL = frozenset(state.value for state in FINAL_JOB_STATES)


@dataclass(frozen=True, slots=True)
class _JobRounds:
    """A job with its rounds. created_at: `run_at` or time of submit. retried: (event number, time) of each
    retry by an operator. attempts: (number, round, started_at, gpu_seconds, error_code)."""

    model: str
    tenant_id: int
    tags: tuple[str, ...]
    created_at: datetime
    retried: Sequence[tuple[int, datetime]]
    attempts: Sequence[tuple[int, int, datetime, float | None, str]]

    def end_of(self, seq: int, kind: str, at: datetime, data: dict[str, Any]) -> EndedEvent:
        """Return the end that an event of this job describes. kind: type of the event."""
        number = data.get("attempt")
        mine = next((attempt for attempt in self.attempts if attempt[0] == number), None)
        held, ended = (mine[3], mine[4] or "completed") if mine else (None, None)
        if kind not in _FINAL:
            return EndedEvent(
                at,
                self.model,
                self.tenant_id,
                gpu_seconds=held or 0.0,
                attempt=ended,
                then=kind,
                tags=self.tags,
            )
        place = bisect_left(self.retried, seq, key=lambda one: one[0])
        accepted = self.retried[place - 1][1] if place else self.created_at
        begun = min((start for _, round_, start, *_ in self.attempts if round_ == place + 1), default=None)
        return EndedEvent(
            at,
            self.model,
            self.tenant_id,
            outcome=kind,
            gpu_seconds=held or 0.0,
            wait_seconds=(begun - accepted).total_seconds() if begun else None,
            run_seconds=(at - begun).total_seconds() if begun else None,
            attempt=ended,
            then=kind,
            tags=self.tags,
        )


def ended_between(after: int, until: int, limit: int) -> tuple[list[EndedEvent], int]:
    """Return at most `limit` ends among the events with after < id <= until, in order, and the last id read.

    Jobs that retention deleted meanwhile are left out. A round starts with the submit (or `run_at`), or with
    an operator's retry of the dead letter. Four queries.
    """
    rows = Event.objects.filter(id__gt=after, id__lte=until, type__in=CLOSE).order_by("id")
    events = list(rows.values_list("id", "job_id", "seq", "type", "at", "data")[:limit])
    last = events[-1][0] if len(events) == limit else until
    rounds = _rounds_of({job_id for _, job_id, *_ in events})
    found = [
        rounds[job_id].end_of(seq, kind, at, data)
        for _, job_id, seq, kind, at, data in events
        if job_id in rounds
    ]
    return found, last


def _rounds_of(ids: set[str]) -> dict[str, _JobRounds]:
    jobs = list(
        Job.objects.filter(id__in=ids).values_list(
            "id", "model", "tenant_id", "tags", Coalesce("run_at", "created_at"), "round"
        )
    )
    attempts: dict[str, list[tuple[int, int, datetime, float | None, str]]] = defaultdict(list)
    tried = Attempt.objects.filter(job_id__in=ids).order_by()
    fields = ("job_id", "number", "round", "started_at", "gpu_seconds", "error_code")
    for job_id, *attempt in tried.values_list(*fields):
        attempts[job_id].append(tuple(attempt))
    retried: dict[str, list[tuple[int, datetime]]] = defaultdict(list)
    again = [job_id for job_id, *_, round_ in jobs if round_ > 1]
    if again:
        rows = Event.objects.filter(job_id__in=again, type="retried").order_by("job_id", "seq")
        for job_id, seq, at in rows.values_list("job_id", "seq", "at"):
            retried[job_id].append((seq, at))
    return {
        job_id: _JobRounds(model, tenant, tuple(tags), created, retried[job_id], attempts[job_id])
        for job_id, model, tenant, tags, created, _ in jobs
    }
