"""Fires schedules: one transaction writes what became of their due times, the jobs and runs that they start,
and their next due times.

It begins with a lock and a comparison of `Schedule.version`: of two sweepers, one writes. `handled_at` never
moves back, so neither a clock that steps back nor an edit repeats a due time; the unique key of `Firing`
stands behind both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import (
    DatabaseError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    connection,
    transaction,
)
from django.db.models import Count

from foundation.database import statements
from foundation.database.connections import write_lock
from foundation.ids import new_id
from gpus.errors import LeasingUnavailable
from jobs.domain.errors import NotCancellable, Refused
from jobs.domain.states import FINAL_JOB_STATES
from jobs.limits.submit_limits import LONGEST_SECONDS
from jobs.models import Job
from jobs.operations.jobs import cancel_job
from jobs.ports import Ports
from jobs.reports.counters import Name
from workflows.domain.errors import RunFinished
from workflows.models import Run
from workflows.operations.control import cancel_run
from workflows.schedules.domain.policy import Lateness, Outcome, Overlap, Reason, Step, judge, step_of
from workflows.schedules.domain.timetable import Timetable, UnknownTimezone
from workflows.schedules.execution.launch import Launch, Launched, StartRefused, check, insert, prepare
from workflows.schedules.models import NO_BACKFILL, Firing, Schedule

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FireLimits:
    """Limits of one transaction. dues: due times that it handles; cronsim needs 44 µs for one. starts:
    firings that it starts. weight: bytes in memory of what it starts, about; one firing may have more."""

    dues: int = 1_000
    starts: int = 50
    weight: int = 16 * 1024 * 1024


DEFAULT_FIRE_LIMITS = FireLimits()
LOOK_AGAIN_SECONDS = 300.0
"""Time after which a schedule whose time zone is unknown is looked at again."""
MAX_TRIES = 5
"""Errors in a row after which a due time is given up."""
MAX_DETAIL = 500
_RETRIES = 60
_WRITTEN = ("version", "handled_at", "next_due_at", "next_at", "tries", "error_code", "error_message")


class Overtaken(Exception):
    """The schedule was changed or fired meanwhile."""


class WaitingFailed(Exception):
    """The start of a firing that waits raised an error, which is the cause. firing: the one."""

    def __init__(self, firing: Firing) -> None:
        super().__init__(firing.id)
        self.firing = firing


class StartsRefused(Exception):
    """A limit refuses the next start of a schedule for the moment. started: firings that started before."""

    def __init__(self, started: int) -> None:
        super().__init__(started)
        self.started = started


@dataclass(frozen=True, slots=True)
class Unended:
    """The firings of a schedule that have not ended. running: by the timetable or a trigger; their jobs or
    runs have not. waiting: number of those by the timetable that wait for these. backfilled: of backfills;
    these run beside the others."""

    running: Sequence[Firing] = ()
    waiting: int = 0
    backfilled: Sequence[Firing] = ()


def unended_of(schedule_ids: Sequence[int]) -> dict[int, Unended]:
    """Return the firings that have not ended, by schedule. Read it after the schedules: a firing that is
    missing here has raised the version meanwhile."""
    rows = Firing.objects.filter(
        schedule_id__in=schedule_ids, outcome=Outcome.WAITING.value, backfill=NO_BACKFILL
    )
    waiting = dict(rows.order_by().values_list("schedule_id").annotate(count=Count("pk")))
    opened = list(
        Firing.objects.filter(
            schedule_id__in=schedule_ids, outcome=Outcome.STARTED.value, ended_at=None
        ).order_by("id")
    )
    live = set(
        Job.objects.filter(id__in=[one.job_id for one in opened if one.job_id])
        .exclude(state__in=[state.value for state in FINAL_JOB_STATES])
        .values_list("id", flat=True)
    ) | set(
        Run.objects.filter(id__in=[one.run_id for one in opened if one.run_id], finished_at=None).values_list(
            "id", flat=True
        )
    )
    running: dict[int, list[Firing]] = {}
    backfilled: dict[int, list[Firing]] = {}
    for one in opened:
        if one.job_id in live or one.run_id in live:
            (backfilled if one.is_backfilled else running).setdefault(one.schedule_id, []).append(one)
    return {
        one: Unended(running.get(one, ()), waiting.get(one, 0), backfilled.get(one, ()))
        for one in running.keys() | waiting.keys() | backfilled.keys()
    }


def next_look(schedule: Schedule, next_due_at: datetime | None) -> datetime | None:
    """Return when the sweep looks at the schedule whose next due time this is; None: never."""
    if next_due_at is None:
        return None
    at = next_due_at + schedule.jitter
    if schedule.paused_from is None:
        return at
    if schedule.paused_until is None:
        return None
    return max(at, schedule.paused_until) if schedule.paused_from <= next_due_at else at


# -- due times -----------------------------------------------------------------------------------------------


def fire(
    schedule: Schedule,
    ports: Ports,
    launched: Launched,
    unended: Unended | None = None,
    limits: FireLimits = DEFAULT_FIRE_LIMITS,
) -> bool:
    """Handle the due times of a schedule that have come, as many as one transaction may. Return True if there
    are more.

    schedule: as read. unended: its firings that have not ended; None: they are read. launched: receives the
    jobs and runs, after the commit. Raises Overtaken.
    """
    now = ports.clock.now()
    try:
        timetable = schedule.timetable
    except UnknownTimezone as error:
        _stop(schedule, Reason.UNKNOWN_TIMEZONE, str(error), now, LOOK_AGAIN_SECONDS)
        return False
    if unended is None:
        unended = unended_of([schedule.pk]).get(schedule.pk, Unended())
    refusals: dict[datetime, Refused] = {}
    known: set[datetime] = set()
    for _ in range(_RETRIES):
        plan = _Plan(schedule, timetable, unended, now, ports, refusals, known, limits)
        plan.make()
        if refused := plan.check():
            refusals |= refused
            continue
        try:
            if not _write([plan], ports, launched):
                raise Overtaken
        except StartRefused as error:  # by a limit that is counted in the transaction
            refusals[error.firing.due_at] = error.refused
            continue
        except IntegrityError:
            taken = _known(schedule, plan.rows)
            if taken <= known:
                raise
            known |= taken
            continue
        plan.cancel_replaced()
        return plan.has_more
    raise Overtaken


def fire_together(
    schedules: Sequence[Schedule],
    ports: Ports,
    launched: Launched,
    unended: Mapping[int, Unended],
    limits: FireLimits = DEFAULT_FIRE_LIMITS,
) -> set[int]:
    """Fire schedules in one transaction. Return the keys of those that have to be fired alone, because they
    need more than that: all of them if the transaction was rolled back."""
    now = ports.clock.now()
    plans: list[_Plan] = []
    for schedule in schedules:
        if sum(plan.weight for plan in plans) >= limits.weight:
            break
        try:
            timetable, of = schedule.timetable, unended.get(schedule.pk, Unended())
            plan = _Plan(schedule, timetable, of, now, ports, {}, set(), limits)
            plan.make()
        except Exception:  # it raises again when it is fired alone
            continue
        plans.append(plan)
    launches = [(plan, launch) for plan in plans for launch in plan.launches.values()]
    refused = check([launch for _, launch in launches], ports)
    unsure = {id(plan) for (plan, _), refusal in zip(launches, refused, strict=True) if refusal is not None}
    plans = [plan for plan in plans if id(plan) not in unsure]
    alone = {schedule.pk for schedule in schedules} - {plan.schedule.pk for plan in plans}
    try:
        written = _write(plans, ports, launched)
    except (StartRefused, DatabaseError) as error:
        log.info("schedules_fired_alone", schedules=len(plans), error=str(error)[:MAX_DETAIL])
        return {schedule.pk for schedule in schedules}
    for plan in written:
        plan.cancel_replaced()
    return alone


def _write(plans: Sequence[_Plan], ports: Ports, launched: Launched) -> Sequence[_Plan]:
    """Write plans in one transaction; return those whose schedule is as it was read. launched: receives what
    they started. Raises StartRefused, IntegrityError."""
    if not plans:
        return ()
    rows = [plan.changed_schedule() for plan in plans]
    found = Launched()
    with write_lock(sum(len(plan.rows) + 1 for plan in plans)), transaction.atomic():
        locked = Schedule.objects.select_for_update(
            skip_locked=connection.features.has_select_for_update_skip_locked
        ).filter(pk__in=[plan.schedule.pk for plan in plans])
        versions = dict(locked.order_by("pk").values_list("pk", "version"))
        written = [plan for plan in plans if versions.get(plan.schedule.pk) == plan.schedule.version]
        keys = {plan.schedule.pk for plan in written}
        for plan in written:
            plan.supersede()
        insert([start for plan in written for start in plan.starts()], found, ports)
        statements.insert_all([row for plan in written for row in plan.rows])
        statements.update_all([row for row in rows if row.pk in keys], _WRITTEN)
    for plan in written:
        for row in plan.rows:
            found.count(row, plan.schedule.jitter)
    launched.add(found)
    return written


def _known(schedule: Schedule, rows: Sequence[Firing]) -> set[datetime]:
    """Return the due times among these rows that have a firing."""
    dues = [row.due_at for row in rows]
    found = Firing.objects.filter(schedule=schedule, backfill=NO_BACKFILL, due_at__in=dues)
    return set(found.values_list("due_at", flat=True))


@dataclass
class _Plan:
    """The rows of one transaction.

    refusals: of starts, by due time, as a former try of the transaction found. known: due times that have a
    firing.
    """

    schedule: Schedule
    timetable: Timetable
    unended: Unended
    now: datetime
    ports: Ports
    refusals: Mapping[datetime, Refused]
    known: set[datetime]
    limits: FireLimits
    rows: list[Firing] = field(default_factory=list)
    launches: dict[datetime, Launch] = field(default_factory=dict)
    weight: int = 0
    replaces: bool = False
    has_more: bool = False

    def make(self) -> None:
        schedule = self.schedule
        rules = schedule.lateness(settings.DISPATCHER.schedule_grace_seconds)
        self.handled_at = schedule.handled_at
        self.wait_until: datetime | None = None
        dues = self.timetable.between(
            schedule.handled_at + timedelta(microseconds=1), self.now - rules.jitter, self.limits.dues + 1
        )
        are_all = len(dues) <= self.limits.dues
        self.has_more = not are_all
        dues = dues[: self.limits.dues]
        self.running, self.waiting = len(self.unended.running), self.unended.waiting
        new = [due for due in dues if due not in self.known]
        for judged in judge(new, self.now, rules, are_all=are_all):
            if judged.reason is not None:
                outcome = Outcome.SKIPPED if judged.reason is Reason.PAUSED else Outcome.MISSED
                self._add(judged.first, outcome, judged.reason, last=judged.last, count=judged.count)
            elif len(self.launches) >= self.limits.starts or self.weight >= self.limits.weight:
                self.has_more = True
                return
            elif not self._take(judged.first, rules):
                return
            self.handled_at = judged.last
        if dues:
            self.handled_at = dues[-1]

    def _take(self, due: datetime, rules: Lateness) -> bool:
        """Plan what a due time does that is to be started. Return False if it is to be tried later."""
        most = settings.DISPATCHER.schedule_waiting
        step = step_of(
            Overlap(self.schedule.overlap), running=self.running, waiting=self.waiting, most_waiting=most
        )
        if step is Step.SKIP:
            self._add(due, Outcome.SKIPPED, Reason.OVERLAP)
        elif step is Step.FULL:
            self._add(due, Outcome.SKIPPED, Reason.TOO_MANY_WAITING, f"At most {most} firings wait.")
        elif step is Step.START:
            return self._launch(due, rules)
        else:
            if step is Step.REPLACE:
                self.replaces = True
                self.waiting = 0
                for row in self.rows:
                    if row.outcome == Outcome.WAITING:
                        row.outcome, row.reason = Outcome.SKIPPED.value, Reason.SUPERSEDED.value
            self._add(due, Outcome.WAITING)
            self.waiting += 1
        return True

    def _launch(self, due: datetime, rules: Lateness) -> bool:
        try:
            if due in self.refusals:
                raise self.refusals[due]
            launch = self.launches[due] = prepare(self.schedule, due, self.ports)
            self.weight += launch.weight
        except Refused as refused:
            if refused.passes and (again := self._try_again_at(due, refused, rules)) is not None:
                self.wait_until = again
                return False
            self._add(due, Outcome.SKIPPED, refused.code, str(refused))
        else:
            self._add(due, Outcome.STARTED)
            self.running += 1
        return True

    def _try_again_at(self, due: datetime, refused: Refused, rules: Lateness) -> datetime | None:
        """Return when a start that a limit refused is tried again; None: it would be too late by then."""
        late = rules.late_seconds(due, self.now)
        again = min(30.0, max(1.0, late / 4))
        known_wait = refused.retry_after_seconds or 0.0
        if late + (known_wait if known_wait > LONGEST_SECONDS else again) > rules.patience_seconds():
            return None
        return self.now + timedelta(seconds=again)

    def _add(
        self,
        due: datetime,
        outcome: Outcome,
        reason: str = "",
        detail: str = "",
        *,
        last: datetime | None = None,
        count: int = 1,
    ) -> None:
        """Plan the row of a due time, or of those from it to the last one."""
        before = self.rows[-1] if self.rows else None
        if (
            before is not None
            and outcome in (Outcome.SKIPPED, Outcome.MISSED)
            and (before.outcome, before.reason) == (outcome, str(reason))
        ):
            before.until_at, before.count = last or due, before.count + count
            return
        self.rows.append(
            Firing(
                id=new_id(self.now.timestamp()),
                schedule_id=self.schedule.pk,
                due_at=due,
                until_at=last if count > 1 else None,
                count=count,
                outcome=outcome.value,
                reason=str(reason)[:64],
                detail=detail[:MAX_DETAIL],
                at=self.now,
            )
        )

    def check(self) -> dict[datetime, Refused]:
        """Return the refusals of the jobs that it would start, by due time."""
        refused = check(list(self.launches.values()), self.ports)
        return {due: one for due, one in zip(self.launches, refused, strict=True) if one is not None}

    def changed_schedule(self) -> Schedule:
        """Return the schedule's row after this transaction."""
        row = copy(self.schedule)
        row.version += 1
        row.handled_at = self.handled_at
        row.next_due_at = self.timetable.next_after(self.handled_at)
        row.next_at = next_look(self.schedule, row.next_due_at)
        if self.wait_until is not None:
            row.next_at = self.wait_until
        elif self.has_more:
            row.next_at = self.now  # behind the others that are due
        row.tries, row.error_code, row.error_message = 0, "", ""
        return row

    def starts(self) -> list[tuple[Firing, Launch]]:
        """Return the firings that start something, with it."""
        return [(row, self.launches[row.due_at]) for row in self.rows if row.due_at in self.launches]

    def supersede(self) -> None:
        """Skip the firings that wait, if a newer one takes their place."""
        if self.replaces:
            Firing.objects.filter(
                schedule=self.schedule, outcome=Outcome.WAITING.value, backfill=NO_BACKFILL
            ).update(outcome=Outcome.SKIPPED.value, reason=Reason.SUPERSEDED.value, at=self.now)

    def cancel_replaced(self) -> None:
        """Cancel what the firing of this transaction waits for."""
        if self.replaces:
            cancel_firings(self.unended.running, self.ports)


