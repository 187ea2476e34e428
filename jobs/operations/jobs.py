"""Operations on existing jobs: cancel, retry or dismiss a dead letter, each also for all jobs that match a
filter (a bounded number per call), and change a waiting job's place in the queue.

by: the actor named in the audit entry, which is written in the operation's transaction; None when a client
acts on its own job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

import structlog
from django.db import transaction
from django.db.models import Case, Q, QuerySet, When

from foundation.database import statements
from gpus.errors import LeasingUnavailable
from gpus.registry import queries
from gpus.registry.audit import record
from jobs import transitions
from jobs.domain.errors import NotCancellable, NotDeadLetter, NotWaiting, RunWasCancelled
from jobs.domain.states import JobState
from jobs.execution import follow_ups
from jobs.execution.follow_ups import after_ends, remove_tickets
from jobs.limits.submit_limits import queue_deadline
from jobs.models import DEAD_LETTER, Attempt, Job
from jobs.ports import Ports
from jobs.reports.jobs import JobFilter
from jobs.transitions import WAITING, Ended

log = structlog.get_logger()

_of_id = statements.Read(
    lambda: Job.objects.defer("payload", "result").filter(id=statements.value(Job, "id"))
)


class CancelOutcome(StrEnum):
    CANCELLED = "cancelled"
    """The job was waiting, or was cancelled before."""
    REQUESTED = "requested"
    """The job is running: its worker stops it; it becomes CANCELLED once the GPU is proven free."""


def cancel_job(job_id: str, *, ports: Ports, by: str | None = None) -> CancelOutcome:
    """Cancel the job, or request the cancel of a running one. Idempotent.

    The ticket is removed first, so that no worker can start the job. A job whose ticket a worker already
    holds is treated as running, also if its row says otherwise. Without Redis the row alone decides: a later
    claim fails to start the job. Raises Job.DoesNotExist, NotCancellable.
    """
    outcome, ended = move_to_cancelled(job_id, ports, by=by)
    after_ends([ended], ports)
    if outcome is CancelOutcome.REQUESTED:
        ports.announce([job_id])
    return outcome


def slot_held_until(job_id: str) -> datetime | None:
    """Return the latest time at which the slot of a run that is being stopped is released: its start plus the
    model's run limit. None without a live attempt."""
    attempt = Attempt.objects.filter(job=job_id, state__in=Attempt.LIVE).only("model", "started_at").first()
    spec = queries.model_spec(attempt.model) if attempt else None
    if attempt is None or spec is None:
        return None
    return attempt.started_at + timedelta(seconds=spec.run_limit_seconds)


def move_to_cancelled(
    job_id: str, ports: Ports, *, by: str | None = None, by_operator: bool | None = None
) -> tuple[CancelOutcome, Ended]:
    """Do `cancel_job` without its announcements, which are left to the caller.

    by_operator: True if the job's page shows an operator's cancel; default: True if `by` is given. Returns
    the outcome and the end to announce.
    """
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
        if is_held and not requested:  # its attempt has ended meanwhile, and the job waits for the next one
            ended = transitions.end_cancelled(job_id, now, by_operator=by_operator)
        if ended.won or requested:
            record(by, "cancel_job", f"job:{job_id}")
    if requested:
        return CancelOutcome.REQUESTED, ended
    if ended.won or Job.objects.filter(id=job_id, state=JobState.CANCELLED).exists():
        return CancelOutcome.CANCELLED, ended
    raise NotCancellable()


def retry_dead_letter(job_id: str, *, ports: Ports, by: str | None = None) -> None:
    """Queue a dead letter again, in a new round with its own retry budget. Raises NotDeadLetter,
    RunWasCancelled."""
    letter = Job.objects.filter(DEAD_LETTER, id=job_id)
    follower = letter.exclude(followed_by=None).values_list("followed_by", flat=True).first()
    if follower is not None and not ports.retryable(letter).exists():
        run_id = follower.partition(":")[2]
        raise RunWasCancelled(
            f"The job is a part of run {run_id}, which was cancelled, and drops its result. Rerun it as a "
            "job of its own, or restart the run."
        )
    if not open_rounds([job_id], ports, by=by):
        raise NotDeadLetter()


