"""What people and clients do with schedules: store, delete, pause, resume, preview, trigger and backfill
them, and cancel backfills."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain, islice, takewhile
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import F

from foundation.database import statements
from foundation.database.row_limits import free_places
from foundation.http_api.problems import FieldError, Problem, validation_problem
from foundation.ids import ID_LENGTH, new_id
from gpus.registry.audit import record
from jobs.callbacks.guard import check_callback_url, refused_origins
from jobs.domain.errors import IdempotencyConflict, ModelNotAllowed, PayloadInvalid, Refused
from jobs.ports import Ports
from jobs.submission.request import Allowed, check_request, read_request
from workflows.definition.read import read_definition
from workflows.domain.errors import (
    BackfillRefused,
    PauseRefused,
    ScheduleExists,
    TooManyBackfilled,
    TooManySchedules,
    UnknownSchedule,
    UnknownWorkflow,
)
from workflows.domain.template import Unresolved
from workflows.execution.model_access import KeyModels, refuse_models, stored_models
from workflows.execution.runs import check_inputs, find_version
from workflows.schedules.body import ScheduleBody, body_errors, target_of
from workflows.schedules.domain.policy import CatchUp, Outcome, Overlap, Reason
from workflows.schedules.domain.target import DUE_AT, LAST, SUBMIT, WORKFLOW, names_used, resolved
from workflows.schedules.domain.timetable import Timetable, UnknownTimezone, words_of
from workflows.schedules.execution.fire import is_paused, next_look
from workflows.schedules.execution.launch import Launched, StartRefused, check, insert, prepare, text_of
from workflows.schedules.models import NO_BACKFILL, Firing, Schedule

_RACES = 20
_CATCH_UP_SECONDS = 3600.0
"""Where a schedule does not say: at most the limit of the settings."""
_BODY_FIELDS = (
    "cron",
    "timezone",
    "every_seconds",
    "at",
    "target",
    "key_models",
    "overlap",
    "catch_up",
    "catch_up_seconds",
    "jitter_seconds",
    "start_at",
    "end_at",
    "pause_after_failures",
)
_MOST_DROPPED = 10_000
"""Due times that a change counts: those of a week by the minute."""

# -- definitions ---------------------------------------------------------------------------------------------


def find_schedule(tenant_id: int, name: str) -> Schedule:
    """Return a tenant's schedule. Raises UnknownSchedule."""
    found = Schedule.objects.filter(tenant_id=tenant_id, name=name).first()
    if found is None:
        raise UnknownSchedule
    return found


def read_schedule(
    tenant_id: int,
    name: str,
    body: ScheduleBody,
    *,
    ports: Ports,
    key_models: KeyModels = None,
) -> Schedule:
    """Return the row of a body, not saved, with its next due time.

    key_models: models that the API key may submit to, and the schedule may use; None: all of the tenant's.
    Raises Problem 422 with all errors.
    """
    now, limits = ports.clock.now(), settings.DISPATCHER
    errors = list(body_errors(body, now))
    if errors:
        raise validation_problem(sorted(errors, key=lambda error: error.pointer))
    schedule = Schedule(
        tenant_id=tenant_id,
        name=name,
        cron=body.cron or "",
        timezone=body.timezone or "UTC",
        every_seconds=body.every_seconds,
        at=body.at,
        anchor_at=now.replace(microsecond=0),
        target=target_of(body),
        key_models=stored_models(key_models),
        overlap=body.overlap or Overlap.SKIP.value,
        catch_up=body.catch_up or CatchUp.LAST.value,
        catch_up_seconds=body.catch_up_seconds or min(_CATCH_UP_SECONDS, limits.schedule_catch_up_seconds),
        jitter_seconds=body.jitter_seconds or 0.0,
        start_at=body.start_at,
        end_at=body.end_at,
        pause_after_failures=body.pause_after_failures,
        handled_at=now,
        created_at=now,
        updated_at=now,
    )
    _set_next(schedule)
    _check_target(schedule, ports, key_models)
    return schedule


def as_if_stored(schedule: Schedule) -> Schedule:
    """Return the row that `put_schedule` would store of this one, to preview it: the stored one of its name
    keeps its anchor, its pause and what was handled."""
    stored = Schedule.objects.filter(tenant_id=schedule.tenant_id, name=schedule.name).first()
    return schedule if stored is None else _merged(stored, schedule)


def _set_next(schedule: Schedule) -> None:
    schedule.next_due_at = schedule.timetable.next_after(schedule.handled_at)
    schedule.next_at = next_look(schedule, schedule.next_due_at)


