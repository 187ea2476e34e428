"""The waiting firings of a schedule, and the runs that they wait for. While the first run of a backfill waits
for an answer, the backfill starts no other run; only this report shows why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Min, Q

from foundation.texts import counted
from workflows.domain.plan import NodeKind
from workflows.models import Wait
from workflows.schedules.domain.policy import Outcome
from workflows.schedules.execution.fire import is_paused, unended_of
from workflows.schedules.models import NO_BACKFILL, Firing, Schedule

MAX_NAMED = 5
"""Firings under way, and nodes that wait, that a backlog names."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Firings that wait for each other. waiting: number of firings. first_due_at: due time of the next one.
    running: firings that the next one waits for, at most `MAX_NAMED`; empty: it is about to start. message:
    for people."""

    waiting: int
    first_due_at: datetime
    running: Sequence[Firing]
    message: str


@dataclass(frozen=True, slots=True)
class Backlog:
    """Waiting firings by the timetable, and of backfills; None: none waits."""

    own: Lane | None = None
    backfills: Lane | None = None

    @property
    def messages(self) -> list[str]:
        return [lane.message for lane in (self.own, self.backfills) if lane is not None]


def backlog_of(schedule: Schedule, now: datetime) -> Backlog:
    """Read what waits: two queries, and some more if anything does."""
    rows = Firing.objects.filter(schedule=schedule, outcome=Outcome.WAITING.value).order_by()
    is_own = Q(backfill=NO_BACKFILL)
    found = rows.aggregate(
        own=Count("pk", filter=is_own),
        own_first=Min("due_at", filter=is_own),
        backfills=Count("pk", filter=~is_own),
        backfills_first=Min("due_at", filter=~is_own),
    )
    if not found["own"] and not found["backfills"]:
        return Backlog()
    unended = unended_of([schedule.pk]).get(schedule.pk)
    running, of_backfills = (unended.running, unended.backfilled) if unended else ((), ())
    own = backfills = None
    if found["own"]:
        what = f"{counted(found['own'], 'firing')} by the timetable"
        text = _for(running) or ("until the schedule is resumed" if is_paused(schedule, now) else _SOON)
        own = Lane(found["own"], found["own_first"], running[:MAX_NAMED], _sentence(what, found["own"], text))
    if found["backfills"]:
        what = f"{counted(found['backfills'], 'firing')} of a backfill"
        text = _for(of_backfills) or _SOON
        hint = "; a backfill with `parallel` does not wait for its earlier ones" if of_backfills else ""
        backfills = Lane(
            found["backfills"],
            found["backfills_first"],
            of_backfills[:MAX_NAMED],
            _sentence(what, found["backfills"], text) + hint,
        )
    return Backlog(own, backfills)


_SOON = "to start within seconds, or once a limit lets them"


def _sentence(what: str, count: int, text: str) -> str:
    return f"{what} {'waits' if count == 1 else 'wait'} {text}"


def _for(running: Sequence[Firing]) -> str:
    """Return what firings wait for: ``for run 01K…, which waits for an answer: best``."""
    if not running:
        return ""
    first = running[0]
    what = f"for the end of {f'run {first.run_id}' if first.run_id else f'job {first.job_id}'}"
    if first.run_id:
        waits = Wait.objects.filter(
            node__run=first.run_id,
            answered_at=None,
            kind__in=(NodeKind.HUMAN.value, NodeKind.SIGNAL.value),
        )
        keys = list(waits.order_by("node_id").values_list("node__key", flat=True)[:MAX_NAMED])
        if keys:
            what += f", which waits for an answer or a signal: {', '.join(keys)}"
    return what + (f" (and {len(running) - 1} more)" if len(running) > 1 else "")