def open_rounds(job_ids: Sequence[str], ports: Ports, *, by: str | None = None) -> int:
    """Queue those of these jobs that are dead letters again, each in its own short transaction; return how
    many."""
    opened = []

    def deadline(job: Job, start: datetime) -> datetime | None:
        return queue_deadline(job.tenant_id, job.model, start, ports)

    for job_id in job_ids:
        with transaction.atomic():
            job = transitions.requeue_failed(job_id, ports.clock.now(), queue_deadline=deadline)
            if job is not None:
                record(by, "retry_dead_letter", f"job:{job_id}", round=job.round)
                ports.reopened([job_id])
                opened.append(job)
    after_ends([Ended(won=True, job=job) for job in opened], ports)
    return len(opened)


def dismiss_dead_letter(job_id: str, *, ports: Ports, by: str | None = None) -> None:
    """Remove a job from the dead letters; its row stays until retention. Raises NotDeadLetter."""
    with transaction.atomic():
        if not transitions.dismiss([job_id], ports.clock.now()):
            raise NotDeadLetter()
        record(by, "dismiss_dead_letter", f"job:{job_id}")


def _remove_ticket_if_possible(job: Job, ports: Ports) -> bool:
    """Remove the job's ticket; False if a worker holds it. True without Redis, too."""
    try:
        return remove_tickets(job, ports)
    except LeasingUnavailable as error:
        log.warning("ticket_not_removed", job_id=job.id, error=str(error))
        return True


# -- bulk operations --------------------------------------------------------------------------------
#
# The audit entry with the jobs' ids is written first: it names them all even if the process dies halfway.
# Each job changes in its own short transaction; jobs that changed state meanwhile are skipped.

BULK_LIMIT = 1_000
"""Jobs per call, so that a request takes seconds; the caller repeats it while `remaining` is positive."""
_BATCH = 100


class BulkAction(StrEnum):
    CANCEL = "cancel_jobs"
    RETRY = "retry_jobs"
    DISMISS = "dismiss_jobs"


@dataclass(frozen=True, slots=True)
class BulkOutcome:
    """Result of a bulk call. done: jobs changed. remaining: jobs that still match; call again for them.
    refused: jobs that this call selected but that changed state before it reached them. entry: id of the
    audit entry that names the jobs."""

    done: int
    remaining: int
    refused: int
    entry: int | None = field(default=None, compare=False)


def count(chosen: JobFilter, action: BulkAction, ports: Ports) -> int:
    """Return how many jobs the action would change. Changes no job."""
    return _candidates(chosen, action, ports).count()


def cancel_jobs(chosen: JobFilter, *, by: str, ports: Ports, at_most: int = BULK_LIMIT) -> BulkOutcome:
    """Cancel matching jobs: first those that wait, then running ones, whose cancel is requested."""

    def cancel(job_ids: Sequence[str]) -> int:
        ended: list[Ended] = []
        requested: list[str] = []
        for job_id in job_ids:
            try:
                outcome, end = move_to_cancelled(job_id, ports, by_operator=True)
            except (NotCancellable, Job.DoesNotExist):
                continue
            ended.append(end)
            if outcome is CancelOutcome.REQUESTED:
                requested.append(job_id)
        after_ends(ended, ports)
        ports.announce(requested)
        return len(ended)

    return _in_batches(chosen, BulkAction.CANCEL, cancel, by, at_most, ports=ports)


def retry_jobs(chosen: JobFilter, *, by: str, ports: Ports, at_most: int = BULK_LIMIT) -> BulkOutcome:
    """Retry matching dead letters, but for those of cancelled runs. The oldest failures come first, so that a
    job which fails again at once does not keep later calls from reaching the others."""
    return _in_batches(
        chosen, BulkAction.RETRY, lambda job_ids: open_rounds(job_ids, ports), by, at_most, ports=ports
    )


def dismiss_jobs(chosen: JobFilter, *, by: str, ports: Ports, at_most: int = BULK_LIMIT) -> BulkOutcome:
    """Dismiss matching dead letters, the oldest failures first."""

    def dismiss(job_ids: Sequence[str]) -> int:
        with transaction.atomic():
            return transitions.dismiss(job_ids, ports.clock.now())

    return _in_batches(chosen, BulkAction.DISMISS, dismiss, by, at_most, ports=ports)