def _refuse_without_due_time(schedule: Schedule) -> None:
    if schedule.next_due_at is None:
        place = "at" if schedule.at else "end_at" if schedule.end_at else "cron"
        error = FieldError(f"/{place}", "never", "The schedule has no due time from now on: it never starts.")
        raise validation_problem([error])


def _check_target(schedule: Schedule, ports: Ports, key_models: KeyModels) -> None:
    """Check a target as its submit or start would be, as far as its references allow. Raises Problem 422."""
    target = schedule.target
    due_at = schedule.next_due_at or schedule.handled_at
    body: dict[str, Any] | None
    try:
        body = resolved(target, {DUE_AT: text_of(due_at), LAST: None})
    except Unresolved:
        body = None  # of `last`, without a default: its first firing is skipped
    try:
        if SUBMIT in target:
            _check_submit(schedule, body, ports, key_models)
        else:
            _check_workflow(schedule, body, ports, key_models)
    except Refused as refused:
        kind = SUBMIT if SUBMIT in target else WORKFLOW
        error = FieldError(f"/{kind}{refused.pointer or ''}", refused.code, str(refused))
        raise validation_problem([error]) from None


def _check_submit(
    schedule: Schedule, body: dict[str, Any] | None, ports: Ports, key_models: KeyModels
) -> None:
    try:
        request = read_request(body or {**schedule.target[SUBMIT], "payload": {}})
    except Problem as problem:
        errors = [
            FieldError(f"/{SUBMIT}{error.pointer}", error.code, error.detail) for error in problem.errors
        ]
        raise validation_problem(errors) from None
    try:
        check_request(request, tenant=schedule.tenant_id, ports=ports, key_models=key_models)
    except PayloadInvalid:
        if body is not None and LAST not in names_used(schedule.target):
            raise


def _check_workflow(
    schedule: Schedule, body: dict[str, Any] | None, ports: Ports, key_models: KeyModels
) -> None:
    target = schedule.target[WORKFLOW]
    version = find_version(schedule.tenant_id, target["name"], target.get("version"))
    if version is None:
        raise UnknownWorkflow(pointer="/name")
    if url := target.get("callback_url"):
        check_callback_url(url, refused_origins(ports.registry))
    plan = read_definition(version.spec)
    try:
        refuse_models(schedule.tenant_id, plan, key_models)
    except ModelNotAllowed as refused:
        raise ModelNotAllowed(str(refused), pointer="/name") from None
    if body is not None and LAST not in names_used(schedule.target):
        check_inputs(plan.inputs, body.get("inputs"), ports)


def refuse_models_of_target(schedule: Schedule, key_models: KeyModels) -> None:
    """Check that a key may submit to the models of a schedule's target. Raises ModelNotAllowed."""
    if SUBMIT in schedule.target:
        Allowed(None, key_models).check(schedule.target[SUBMIT]["model"])
        return
    target = schedule.target[WORKFLOW]
    version = find_version(schedule.tenant_id, target["name"], target.get("version"))
    if version is not None:
        refuse_models(schedule.tenant_id, read_definition(version.spec), key_models)


