"""What clients and operators do to jobs that exist: cancel, retry a dead letter, dismiss it; the same to all
that match a filter, a bounded number per call; and change where a waiting job stands in line.

by: who an audit entry names, in the transaction of the deed; None where a client deals with its own job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial

import structlog
from django.db import transaction
from django.db.models import Case, Q, QuerySet, When

from foundation.database import statements
from gpus.errors import LeasingUnavailable
from gpus.registry import queries
from gpus.registry.audit import record
from jobs import transitions
from jobs.domain.errors import NotCancellable, NotDeadLetter, NotWaiting
from jobs.domain.states import JobState
from jobs.execution import follow_ups
from jobs.execution.follow_ups import after_ends, remove_tickets
from jobs.limits.submit_limits import queue_deadline_of
from jobs.models import Attempt, Job
from jobs.ports import Ports
from jobs.reports.jobs import JobFilter
from jobs.transitions import WAITING, Ended

log = structlog.get_logger()

_of_id = statements.Read(
    lambda: Job.objects.defer("payload", "result").filter(id=statements.value(Job, "id"))
)


class CancelOutcome(StrEnum):
    CANCELLED = "cancelled"
    """It was waiting and is out of the line for good."""
    REQUESTED = "requested"
    """It is running: its worker stops it at the GPU; it is CANCELLED once the GPU is proven free."""


def cancel_job(job_id: str, *, ports: Ports, by: str | None = None) -> CancelOutcome:
    """Raises Job.DoesNotExist, NotCancellable. Asked twice, it answers the same.

    The ticket goes first: with it gone, no worker can start the job. A ticket that a worker holds already is
    running, whatever the row says yet. Without Redis the database alone decides: a claim that comes later
    loses its start.
    """
    outcome, ended = move_to_cancelled(job_id, ports, by=by)
    after_ends([ended], ports)
    if outcome is CancelOutcome.REQUESTED:
        ports.announce([job_id])
    return outcome


def slot_held_until(job_id: str) -> datetime | None:
    """When the slot of a run that is being stopped is given back at the latest, whatever its server says: the
    model's run limit. None: no attempt is live."""
    attempt = Attempt.objects.filter(job=job_id, state__in=Attempt.LIVE).only("model", "started_at").first()
    spec = queries.model_spec(attempt.model) if attempt else None
    if attempt is None or spec is None:
        return None
    return attempt.started_at + timedelta(seconds=spec.run_limit_seconds)


def move_to_cancelled(
    job_id: str, ports: Ports, *, by: str | None = None, by_operator: bool | None = None
) -> tuple[CancelOutcome, Ended]:
    """`cancel_job` without telling anybody: that is the caller's. by_operator: whose cancel the job shows
    where the audit has an entry for many jobs; None: an operator's where `by` names one."""
    by_operator = by is not None if by_operator is None else by_operator
    job: Job | None = _of_id.first(id=job_id)
    if job is None:
        raise Job.DoesNotExist
    if job.state == JobState.CANCELLED:
        return CancelOutcome.CANCELLED, Ended(won=False)
    is_held = job.state == JobState.QUEUED and not _remove_ticket_if_possible(job, ports)
    now = ports.clock.now()
    with transaction.atomic():
        ended = Ended(won=False)
        if not is_held:
            ended = transitions.end_cancelled(job_id, now, by_operator=by_operator)
        requested = not ended.won and transitions.request_cancel(job_id, now, by_operator=by_operator)
        if is_held and not requested:  # its attempt has ended since, and it waits for the next one
            ended = transitions.end_cancelled(job_id, now, by_operator=by_operator)
        if ended.won or requested:
            record(by, "cancel_job", f"job:{job_id}")
    if requested:
        return CancelOutcome.REQUESTED, ended
    if ended.won or Job.objects.filter(id=job_id, state=JobState.CANCELLED).exists():
        return CancelOutcome.CANCELLED, ended
    raise NotCancellable()


def retry_dead_letter(job_id: str, *, ports: Ports, by: str | None = None) -> None:
    """Opens a new round with its own budget. Raises NotDeadLetter."""
    if not open_rounds([job_id], ports, by=by):
        raise NotDeadLetter()


