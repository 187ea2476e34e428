"""The latest attempts of one server, and their failures by cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models.functions import Left

from jobs.domain.states import AttemptState
from jobs.models import Attempt

MAX_RUNS = 500
MAX_DAY_RUNS = 4800
"""Runs of a day that a page shows, the same number of each slot."""
MAX_LANES = 16
"""Slots whose runs a page shows, from slot 0 on."""
_ENOUGH_RUNS = 20
_MESSAGE_CHARS = 300
_WINDOWS = (timedelta(hours=1), timedelta(days=7))
_FEWEST_SLOTS = 16
"""Slots that are read at least: a slot that was removed has attempts too."""


@dataclass(frozen=True, slots=True)
class Run:
    """An attempt, without its job's fields. message: the beginning of its error message."""

    id: str
    job_id: str
    number: int
    slot: int
    model: str
    state: str
    error_code: str
    started_at: datetime
    finished_at: datetime | None
    message: str

    @property
    def seconds(self) -> float | None:
        """How long it ran; None while it runs."""
        return None if self.finished_at is None else (self.finished_at - self.started_at).total_seconds()

    @property
    def summary(self) -> str:
        """The first line of the message: a traceback follows it."""
        return self.message.partition("\n")[0]

    @property
    def has_failed(self) -> bool:
        return self.state in (AttemptState.FAILED.value, AttemptState.LOST.value)


_BRIEF = tuple(name for name in Run.__dataclass_fields__ if name != "message")


@dataclass(frozen=True, slots=True)
class Cause:
    """Failed attempts with one error code. last: the latest of them."""

    error_code: str
    count: int
    last: Run


def latest_runs(server: str, slots: int, now: datetime) -> list[Run]:
    """Return the server's latest attempts, newest first: those of the last hour, or of the last week if they
    are fewer than 20, at most `MAX_RUNS`. slots: the server's number of slots."""
    of_server = Attempt.objects.filter(server=server, slot__in=range(max(slots, _FEWEST_SLOTS)))
    found: list[Run] = []
    for window in _WINDOWS:  # a server that is so idle has few attempts in a week
        rows = of_server.filter(started_at__gte=now - window).order_by("-started_at", "-id")
        found = [
            Run(**row)
            for row in rows.annotate(message=Left("error_message", _MESSAGE_CHARS)).values(
                *(name for name in Run.__dataclass_fields__)
            )[:MAX_RUNS]
        ]
        if len(found) >= _ENOUGH_RUNS:
            break
    return found


@dataclass(frozen=True, slots=True)
class DayRuns:
    """The runs of a server's last day, newest first per slot. since: before that time some are missing; None:
    all are there."""

    runs: list[Run]
    since: datetime | None


def runs_of_day(server: str, slots: int, now: datetime) -> DayRuns:
    """Return the runs of the last day, without messages: at most `MAX_DAY_RUNS`, of `MAX_LANES` slots.

    One query per slot, because only a slot's runs are read in the order of an index.
    """
    lanes = min(max(slots, 1), MAX_LANES)
    most = MAX_DAY_RUNS // lanes
    runs, since = list[Run](), list[datetime]()
    for slot in range(lanes):
        rows = Attempt.objects.filter(server=server, slot=slot, started_at__gte=now - timedelta(days=1))
        found = [Run(**{**row, "message": ""}) for row in rows.order_by("-started_at").values(*_BRIEF)[:most]]
        if len(found) == most:
            since.append(found[-1].started_at)
        runs += found
    return DayRuns(runs, max(since, default=None))


def failures_by_cause(runs: Sequence[Run]) -> list[Cause]:
    """Return the failed and lost attempts by error code, the most frequent first. runs: newest first."""
    by_code: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.has_failed:
            by_code[run.error_code].append(run)
    causes = [Cause(code, len(failed), failed[0]) for code, failed in by_code.items()]
    return sorted(causes, key=lambda cause: (-cause.count, cause.error_code))
