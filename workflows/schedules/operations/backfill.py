"""Fires the due times of a past span, and cancels such backfills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.conf import settings
from django.db import transaction
from django.db.models import F

from foundation.database import statements
from foundation.database.row_limits import free_places
from foundation.ids import new_id
from jobs.ports import Ports
from workflows.domain.errors import BackfillRefused, TooManyBackfilled, UnknownSchedule
from workflows.execution.model_access import KeyModels
from workflows.schedules.domain.policy import Outcome, Reason
from workflows.schedules.domain.timetable import UnknownTimezone
from workflows.schedules.execution.launch import text_of
from workflows.schedules.models import NO_BACKFILL, Firing, Schedule
from workflows.schedules.operations.read import refuse_models_of_target
from workflows.schedules.operations.request_keys import RequestKey, earlier_firing
from workflows.schedules.operations.writes import audit


@dataclass(frozen=True, slots=True)
class Backfilled:
    """A backfill. dues: its due times. request: value of `Firing.backfill`; empty: it was only counted.
    replayed: that of an earlier request with the same key."""

    dues: Sequence[datetime]
    request: str = ""
    replayed: bool = field(default=False, compare=False)


def backfill(
    schedule: Schedule,
    first: datetime,
    last: datetime,
    *,
    by: str,
    ports: Ports,
    parallel: bool = False,
    dry_run: bool = False,
    idempotency_key: RequestKey | None = None,
    key_models: KeyModels = None,
    operator: str | None = None,
) -> Backfilled:
    """Add a waiting firing for each due time from first to last, both inclusive, that has come; the sweep
    starts them, beside the schedule's own due times.

    parallel: without waiting for each other. key_models: as of `trigger`. operator: for the audit. Raises
    BackfillRefused, ModelNotAllowed, TooManyBackfilled, IdempotencyConflict.
    """
    refuse_models_of_target(schedule, key_models)
    request = idempotency_key.of(first, last, parallel) if idempotency_key is not None else new_id()
    if (
        idempotency_key is not None
        and not dry_run
        and (earlier := earlier_firing(schedule, request)) is not None
    ):
        return _backfilled(earlier)
    most, now = settings.DISPATCHER.schedule_backfill, ports.clock.now()
    if last < first:
        raise BackfillRefused("The span ends before it begins.", pointer="/to")
    try:  # a due time to come is started by the timetable
        dues = schedule.timetable.between(first, min(last, now), most + 1)
    except UnknownTimezone as error:
        raise BackfillRefused(str(error)) from None
    if len(dues) > most:
        raise BackfillRefused(
            f"There are more than {most} due times, the most of one backfill; the first {most} end at "
            f"{text_of(dues[most - 1])}.",
            pointer="/to",
        )
    if not dues:
        raise BackfillRefused("No due time in this span has come.", pointer="/from")
    if dry_run:
        return Backfilled(dues)
    rows = [
        Firing(
            id=new_id(now.timestamp()),
            schedule=schedule,
            due_at=due,
            backfill=request,
            may_overlap=parallel,
            by=by[:200],
            outcome=Outcome.WAITING.value,
            at=now,
        )
        for due in dues
    ]
    with transaction.atomic():
        if not Schedule.objects.filter(pk=schedule.pk).update(version=F("version") + 1):
            raise UnknownSchedule
        if idempotency_key is not None and (earlier := earlier_firing(schedule, request)) is not None:
            return _backfilled(earlier)
        _check_room(schedule, len(rows))
        statements.insert_all(rows)
        audit(operator, "backfill", schedule, first=dues[0].isoformat(), last=dues[-1].isoformat())
    return Backfilled(dues, request)


def _backfilled(firing: Firing) -> Backfilled:
    """Return the backfill of a firing, as it was answered: by now other due times may have come."""
    rows = Firing.objects.filter(schedule=firing.schedule_id, backfill=firing.backfill)
    dues = list(rows.order_by("due_at").values_list("due_at", flat=True))
    return Backfilled(dues, firing.backfill, replayed=True)


def cancel_backfills(schedule: Schedule, *, ports: Ports, operator: str | None = None) -> int:
    """Skip the firings of a schedule's backfills that wait; return their number. What was started goes on.
    Idempotent. operator: for the audit."""
    with transaction.atomic():
        # a lock, and a sweep that is about to start one of them finds another version
        if not Schedule.objects.filter(pk=schedule.pk).update(version=F("version") + 1):
            raise UnknownSchedule
        rows = Firing.objects.filter(schedule=schedule, outcome=Outcome.WAITING.value)
        count = rows.exclude(backfill=NO_BACKFILL).update(
            outcome=Outcome.SKIPPED.value, reason=Reason.CANCELLED.value, at=ports.clock.now()
        )
        if count:
            audit(operator, "cancel_backfills_of", schedule, firings=count)
    return count


def _check_room(schedule: Schedule, more: int) -> None:
    """Raise TooManyBackfilled if the tenant may not have so many more due times of backfills that wait."""
    most = settings.DISPATCHER.schedule_backfills
    waiting = Firing.objects.filter(outcome=Outcome.WAITING.value, schedule__tenant=schedule.tenant_id)
    rows = waiting.exclude(backfill=NO_BACKFILL)
    if free_places(f"backfills of {schedule.tenant_id}", rows, most) < more:
        raise TooManyBackfilled(
            f"Of a tenant's backfills {most} due times may wait (DISPATCHER_SCHEDULE_BACKFILLS). Send this "
            "one when earlier ones have started."
        )