def cancel_firings(firings: Sequence[Firing], ports: Ports) -> None:
    """Ask for the cancel of the jobs and runs of firings. Idempotent; without the leases' database it is
    repeated for as long as a firing waits for them."""
    for one in firings:
        try:
            if one.job_id is not None:
                cancel_job(one.job_id, ports=ports)
            elif one.run_id is not None:
                cancel_run(one.run_id, ports=ports)
        except (NotCancellable, Job.DoesNotExist, RunFinished):
            pass  # it has ended meanwhile
        except LeasingUnavailable:
            return


def set_schedule(schedule: Schedule, **fields: Any) -> None:
    """Write these fields of a schedule as it was read, and raise its version, in the database only. Raises
    Overtaken."""
    rows = Schedule.objects.filter(pk=schedule.pk, version=schedule.version)
    if not rows.update(version=schedule.version + 1, **fields):
        raise Overtaken


def _stop(schedule: Schedule, reason: Reason, detail: str, now: datetime, seconds: float) -> None:
    """Write that a schedule's due time can't be handled, and look at it again so much later."""
    due = schedule.next_due_at
    handled_at = schedule.handled_at if due is None else max(due, schedule.handled_at)
    with transaction.atomic():
        set_schedule(
            schedule,
            handled_at=handled_at,
            next_due_at=None,
            next_at=now + timedelta(seconds=seconds),
            tries=0,
            error_code=reason.value,
            error_message=detail[:MAX_DETAIL],
        )
        if due is not None:
            row = Firing(
                id=new_id(now.timestamp()),
                schedule_id=schedule.pk,
                due_at=due,
                outcome=Outcome.SKIPPED.value,
                reason=reason.value,
                detail=detail[:MAX_DETAIL],
                at=now,
            )
            statements.insert(row, ignore_conflicts=True)