def open_rounds(job_ids: Sequence[str], ports: Ports, *, by: str | None = None) -> int:
    """How many of these were dead letters and wait again, each in its own short transaction."""
    opened = []
    deadline = partial(queue_deadline_of, ports=ports)
    for job_id in job_ids:
        with transaction.atomic():
            job = transitions.requeue_failed(job_id, ports.clock.now(), queue_deadline=deadline)
            if job is not None:
                record(by, "retry_dead_letter", f"job:{job_id}", round=job.round)
                opened.append(job)
    after_ends([Ended(won=True, job=job) for job in opened], ports)
    return len(opened)


def dismiss_dead_letter(job_id: str, *, ports: Ports, by: str | None = None) -> None:
    """Takes a job off the dead letters; its row stays until retention. Raises NotDeadLetter."""
    with transaction.atomic():
        if not transitions.dismiss([job_id], ports.clock.now()):
            raise NotDeadLetter()
        record(by, "dismiss_dead_letter", f"job:{job_id}")


def _remove_ticket_if_possible(job: Job, ports: Ports) -> bool:
    """False: a worker holds it."""
    try:
        return remove_tickets(job, ports)
    except LeasingUnavailable as error:
        log.warning("ticket_not_removed", job_id=job.id, error=str(error))
        return True


# -- all that match a filter ------------------------------------------------------------------------
#
# Each call leaves one audit entry with the jobs' ids, written before the first deed: who dies in the middle
# has still said what it was about to do. Each job moves in its own short transaction; one that moved on
# meanwhile is left alone.

AT_MOST = 1_000
"""A request takes seconds, not minutes; whoever means more asks again."""
_BATCH = 100


class BulkAction(StrEnum):
    CANCEL = "cancel_jobs"
    RETRY = "retry_jobs"
    DISMISS = "dismiss_jobs"


@dataclass(frozen=True, slots=True)
class BulkOutcome:
    """refused: chosen by this call, and moved on before it came to them. remaining: match and are left; ask
    again for them."""

    done: int
    remaining: int
    refused: int


def count(chosen: JobFilter, deed: BulkAction | None = None) -> int:
    """How many the deed would be done to; without one, how many match. Does nothing."""
    return (chosen.rows() if deed is None else _candidates(chosen, deed)).count()


def cancel_jobs(chosen: JobFilter, *, by: str, ports: Ports, at_most: int = AT_MOST) -> BulkOutcome:
    """Those that wait are cancelled, first of all; those that run are asked to stop."""

    def cancel(job_ids: Sequence[str]) -> int:
        ended: list[Ended] = []
        asked: list[str] = []
        for job_id in job_ids:
            try:
                outcome, end = move_to_cancelled(job_id, ports, by_operator=True)
            except (NotCancellable, Job.DoesNotExist):
                continue
            ended.append(end)
            if outcome is CancelOutcome.REQUESTED:
                asked.append(job_id)
        after_ends(ended, ports)
        ports.announce(asked)
        return len(ended)

    return _in_batches(chosen, BulkAction.CANCEL, cancel, by, at_most)


def retry_jobs(chosen: JobFilter, *, by: str, ports: Ports, at_most: int = AT_MOST) -> BulkOutcome:
    """Dead letters only. Those that failed longest ago come first, so that one which fails again at once does
    not stand in the way of the others."""
    return _in_batches(chosen, BulkAction.RETRY, lambda job_ids: open_rounds(job_ids, ports), by, at_most)


def dismiss_jobs(chosen: JobFilter, *, by: str, ports: Ports, at_most: int = AT_MOST) -> BulkOutcome:
    """Dead letters only, those that failed longest ago first."""

    def dismiss(job_ids: Sequence[str]) -> int:
        with transaction.atomic():
            return transitions.dismiss(job_ids, ports.clock.now())

    return _in_batches(chosen, BulkAction.DISMISS, dismiss, by, at_most)