def create_schedule(schedule: Schedule, operator: str | None = None) -> Schedule:
    """Insert the row of `read_schedule`. operator: for the audit. Raises ScheduleExists, TooManySchedules,
    Problem 422."""
    _refuse_without_due_time(schedule)
    most, tenant_id = settings.DISPATCHER.schedules, schedule.tenant_id
    try:
        with transaction.atomic():
            rows = Schedule.objects.filter(tenant_id=tenant_id)
            if free_places(f"schedules of {tenant_id}", rows, most) <= 0:
                raise TooManySchedules(
                    f"A tenant may have {most} schedules (DISPATCHER_SCHEDULES). Delete one, or change "
                    "one by PUT."
                )
            schedule.save(force_insert=True)
            _audit(operator, "put", schedule)
    except IntegrityError:
        raise ScheduleExists(
            f"There is a schedule {schedule.name}. PUT replaces it.", pointer="/name"
        ) from None
    return schedule


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule. is_new: it did not exist before."""

    schedule: Schedule
    is_new: bool


def put_schedule(schedule: Schedule, operator: str | None = None) -> StoredSchedule:
    """Store the row of `read_schedule` in place of the one with its name; without a change, nothing is
    written. Due times that are handled stay so. Those that have come and are not handled yet start what the
    new row says; other due times than before begin now, and the open ones are skipped. operator: for the
    audit. Raises TooManySchedules, Problem 422."""
    for _ in range(_RACES):
        stored = Schedule.objects.filter(tenant_id=schedule.tenant_id, name=schedule.name).first()
        if stored is None:
            try:
                return StoredSchedule(create_schedule(schedule, operator), is_new=True)
            except ScheduleExists:
                continue
        if all(getattr(stored, name) == getattr(schedule, name) for name in _BODY_FIELDS):
            return StoredSchedule(stored, is_new=False)
        changed = _merged(stored, schedule)
        _refuse_without_due_time(changed)
        fields = (*_BODY_FIELDS, "handled_at", "next_due_at", "next_at", "updated_at")
        values = {name: getattr(changed, name) for name in fields}
        with transaction.atomic():
            is_written = _changed(stored, **values, tries=0, error_code="", error_message="")
            if is_written and (row := _dropped(stored, changed)) is not None:
                statements.insert(row, ignore_conflicts=True)
            if is_written:
                _audit(operator, "put", stored)
        if is_written:
            return StoredSchedule(find_schedule(schedule.tenant_id, schedule.name), is_new=False)
    raise ScheduleExists("The schedule changes all the time. Try again.")


def _merged(stored: Schedule, new: Schedule) -> Schedule:
    """Return the stored schedule with the fields of the new one, and its next due time."""
    merged = copy(stored)
    for name in _BODY_FIELDS:
        setattr(merged, name, getattr(new, name))
    merged.updated_at = new.updated_at
    if _open_dues(stored, stored, new.handled_at) != _open_dues(merged, stored, new.handled_at):
        merged.handled_at = new.handled_at
    _set_next(merged)
    return merged


def _dropped(stored: Schedule, changed: Schedule) -> Firing | None:
    """Return the row of the due times that came before a change of the timetable and that it leaves out."""
    if changed.handled_at == stored.handled_at:
        return None
    dues = _open_dues(stored, stored, changed.handled_at)
    if not dues:
        return None
    return Firing(
        id=new_id(changed.updated_at.timestamp()),
        schedule=stored,
        due_at=dues[0],
        until_at=dues[-1] if len(dues) > 1 else None,
        count=len(dues),
        outcome=Outcome.SKIPPED.value,
        reason=Reason.CHANGED.value,
        at=changed.updated_at,
    )


def _open_dues(schedule: Schedule, stored: Schedule, now: datetime) -> list[datetime] | None:
    """Return the due times of a timetable that have come and that the stored schedule has not handled; None
    in an unknown time zone."""
    try:
        after = stored.handled_at + timedelta(microseconds=1)
        return schedule.timetable.between(after, now, _MOST_DROPPED)
    except UnknownTimezone:
        return None


def _changed(schedule: Schedule, **values: Any) -> bool:
    """Write values to a schedule as read; False if it was changed meanwhile."""
    rows = Schedule.objects.filter(pk=schedule.pk, version=schedule.version)
    return bool(rows.update(version=F("version") + 1, **values))


def _audit(operator: str | None, action: str, schedule: Schedule, **detail: object) -> None:
    """Write an audit entry inside the transaction of the change. operator: None for a tenant's request."""
    record(operator, f"{action}_schedule", f"schedule:{schedule.tenant.name}/{schedule.name}", **detail)


def delete_schedule(schedule: Schedule, operator: str | None = None) -> None:
    """Delete a schedule with its firings; jobs and runs that it started go on. operator: for the audit."""
    with transaction.atomic():
        # a lock: a firing that is added after the read of those to delete would keep the schedule
        locked = Schedule.objects.select_for_update().filter(pk=schedule.pk)
        if locked.exists() and Schedule.objects.filter(pk=schedule.pk).delete()[0]:
            _audit(operator, "delete", schedule)


# -- pauses --------------------------------------------------------------------------------------------------


def pause_schedule(
    schedule: Schedule,
    *,
    ports: Ports,
    until: datetime | None = None,
    reason: str = "",
    operator: str | None = None,
) -> Schedule:
    """Skip the due times from now on, until a time or until it is resumed. A pause under way begins when it
    began: its due times have no row yet. Idempotent. operator: for the audit. Raises PauseRefused."""
    for _ in range(_RACES):
        now = ports.clock.now()
        if until is not None and until <= now:
            raise PauseRefused(f"It is {text_of(now)}: a pause ends later than that.", pointer="/until")
        begin = schedule.paused_from
        if begin is None or not (is_paused(schedule, now) or _has_open_pause(schedule)):
            begin = now
        schedule.paused_from, schedule.paused_until, schedule.pause_reason = begin, until, reason
        values = {
            "paused_from": begin,
            "paused_until": until,
            "pause_reason": reason,
            "next_at": next_look(schedule, schedule.next_due_at),
        }
        with transaction.atomic():
            if is_written := _changed(schedule, **values):
                _audit(operator, "pause", schedule, until=until and until.isoformat(), reason=reason)
        if is_written:
            return Schedule.objects.get(pk=schedule.pk)
        schedule = _again(schedule)
    raise ScheduleExists("The schedule changes all the time. Try again.")