def note_error(schedule: Schedule, error: Exception, ports: Ports) -> None:
    """Put off a schedule whose firing raised an error; after `MAX_TRIES` its due time is skipped. So a row
    that always fails never keeps the sweep from the others."""
    now = ports.clock.now()
    schedule = Schedule.objects.get(pk=schedule.pk)
    tries = schedule.tries + 1
    if tries > MAX_TRIES:
        _stop(schedule, Reason.ERROR, repr(error), now, 1.0)
        return
    set_schedule(
        schedule,
        tries=tries,
        next_at=now + timedelta(seconds=2**tries),
        error_code=Reason.ERROR.value,
        error_message=repr(error)[:MAX_DETAIL],
    )


# -- firings that wait ---------------------------------------------------------------------------------------


def start_waiting(
    schedule: Schedule, ports: Ports, launched: Launched, limits: FireLimits = DEFAULT_FIRE_LIMITS
) -> int:
    """Start firings of a schedule that wait: the first one by the timetable if no other runs, the first one
    of backfills if none of theirs runs, and backfills that may overlap. Return how many started. Raises
    Overtaken, StartsRefused, WaitingFailed."""
    rows = Firing.objects.filter(schedule=schedule, outcome=Outcome.WAITING.value).order_by("id")
    now = ports.clock.now()
    unended = unended_of([schedule.pk]).get(schedule.pk, Unended())
    started = 0
    if not is_paused(schedule, now):
        own = rows.filter(backfill=NO_BACKFILL)[: limits.starts]
        if not unended.running:
            started = _start_first(schedule, own, ports, launched)
        elif schedule.overlap == Overlap.CANCEL_PREVIOUS and own.exists():
            cancel_firings(unended.running, ports)
    backfills = rows.exclude(backfill=NO_BACKFILL)
    if unended.backfilled:
        backfills = backfills.filter(may_overlap=True)
    return _start_first(schedule, backfills[: limits.starts], ports, launched, started)