def _candidates(chosen: JobFilter, deed: BulkAction) -> QuerySet[Job]:
    if deed is not BulkAction.CANCEL:
        return chosen.dead_letters().order_by("finished_at", "id")
    unfinished = [state.value for state in (*WAITING, JobState.RUNNING)]
    asked = Q(state=JobState.RUNNING.value, cancel_requested_at__isnull=False)
    rows = chosen.rows().filter(~asked, state__in=unfinished)
    # what waits goes first, so that no slot which a cancel frees is given to a job to be cancelled
    return rows.order_by(Case(When(state=JobState.RUNNING.value, then=1), default=0), "id")


def _in_batches(
    chosen: JobFilter, deed: BulkAction, act: Callable[[Sequence[str]], int], by: str, at_most: int
) -> BulkOutcome:
    candidates = _candidates(chosen, deed)
    job_ids = list(candidates.values_list("id", flat=True)[:at_most])
    if not job_ids:
        return BulkOutcome(0, 0, 0)
    record(by, deed.value, "jobs:filter", filter=chosen.as_json(), jobs=len(job_ids), job_ids=job_ids)
    done = sum(act(batch) for batch in _batches(job_ids))
    return BulkOutcome(done, candidates.count(), len(job_ids) - done)


def _batches(job_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (job_ids[at : at + _BATCH] for at in range(0, len(job_ids), _BATCH))


# -- the place in line ------------------------------------------------------------------------------
#
# The ticket leaves the line first: with it gone nobody can start the job, so that the row changes under no
# worker's hands. Then the row, then the new ticket, made from the row. Whoever dies in between leaves a
# waiting job without a ticket, which the reconciler finds.

FIRST_PRIORITY, LAST_PRIORITY = 1, 9
_RACES = 5


def change_priority(job_id: str, priority: int, *, by: str, ports: Ports) -> Job:
    """Its place stays: among jobs of the new priority it stands by the time at which it came. Returns the
    row. Raises ValueError (priority is 1 to 9), Job.DoesNotExist, NotWaiting, LeasingUnavailable."""
    if not FIRST_PRIORITY <= priority <= LAST_PRIORITY:
        raise ValueError(f"a priority is a number from {FIRST_PRIORITY} to {LAST_PRIORITY}, not {priority}")
    return _change(job_id, lambda job: (priority, job.place_us), "change_priority", by, ports)


def run_next(job_id: str, *, by: str, ports: Ports) -> Job:
    """Priority 1, and a place before every other job that waits in its pool: so it goes before all others of
    its tenant, and in a FIFO pool before everybody, both in the highest band that its tenant was granted.
    In a fair pool it waits for its tenant's turn among those
    who have urgent jobs, and a lower band gets its sixteenth dispatch. Of two, the one asked for last goes
    first. Returns the row. Raises Job.DoesNotExist, NotWaiting, LeasingUnavailable."""
    return _change(job_id, _before_all_others, "run_next", by, ports)


def _change(job_id: str, wanted: Callable[[Job], tuple[int, int]], action: str, by: str, ports: Ports) -> Job:
    """wanted: priority and place. A row that changed meanwhile is looked at again."""
    for _ in range(_RACES):
        job = Job.objects.defer("payload", "result").get(id=job_id)
        if job.state not in WAITING or job.cancel_requested_at is not None:
            raise NotWaiting()
        priority, place_us = wanted(job)
        if (priority, place_us) == (job.priority, job.place_us):
            return job
        try:
            if job.state == JobState.QUEUED and not remove_tickets(job, ports):
                raise NotWaiting("The job is being started: a worker has its ticket.")
            with transaction.atomic():
                moved = transitions.change_place(job, priority, place_us, ports.clock.now())
                if moved is not None:
                    record(by, action, f"job:{job_id}", priority=priority, before=job.priority)
        finally:
            if job.state == JobState.QUEUED:
                follow_ups.push_waiting(job_id, ports)
        if moved is not None:
            ports.announce([job_id])
            return moved
    raise NotWaiting("The job moves faster than it could be asked to wait elsewhere: ask again.")


def _before_all_others(job: Job) -> tuple[int, int]:
    others = Job.objects.filter(pool=job.pool).exclude(id=job.id).order_by("place_us")
    places = others.values_list("place_us", flat=True)
    first = [places.filter(state=state.value).first() for state in WAITING]  # each by the index of the line
    return FIRST_PRIORITY, min([job.place_us, *(place - 1 for place in first if place is not None)])