def _has_open_pause(schedule: Schedule) -> bool:
    """Return True if due times of the last pause have no row yet: no sweep ran since its end."""
    begin, due, until = schedule.paused_from, schedule.next_due_at, schedule.paused_until
    return begin is not None and due is not None and until is not None and begin <= due < until


def resume_schedule(schedule: Schedule, *, ports: Ports, operator: str | None = None) -> Schedule:
    """End a pause. Its due times get rows with the outcome skipped, and the count of failures begins at 0. If
    a clock was ahead, the schedule starts at its due times from now on. Idempotent. operator: for the
    audit."""
    for _ in range(_RACES):
        now = ports.clock.now()
        if is_ahead(schedule, now):
            _wind_back(schedule, now, operator)
            schedule = _again(schedule)
            continue
        if schedule.paused_from is None or (
            schedule.paused_until is not None and schedule.paused_until <= now
        ):
            return schedule
        schedule.paused_until = now
        next_at = next_look(schedule, schedule.next_due_at)
        if schedule.error_code:
            next_at = now  # the sweep computes the due time anew
        with transaction.atomic():
            if is_written := _changed(
                schedule, paused_until=now, pause_reason="", failures=0, next_at=next_at
            ):
                _audit(operator, "resume", schedule)
        if is_written:
            return Schedule.objects.get(pk=schedule.pk)
        schedule = _again(schedule)
    raise ScheduleExists("The schedule changes all the time. Try again.")


def _again(schedule: Schedule) -> Schedule:
    found = Schedule.objects.filter(pk=schedule.pk).first()
    if found is None:
        raise UnknownSchedule
    return found


# -- after a clock that was ahead ----------------------------------------------------------------------------

AHEAD = timedelta(minutes=1)
"""Clocks of hosts differ by less."""


def is_ahead(schedule: Schedule, now: datetime) -> bool:
    """Return True if due times to come count as handled: a clock was ahead, and the schedule is silent until
    the clock has passed them."""
    return schedule.handled_at > now + AHEAD


def _wind_back(schedule: Schedule, now: datetime, operator: str | None) -> None:
    """Let the due times after now be handled, unless the schedule was changed meanwhile. Those that were
    started while the clock was ahead are not started again; rows of missed and skipped ones end now."""
    changed = Schedule.objects.get(pk=schedule.pk)
    changed.handled_at = now
    try:
        _set_next(changed)
    except UnknownTimezone:
        changed.next_due_at, changed.next_at = None, now  # the sweep writes the row
    values = {name: getattr(changed, name) for name in ("handled_at", "next_due_at", "next_at")}
    with transaction.atomic():
        if not _changed(schedule, **values):
            return
        rows = Firing.objects.filter(schedule=schedule, backfill=NO_BACKFILL)
        rows = rows.filter(outcome__in=(Outcome.MISSED.value, Outcome.SKIPPED.value))
        rows.filter(due_at__gt=now).delete()
        for row in rows.filter(until_at__gt=now):
            try:
                dues = schedule.timetable.between(row.due_at, now, row.count)
            except UnknownTimezone:
                dues = []
            row.count, row.until_at = max(len(dues), 1), dues[-1] if len(dues) > 1 else None
            row.save(update_fields=["count", "until_at"])
        _audit(operator, "wind_back", schedule, handled_at=schedule.handled_at.isoformat())


# -- previews, triggers, backfills ---------------------------------------------------------------------------

PREVIEW_MOST = 1_000


@dataclass(frozen=True, slots=True)
class FireTime:
    """A due time to come. fires_at: with the jitter. local: in the schedule's time zone."""

    due_at: datetime
    fires_at: datetime
    local: datetime


def fire_times(schedule: Schedule, count: int, now: datetime) -> Sequence[FireTime]:
    """Return the next fire times, at most so many; none during a pause without an end, and if the time zone
    is unknown."""
    if is_paused(schedule, now) and schedule.paused_until is None:
        return []
    return fire_times_if_resumed(schedule, count, now)


def fire_times_if_resumed(schedule: Schedule, count: int, now: datetime) -> Sequence[FireTime]:
    """Return the next fire times, at most so many; during a pause without an end those that it would have if
    it ended now. Empty if the time zone is unknown."""
    try:
        timetable = schedule.timetable
    except UnknownTimezone:
        return []
    jitter = schedule.jitter
    return [
        FireTime(due, due + jitter, due.astimezone(timetable.zone))
        for due in islice(_dues_to_fire(schedule, timetable, now), count)
    ]


