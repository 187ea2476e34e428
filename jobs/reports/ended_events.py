"""Ends of attempts and jobs, read from the event log: every end is one event."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models.functions import Coalesce

from jobs.domain.states import FINAL_JOB_STATES, JOB_MOVES, JobState
from jobs.models import Attempt, Event, Job
from jobs.reports.rollups import EndedEvent

CURSOR = "rollups.cursor"
"""No sweep, but a line in their table: how far `rollups` has come in the event log."""
CLOSE = sorted(
    {move.event for move in JOB_MOVES if move.target in FINAL_JOB_STATES or move.source is JobState.RUNNING}
)
"""Types of events that end an attempt or a job."""
_FINAL = frozenset(state.value for state in FINAL_JOB_STATES)


@dataclass(frozen=True, slots=True)
class _JobRounds:
    """A job and its rounds. retried: (event number, time) of each retry by an operator."""

    model: str
    tenant_id: int
    created_at: datetime
    retried: Sequence[tuple[int, datetime]]
    attempts: Sequence[tuple[int, int, datetime, float | None, str]]

    def end_of(self, seq: int, kind: str, at: datetime, data: dict[str, Any]) -> EndedEvent:
        number = data.get("attempt")
        mine = next((attempt for attempt in self.attempts if attempt[0] == number), None)
        held, ended = (mine[3], mine[4] or "completed") if mine else (None, None)
        if kind not in _FINAL:
            return EndedEvent(
                at, self.model, self.tenant_id, gpu_seconds=held or 0.0, attempt=ended, then=kind
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
        )


def ended_between(after: int, until: int, limit: int) -> tuple[list[EndedEvent], int]:
    """Return at most `limit` ends among the events numbered after < id <= until, in order, and the last
    number that was read. A job that retention removed meanwhile is left out. Four queries.

    A round begins when it is accepted: by the submit (of a job for later: when its time comes), or by the
    operator who retried the dead letter."""
    rows = Event.objects.filter(id__gt=after, id__lte=until, type__in=CLOSE).order_by("id")
    events = list(rows.values_list("id", "job_id", "seq", "type", "at", "data")[:limit])
    last = events[-1][0] if len(events) == limit else until
    stories = _rounds_of({job_id for _, job_id, *_ in events})
    found = [
        stories[job_id].end_of(seq, kind, at, data)
        for _, job_id, seq, kind, at, data in events
        if job_id in stories
    ]
    return found, last


def _rounds_of(ids: set[str]) -> dict[str, _JobRounds]:
    jobs = list(
        Job.objects.filter(id__in=ids).values_list(
            "id", "model", "tenant_id", Coalesce("run_at", "created_at"), "round"
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
        job_id: _JobRounds(model, tenant, created, retried[job_id], attempts[job_id])
        for job_id, model, tenant, created, _ in jobs
    }
