"""People who change, pause, delete, trigger and backfill schedules in the simulated world, with a ledger.

These schedules start whatever overlaps and however late, so the ledger says what each due time had to do."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from django.db import DatabaseError
from django.db.models import F, QuerySet, Value
from django.db.models.functions import Least

from foundation.ids import made_at
from jobs.domain.errors import Refused
from jobs.models import Job
from jobs.ports import Ports
from verification.simulation.scheduler import START
from verification.simulation.world import World
from workflows.schedules.body import ScheduleBody
from workflows.schedules.domain.policy import CatchUp, Outcome, Overlap, Reason
from workflows.schedules.domain.timetable import Timetable
from workflows.schedules.models import NO_BACKFILL, Firing, Schedule
from workflows.schedules.operations.backfill import Backfilled, backfill, cancel_backfills
from workflows.schedules.operations.pause import pause_schedule, resume_schedule
from workflows.schedules.operations.read import find_schedule, read_schedule
from workflows.schedules.operations.request_keys import RequestKey
from workflows.schedules.operations.store import delete_schedule, put_schedule
from workflows.schedules.operations.trigger import trigger

T = TypeVar("T")
EDITED = "edited"
"""Key of the payload, beside `rule`: the mark of the schedule that started the job."""
TRIES = 4
"""Of a request whose answer is lost."""
MOMENT = 0.05
"""Largest difference of clocks that are right, in seconds."""
FINISH_SECONDS = 5.0
LATE = 5.0
"""A job may be inserted that many seconds after its schedule's deletion was answered, by a start that was
under way."""
CRONS = ("* * * * *", "*/2 * * * *", "0-59/3 * * * *")
_BY_LIMIT = ("quota_exhausted", "tenant_queue_full", "rate_limited", "model_queue_full")


@dataclass(slots=True)
class Rule:
    """One state of a schedule. number: in its payloads. asked_at, done_at: virtual seconds; it was written in
    between. timetable: as of the row; None: it was not written."""

    number: int
    asked_at: float
    done_at: float = math.inf
    timetable: Timetable | None = None

    def has(self, due: datetime) -> bool:
        return self.timetable is not None and due in self.timetable.between(due, due, 1)


@dataclass(slots=True)
class Ledger:
    """What people did with one schedule until it was deleted. triggers: by key, the firings that were
    answered. backfills: by key, the answers."""

    tenant: int
    name: str
    mark: str
    rules: list[Rule] = field(default_factory=list)
    triggers: dict[str, list[str]] = field(default_factory=dict)
    backfills: dict[str, list[Backfilled]] = field(default_factory=dict)
    deleted_at: float = math.inf
    changes: int = 0
    """How many changes people have begun."""


class SchedulePeople:
    """They work on `count` schedules. are_done: they have stopped, and left no due time after `end`."""

    def __init__(self, world: World, count: int, *, zone: str) -> None:
        self._world, self._zone = world, zone
        self._end_at: datetime | None = None
        self._chance = random.Random(f"{world.seed} people of schedules")
        self._ledgers: list[Ledger] = []
        self.names = [f"e{number}" for number in range(count)]
        self._working = count
        for name in self.names:
            world.scheduler.spawn(world.outside, partial(self._work, name))

    @property
    def are_done(self) -> bool:
        return not self._working

    def end(self, at: datetime) -> None:
        """Stop after the present act. at: their schedules have no due time later."""
        self._end_at = at

    def job_count(self) -> int:
        """Return the number of jobs that their schedules started, also deleted ones."""
        return Job.objects.filter(payload__has_key=EDITED).count() if self._ledgers else 0

    # -- acts ------------------------------------------------------------------------------------------

    def _work(self, name: str) -> None:
        world, chance = self._world, self._chance
        tenant, again = chance.choice(world.tenants), 0
        ledger = self._create(tenant, name, again)
        acts = [self._edit] * 4 + [self._pause, self._trigger, self._trigger, self._backfill, self._backfill]
        acts += [self._cancel_backfills, self._delete]
        while self._end_at is None:
            world.scheduler.sleep(chance.uniform(0.3, 4.0))
            act = chance.choice(acts)
            act(ledger)
            if ledger.deleted_at < math.inf:
                again += 1
                ledger = self._create(tenant, name, again)
        for _ in range(2):  # an earlier request that was being served may have ended after the first time
            self._operate(ledger, partial(self._finish, ledger))
            world.scheduler.sleep(FINISH_SECONDS)
        self._working -= 1

    def _operate(self, ledger: Ledger, change: Callable[[Ports], object]) -> None:
        """Carry out a change, again until it succeeds. A request without an answer that is served once the
        next change has begun does nothing, like one whose client has hung up."""
        world = self._world
        ledger.changes += 1
        number = ledger.changes

        def request(ports: Ports) -> None:
            if ledger.changes == number:
                change(ports)

        while True:
            try:
                return world.web.call(request)  # type: ignore[no-any-return]
            except (ConnectionError, DatabaseError, Refused) as error:
                world.scheduler.note("people", f"failed: {error}")
                world.scheduler.sleep(1.0)

    def _finish(self, ledger: Ledger, ports: Ports) -> None:
        rows = _rows(ledger)
        if not rows.exists():  # the database has lost it
            self._put(ledger, len(ledger.rules) - 1, {}, ports)
        next_at = Least(F("next_at"), Value(self._end_at))
        rows.update(end_at=self._end_at, next_at=next_at, version=F("version") + 1)
        ledger.rules[-1].timetable = rows.get().timetable

    def _create(self, tenant: int, name: str, again: int) -> Ledger:
        ledger = Ledger(tenant, name, f"{name}.{again}")
        self._ledgers.append(ledger)
        self._edit(ledger)
        return ledger

    def _edit(self, ledger: Ledger) -> None:
        """Give the schedule another rule: period, cron expression, time zone, or only another target."""
        world, chance, number = self._world, self._chance, len(ledger.rules)
        rule = Rule(number, world.scheduler.now)
        ledger.rules.append(rule)
        kind = chance.choice(["period", "period", "cron", "zone", "target"])
        changes: dict[str, Any] = {"every": chance.uniform(3.0, 12.0)} if kind == "period" else {}
        if kind in ("cron", "zone"):
            zone = self._zone if kind == "zone" else "UTC"
            changes = {"cron": chance.choice(CRONS), "timezone": zone}
        self._operate(ledger, partial(self._put, ledger, number, changes))
        rule.done_at = world.scheduler.now

    def _put(self, ledger: Ledger, number: int, changes: dict[str, Any], ports: Ports) -> None:
        """Store a rule. changes: of the timetable; `every`: a period, shorter than clients may ask for."""
        stored = _rows(ledger).first()
        every, cron, zone = 10.0, "", "UTC"
        if stored is not None and not {"every", "cron"} & changes.keys():
            every, cron, zone = stored.every_seconds or every, stored.cron, stored.timezone
        every, cron = changes.get("every", every), changes.get("cron", cron)
        zone = changes.get("timezone", zone)
        times: dict[str, Any] = {"cron": cron, "timezone": zone} if cron else {"every_seconds": 10.0}
        payload = {
            "seconds": 0.3,
            "fails": 0.0,
            EDITED: ledger.mark,
            "rule": number,
            "due": {"$ref": "due_at"},
        }
        body = ScheduleBody(
            **times,
            submit={"model": "tiny", "payload": payload, "max_retries": 3},
            overlap=Overlap.ALLOW.value,
            catch_up=CatchUp.ALL.value,
            catch_up_seconds=86_400.0,
        )
        row = read_schedule(ledger.tenant, ledger.name, body, ports=ports)
        if not cron:
            row.every_seconds = every
            row.next_due_at = row.next_at = row.timetable.next_after(row.handled_at)
        ledger.rules[number].timetable = put_schedule(row).schedule.timetable

    def _pause(self, ledger: Ledger) -> None:
        self._change(ledger, pause_schedule)
        self._world.scheduler.sleep(self._chance.uniform(0.5, 10.0))
        self._change(ledger, resume_schedule)

    def _change(self, ledger: Ledger, change: Callable[..., object]) -> None:
        """Change a schedule, unless the database has lost it."""

        def changed(ports: Ports) -> None:
            for found in _rows(ledger):
                change(found, ports=ports)

        self._operate(ledger, changed)

    def _delete(self, ledger: Ledger) -> None:
        """Delete the schedule; the next one has its name."""
        if self._chance.random() < 0.5:
            return

        def delete(found: Schedule, *, ports: Ports) -> None:
            delete_schedule(found)

        self._change(ledger, delete)
        ledger.deleted_at = self._world.scheduler.now

    def _trigger(self, ledger: Ledger) -> None:
        """Two people trigger the schedule with the same key at once."""
        key = f"trigger-{ledger.mark}-{len(ledger.triggers)}"
        answers = ledger.triggers.setdefault(key, [])

        def send() -> None:
            def request(ports: Ports) -> str:
                schedule = find_schedule(ledger.tenant, ledger.name)
                done = trigger(schedule, by="ann", ports=ports, idempotency_key=RequestKey(key))
                return done.firing.id

            answers.extend(self._ask(request))

        for _ in range(2):
            self._world.scheduler.spawn(self._world.outside, send)

    def _backfill(self, ledger: Ledger) -> None:
        """Two people ask for the same backfill; its span ends shortly before or after now."""
        world, chance = self._world, self._chance
        key = f"backfill-{ledger.mark}-{len(ledger.backfills)}"
        answers = ledger.backfills.setdefault(key, [])
        now = START + timedelta(seconds=world.scheduler.now)
        first = now - timedelta(seconds=chance.uniform(4.0, 25.0))
        last = now + timedelta(seconds=chance.uniform(-2.0, 6.0))
        parallel = chance.random() < 0.5

        def send() -> None:
            def request(ports: Ports) -> Backfilled:
                schedule = find_schedule(ledger.tenant, ledger.name)
                again = RequestKey(key)
                return backfill(
                    schedule, first, last, by="ann", ports=ports, parallel=parallel, idempotency_key=again
                )

            world.scheduler.sleep(chance.uniform(0.0, 3.0))
            answers.extend(self._ask(request))

        for _ in range(2):
            world.scheduler.spawn(world.outside, send)

    def _cancel_backfills(self, ledger: Ledger) -> None:
        self._change(ledger, cancel_backfills)

    def _ask(self, request: Callable[[Ports], T]) -> Sequence[T]:
        """Send a request, again if its answer is lost. Return the answer; nothing if there was none, or if
        the database has forgotten it since."""
        world = self._world
        for _ in range(TRIES):
            asked_at = world.scheduler.now
            try:
                answer = world.web.call(request)
            except (ConnectionError, DatabaseError):
                world.scheduler.sleep(self._chance.uniform(0.1, 3.0))
            except Refused as refused:
                world.scheduler.note("people", f"refused: {refused}")
                return ()
            else:
                return () if world.forgotten.since(asked_at) else (answer,)
        return ()

    # -- laws ------------------------------------------------------------------------------------------

    def judge(self, *, clocks_agree: bool) -> Iterator[str]:
        """Yield violations at the end. clocks_agree: no fault has changed a clock."""
        is_remembered = not self._world.forgotten.spans
        for ledger in self._ledgers:
            if ledger.deleted_at < math.inf:
                if is_remembered and clocks_agree:
                    yield from self._judge_deleted(ledger)
                continue
            schedule = Schedule.objects.get(tenant_id=ledger.tenant, name=ledger.name)
            firings = list(Firing.objects.filter(schedule=schedule).order_by("id"))
            yield from _judge_starts(ledger, firings)
            if not is_remembered:
                continue
            yield from _judge_keys(ledger, firings)
            if clocks_agree:
                yield from _judge_edits(ledger, [one for one in firings if one.backfill == NO_BACKFILL])

    def _judge_deleted(self, ledger: Ledger) -> Iterator[str]:
        for job in Job.objects.filter(**{f"payload__{EDITED}": ledger.mark}):
            if made_at(job.id) - START.timestamp() > ledger.deleted_at + LATE:
                yield f"deleted: {ledger.mark} was at {ledger.deleted_at:.2f}, and started {job.id} later"


def _rows(ledger: Ledger) -> QuerySet[Schedule]:
    return Schedule.objects.filter(tenant_id=ledger.tenant, name=ledger.name)


def _judge_starts(ledger: Ledger, firings: Sequence[Firing]) -> Iterator[str]:
    """A due time has one firing per request, and a job one firing; none waits in the end."""
    counts = Counter((one.due_at, one.backfill) for one in firings)
    for (due, request), count in counts.items():
        if count > 1:
            yield f"twice: {ledger.mark} has {count} firings of {due} by {request or 'its timetable'}"
    named = Counter(one.job_id for one in firings)
    for job in Job.objects.filter(**{f"payload__{EDITED}": ledger.mark}):
        if named[job.id] != 1:
            yield f"twice: job {job.id} of {ledger.mark} has {named[job.id]} firings"
    for one in firings:
        if one.outcome == Outcome.WAITING:
            yield f"waits: {one} of {ledger.mark} in the end"


def _judge_keys(ledger: Ledger, firings: Sequence[Firing]) -> Iterator[str]:
    """A key starts one target, or as many as was answered."""
    for key, ids in ledger.triggers.items():
        found = {one.id for one in firings if one.backfill == RequestKey(key).of("trigger")}
        if len(found) > 1 or (ids and found != set(ids)):
            yield f"trigger: {key} has the firings {sorted(found)}, and was answered by {sorted(set(ids))}"
    for key, answers in ledger.backfills.items():
        for answer in answers:
            own = [one for one in firings if one.backfill == answer.request]
            if len(own) != len(answer.dues) or {one.due_at for one in own} != set(answer.dues):
                yield f"backfill: {key} has {len(own)} firings, and {len(answer.dues)} were announced"
            for one in own:
                if one.outcome == Outcome.SKIPPED and one.reason not in (*_BY_LIMIT, Reason.CANCELLED):
                    yield f"backfill: {one} of {key} is skipped: {one.reason} {one.detail}"


def _judge_edits(ledger: Ledger, firings: Sequence[Firing]) -> Iterator[str]:
    """Yield firings with a due time from before their rule that the rule before it did not have, and due
    times of a rule in force that have no firing, or several."""
    jobs = Job.objects.in_bulk([one.job_id for one in firings if one.job_id])
    for one in firings:
        if one.job_id is None:
            continue
        number = jobs[one.job_id].payload["rule"]
        if not _may_start(ledger, one.due_at, number):
            yield f"edited: {one} of {ledger.mark} came before its rule {number} or is none of its due times"
    for rule, following in zip(ledger.rules, [*ledger.rules[1:], None], strict=True):
        first = START + timedelta(seconds=rule.done_at + MOMENT)
        until = math.inf if following is None else following.asked_at - MOMENT
        for due in rule.timetable.between(first, _latest(until), 1000) if rule.timetable else ():
            count = sum(one.due_at <= due <= (one.until_at or one.due_at) for one in firings)
            if count != 1:
                yield f"edited: {due} of rule {rule.number} of {ledger.mark} has {count} firings"


def _latest(seconds: float) -> datetime:
    return (
        datetime.max.replace(tzinfo=START.tzinfo)
        if seconds == math.inf
        else START + timedelta(seconds=seconds)
    )


def _may_start(ledger: Ledger, due: datetime, number: int) -> bool:
    rule = ledger.rules[number]
    if not rule.has(due):
        return False
    is_before = (due - START).total_seconds() < rule.asked_at - MOMENT
    return not is_before or (number > 0 and _may_start(ledger, due, number - 1))