def _start_first(
    schedule: Schedule, firings: Iterable[Firing], ports: Ports, launched: Launched, started: int = 0
) -> int:
    """Start firings that wait up to the first one that the others wait for; return how many started, with
    those before. Raises Overtaken, StartsRefused, WaitingFailed."""
    for firing in firings:
        try:
            _start(schedule, firing, ports, launched)
        except Refused as refused:
            if refused.passes:
                raise StartsRefused(started) from None
            skip_waiting(schedule, firing, refused.code, str(refused), ports.clock.now())
            schedule.version += 1
            continue
        except (Overtaken, OperationalError, InterfaceError, LeasingUnavailable):
            raise
        except Exception as error:
            raise WaitingFailed(firing) from error
        schedule.version += 1
        started += 1
        if not firing.may_overlap:
            break
    return started


def skip_waiting(schedule: Schedule, firing: Firing, reason: str, detail: str, now: datetime) -> None:
    """Write that a firing that waits is not started. Raises Overtaken."""
    with transaction.atomic():
        set_schedule(schedule)
        Firing.objects.filter(id=firing.id, outcome=Outcome.WAITING.value).update(
            outcome=Outcome.SKIPPED.value, reason=reason[:64], detail=detail[:MAX_DETAIL], at=now
        )


def is_paused(schedule: Schedule, now: datetime) -> bool:
    """Return True if no due time is started now."""
    if schedule.paused_from is None or schedule.paused_from > now:
        return False
    return schedule.paused_until is None or schedule.paused_until > now


def _start(schedule: Schedule, firing: Firing, ports: Ports, launched: Launched) -> None:
    """Start a waiting firing. Raises Refused, and Overtaken if it does not wait any more."""
    launch = prepare(schedule, firing.due_at, ports)
    (refused,) = check([launch], ports)
    if refused is not None:
        raise refused
    found = Launched()
    with write_lock(2), transaction.atomic():
        set_schedule(schedule)
        try:
            insert([(firing, launch)], found, ports)
        except StartRefused as error:
            raise error.refused from None
        rows = Firing.objects.filter(id=firing.id, outcome=Outcome.WAITING.value)
        if not rows.update(
            outcome=Outcome.STARTED.value, job_id=firing.job_id, run_id=firing.run_id, at=ports.clock.now()
        ):
            raise Overtaken
    firing.outcome, firing.at = Outcome.STARTED.value, ports.clock.now()
    found.counts[Name.FIRINGS, firing.outcome, ""] += 1
    launched.add(found)