def _dues_to_fire(schedule: Schedule, timetable: Timetable, now: datetime) -> Iterator[datetime]:
    """Yield the due times that fire from now on, with those that have come and wait for their jitter. The due
    times of a pause do not fire."""
    after = max(now - schedule.jitter, schedule.handled_at)
    begin = schedule.paused_from
    end = schedule.paused_until or now
    if begin is None or end <= after:
        return timetable.after(after)
    before = takewhile(lambda due: due < begin, timetable.after(after))
    return chain(before, timetable.after(max(after, end - timedelta(microseconds=1))))


def shown_next_due_at(schedule: Schedule, now: datetime) -> datetime | None:
    """Return the due time that is started next; None during a pause without an end. In the past: it has come,
    and waits for its jitter or for the sweep."""
    due, begin, until = schedule.next_due_at, schedule.paused_from, schedule.paused_until
    if due is None or begin is None or due < begin:
        return due
    if until is None:
        return None
    if due >= until:
        return due
    try:  # the sweep writes those of the pause as skipped
        return schedule.timetable.next_after(max(until - timedelta(microseconds=1), schedule.handled_at))
    except UnknownTimezone:
        return None


def times_in_words(schedule: Schedule) -> str:
    """Return the due times of a schedule in words."""
    if schedule.cron:
        return f"{words_of(schedule.cron)} ({schedule.timezone})"
    if schedule.every_seconds is not None:
        return f"Every {schedule.every_seconds:g} seconds"
    return f"Once, at {schedule.at:%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, slots=True)
class RequestKey:
    """An Idempotency-Key: the same key of a schedule means the same trigger or backfill."""

    text: str

    def of(self, *request: object) -> str:
        """Return the value of `Firing.backfill` of a request with this key: its first half is the key's."""
        return _half(self.text) + _half(repr(request))


def _half(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[: ID_LENGTH // 2]


def _earlier(schedule: Schedule, request: str) -> Firing | None:
    """Return a firing of an earlier request with the same key. Raises IdempotencyConflict for another
    request."""
    of_key = Firing.objects.filter(schedule=schedule, backfill__startswith=request[: ID_LENGTH // 2])
    earlier = of_key.first()
    if earlier is not None and earlier.backfill != request:
        raise IdempotencyConflict
    return earlier


@dataclass(frozen=True, slots=True)
class Triggered:
    """The firing of a trigger. replayed: that of an earlier request with the same key."""

    firing: Firing
    replayed: bool = False


def trigger(
    schedule: Schedule,
    *,
    by: str,
    ports: Ports,
    idempotency_key: RequestKey | None = None,
    key_models: KeyModels = None,
    operator: str | None = None,
) -> Triggered:
    """Start the target of a schedule now, also while it is paused or an earlier firing runs. key_models:
    models that the API key may submit to; None: all of the tenant's. operator: for the audit. Raises
    Refused."""
    request = idempotency_key.of("trigger") if idempotency_key is not None else new_id()
    if idempotency_key is not None and (earlier := _earlier(schedule, request)) is not None:
        return Triggered(earlier, replayed=True)
    now = ports.clock.now()
    launch = prepare(schedule, now, ports, key_models)
    (refused,) = check([launch], ports)
    if refused is not None:
        raise refused
    launched = Launched()
    firing = Firing(
        id=new_id(now.timestamp()),
        schedule=schedule,
        due_at=now,
        backfill=request,
        by=by[:200],
        outcome=Outcome.STARTED.value,
        at=now,
    )
    with transaction.atomic():
        if not Schedule.objects.filter(pk=schedule.pk).update(version=F("version") + 1):
            raise UnknownSchedule
        # the update above is a lock
        if idempotency_key is not None and (earlier := _earlier(schedule, request)) is not None:
            return Triggered(earlier, replayed=True)
        try:
            insert([(firing, launch)], launched, ports)
        except StartRefused as error:
            raise error.refused from None
        statements.insert(firing)
        _audit(operator, "trigger", schedule, firing=firing.id)
    launched.announce(ports)
    return Triggered(firing)


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
    if idempotency_key is not None and not dry_run and (earlier := _earlier(schedule, request)) is not None:
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
        if idempotency_key is not None and (earlier := _earlier(schedule, request)) is not None:
            return _backfilled(earlier)
        _check_room(schedule, len(rows))
        statements.insert_all(rows)
        _audit(operator, "backfill", schedule, first=dues[0].isoformat(), last=dues[-1].isoformat())
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
            _audit(operator, "cancel_backfills_of", schedule, firings=count)
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
