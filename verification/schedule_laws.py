"""Laws of schedules: each due time has one firing, and each firing that started has one job or run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise

from django.conf import settings

from jobs.domain.states import FINAL_JOB_STATES
from jobs.models import Job
from workflows.models import Run
from workflows.schedules.domain.policy import CatchUp, Outcome, Overlap, Reason
from workflows.schedules.models import NO_BACKFILL, Firing, Schedule

MOST = 100_000
"""Due times of one schedule that are compared."""
CLOCKS_APART = timedelta(seconds=5)
"""Largest difference between clocks that agree, and between two reads of one."""
_OVERLAP: Mapping[str, frozenset[Overlap]] = {
    Reason.OVERLAP: frozenset({Overlap.SKIP, Overlap.QUEUE_ONE}),
    Reason.SUPERSEDED: frozenset({Overlap.CANCEL_PREVIOUS}),
    Reason.TOO_MANY_WAITING: frozenset({Overlap.QUEUE_ALL}),
}
_FINAL_JOB = frozenset(state.value for state in FINAL_JOB_STATES)


def check_schedules(
    tenants: Collection[int] | None = None,
    *,
    drained: bool = False,
    clocks_agree: bool = True,
    edited: Collection[str] = (),
) -> Iterator[str]:
    """Yield violations, for firings that were not deleted. tenants: ids; None: all. drained: no sweep has
    anything left to do. clocks_agree: of all hosts; else times of different ones are not compared. edited:
    names of schedules whose rules were changed; only (15) is checked for them.

    (14) Each due time up to `handled_at` is in exactly one firing of its schedule. (15) A firing names a job
    or run that exists, iff it started one; no two name the same. (16) The policies explain what became of
    each due time, and what two firings of a schedule started runs at once only if its policy allows that.
    """
    schedules, firings = Schedule.objects.order_by("pk"), Firing.objects.order_by("id")
    if tenants is not None:
        schedules = schedules.filter(tenant__in=tenants)
        firings = firings.filter(schedule__tenant__in=tenants)
    for schedule in schedules.exclude(name__in=edited):
        yield from _due_times(schedule)
        own = list(firings.filter(schedule=schedule, backfill=NO_BACKFILL))
        yield from _fates(schedule, own, clocks_agree=clocks_agree)
        if clocks_agree and schedule.overlap != Overlap.ALLOW:
            yield from _overlaps(schedule, own)
        if drained:
            yield from _unended(schedule, own)
    jobs = set(Job.objects.values_list("id", flat=True))
    runs = set(Run.objects.values_list("id", flat=True))
    named = Counter(
        one for pair in firings.values_list("job_id", "run_id") for one in pair if one is not None
    )
    yield from (f"(15) {one} was started by {count} firings" for one, count in named.items() if count > 1)
    for firing in firings:
        started = firing.outcome == Outcome.STARTED
        if started != (firing.job_id in jobs or firing.run_id in runs):
            yield f"(15) firing {firing} is {firing.outcome}, with job {firing.job_id}, run {firing.run_id}"


def _due_times(schedule: Schedule) -> Iterator[str]:
    first = schedule.created_at + timedelta(microseconds=1)
    dues = schedule.timetable.between(first, schedule.handled_at, MOST)
    fired: Counter[object] = Counter()
    for firing in Firing.objects.filter(schedule=schedule, backfill=NO_BACKFILL):
        last = firing.until_at or firing.due_at
        inside = [due for due in dues if firing.due_at <= due <= last]
        if len(inside) != firing.count or firing.due_at not in inside:
            yield f"(14) firing {firing} has the count {firing.count} for {len(inside)} due times"
        fired.update(inside)
    for due in dues:
        if fired[due] != 1:
            yield f"(14) {schedule} has {fired[due]} firings of {due}"


def _fates(schedule: Schedule, firings: Sequence[Firing], *, clocks_agree: bool) -> Iterator[str]:
    """Yield the firings that the policies of their schedule do not explain. firings: by id."""
    for place, firing in enumerate(firings):
        why = ""
        if (overlaps := _OVERLAP.get(firing.reason)) is not None and schedule.overlap not in overlaps:
            why = f"its overlap policy is {schedule.overlap}"
        elif firing.reason == Reason.SUPERSEDED and place == len(firings) - 1:
            why = "there is no newer one"
        elif clocks_agree and firing.reason == Reason.OVERLAP and not _was_under_way(firings, firing):
            why = "no other one was under way"
        elif firing.reason == Reason.LATE:
            why = _too_soon_given_up(schedule, firing)
        elif firing.outcome == Outcome.STARTED and schedule.overlap in (Overlap.ALLOW, Overlap.SKIP):
            patience = schedule.lateness(settings.DISPATCHER.schedule_grace_seconds).patience_seconds()
            late = (firing.at - firing.due_at - schedule.jitter).total_seconds()
            why = f"it was {late:.1f} s late" if late > patience else ""
            why = why or (f"it was {-late:.1f} s early" if late < 0 else "")
        if why:
            yield f"(16) firing {firing} of {schedule} is {firing.outcome} {firing.reason}: {why}"


def _was_under_way(firings: Sequence[Firing], skipped: Firing) -> bool:
    """Return True if another firing ran, or waited, as this one was skipped. It may say so of several."""
    first = skipped.at - CLOCKS_APART
    return any(
        one.id < skipped.id and (one.ended_at is None or one.ended_at >= first)
        for one in firings
        if one.outcome in (Outcome.STARTED, Outcome.WAITING)
    )


def _too_soon_given_up(schedule: Schedule, firing: Firing) -> str:
    """Return why a due time should have been caught up that counts as too late; empty if it should not."""
    last = firing.until_at or firing.due_at
    late = (firing.at - last - schedule.jitter).total_seconds()
    catch_up, newest = CatchUp(schedule.catch_up), schedule.timetable.next_after(last)
    if late <= settings.DISPATCHER.schedule_grace_seconds:
        return f"it was only {late:.1f} s late"
    is_newest = newest is None or newest + schedule.jitter > firing.at
    is_caught_up = catch_up is CatchUp.ALL or (catch_up is CatchUp.LAST and is_newest)
    if is_caught_up and late <= schedule.catch_up_seconds:
        return f"it was {late:.1f} s late, and {catch_up} are caught up for {schedule.catch_up_seconds} s"
    return ""


def _overlaps(schedule: Schedule, firings: Sequence[Firing]) -> Iterator[str]:
    """What a firing started has ended before the next one starts, unless it went on again afterwards."""
    started = sorted((one for one in firings if one.outcome == Outcome.STARTED), key=lambda one: one.at)
    runs = Run.objects.in_bulk([one.run_id for one in started if one.run_id])
    jobs = Job.objects.defer("payload", "result").in_bulk([one.job_id for one in started if one.job_id])

    def work_of(firing: Firing) -> Job | Run | None:
        return jobs.get(firing.job_id or "") or runs.get(firing.run_id or "")

    for earlier, later in pairwise(started):
        before, after = work_of(earlier), work_of(later)
        if before is None or after is None or before.round > 1:
            continue
        if before.finished_at is None or before.finished_at > after.created_at + CLOCKS_APART:
            yield f"(16) {earlier} and {later} of {schedule}, which is {schedule.overlap}, ran at once"
        if later.due_at < earlier.due_at:
            yield f"(16) {earlier} of {schedule} started before {later}, which was due earlier"


def _unended(schedule: Schedule, firings: Sequence[Firing]) -> Iterator[str]:
    """In the end no firing waits, and each has the end of what it started."""
    for firing in firings:
        if firing.outcome == Outcome.WAITING and schedule.paused_from is None:
            yield f"(16) {firing} of {schedule} still waits"
        if firing.outcome != Outcome.STARTED:
            continue
        job = Job.objects.filter(id=firing.job_id or "", state__in=_FINAL_JOB)
        run = Run.objects.filter(id=firing.run_id or "").exclude(finished_at=None)
        for work in (job, run):
            state = work.values_list("state", flat=True).first()
            if state is not None and (firing.ended_at is None or firing.end_state != state):
                yield f"(16) {firing} of {schedule} is {state}, and ended as {firing.end_state or 'nothing'}"