def _candidates(chosen: JobFilter, action: BulkAction, ports: Ports) -> QuerySet[Job]:
    if action is not BulkAction.CANCEL:
        letters = chosen.dead_letters().order_by("finished_at", "id")
        return ports.retryable(letters) if action is BulkAction.RETRY else letters
    unfinished = [state.value for state in (*WAITING, JobState.RUNNING)]
    requested = Q(state=JobState.RUNNING.value, cancel_requested_at__isnull=False)
    rows = chosen.rows().filter(~requested, state__in=unfinished)
    # waiting jobs first, so that a slot freed by a cancel is not leased to a job that is cancelled next
    return rows.order_by(Case(When(state=JobState.RUNNING.value, then=1), default=0), "id")


def _in_batches(
    chosen: JobFilter,
    action: BulkAction,
    act: Callable[[Sequence[str]], int],
    by: str,
    at_most: int,
    *,
    ports: Ports,
) -> BulkOutcome:
    candidates = _candidates(chosen, action, ports)
    job_ids = list(candidates.values_list("id", flat=True)[:at_most])
    if not job_ids:
        return BulkOutcome(0, 0, 0)
    details = {"filter": chosen.as_json(), "jobs": len(job_ids), "job_ids": job_ids}
    entry = record(by, action.value, "jobs:filter", **details)
    done = sum(act(batch) for batch in _batches(job_ids))
    return BulkOutcome(done, candidates.count(), len(job_ids) - done, entry.pk if entry else None)


def _batches(job_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (job_ids[at : at + _BATCH] for at in range(0, len(job_ids), _BATCH))


# -- the place in the queue -------------------------------------------------------------------------
#
# The ticket is removed first, so that no worker starts the job while its row changes; then a new one is
# pushed from the row. After a crash in between, the sweep `reconcile` pushes the missing ticket.

FIRST_PRIORITY, LAST_PRIORITY = 1, 9
_MAX_TRIES = 5


def change_priority(job_id: str, priority: int, *, by: str, ports: Ports) -> Job:
    """Change a waiting job's priority; among jobs of the new priority it is ordered by its time of submit.

    priority: 1 (first) to 9. Returns the row. Raises ValueError, Job.DoesNotExist, NotWaiting,
    LeasingUnavailable.
    """
    if not FIRST_PRIORITY <= priority <= LAST_PRIORITY:
        raise ValueError(f"a priority is a number from {FIRST_PRIORITY} to {LAST_PRIORITY}, not {priority}")
    return _change(job_id, lambda job: (priority, job.place_us), "change_priority", by, ports)


def run_next(job_id: str, *, by: str, ports: Ports) -> Job:
    """Give a waiting job priority 1 and a place before all other jobs that wait in its pool.

    It runs before its tenant's other jobs, in a FIFO pool before all jobs, within the highest band that its
    tenant was granted. In a fair pool it still waits for its tenant's turn among tenants with urgent jobs,
    and a waiting lower band gets 1 of 16 GPU-seconds (`gpus/leasing/lua/includes/shares.lua`). The last call
    wins. Returns the row. Raises Job.DoesNotExist, NotWaiting, LeasingUnavailable.
    """
    return _change(job_id, _first_in_queue, "run_next", by, ports)


def _change(job_id: str, place: Callable[[Job], tuple[int, int]], action: str, by: str, ports: Ports) -> Job:
    """Move a waiting job. place: returns the new priority and place (microseconds); called again if the row
    changed meanwhile."""
    for _ in range(_MAX_TRIES):
        job = Job.objects.defer("payload", "result").get(id=job_id)
        if job.state not in WAITING or job.cancel_requested_at is not None:
            raise NotWaiting()
        priority, place_us = place(job)
        if (priority, place_us) == (job.priority, job.place_us):
            return job
        try:
            if job.state == JobState.QUEUED and not remove_tickets(job, ports):
                raise NotWaiting("The job does not wait any more: a worker is starting it.")
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
    raise NotWaiting("The job changed at the same time. Repeat the request.")


def _first_in_queue(job: Job) -> tuple[int, int]:
    others = Job.objects.filter(pool=job.pool).exclude(id=job.id).order_by("place_us")
    places = others.values_list("place_us", flat=True)
    # one query per state: each reads the first entry of an index
    first = [places.filter(state=state.value).first() for state in WAITING]
    return FIRST_PRIORITY, min([job.place_us, *(place - 1 for place in first if place is not None)])
