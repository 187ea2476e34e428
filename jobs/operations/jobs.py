"""Operations on one job: cancel it, retry or dismiss a dead letter. `bulk` has the same for all jobs that
match a filter, `queue_position` moves a waiting job.

by: the actor named in the audit entry, which is written in the operation's transaction; None when a client
acts on its own job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

import structlog
from django.db import transaction

from foundation.database import statements
from gpus.errors import LeasingUnavailable
from gpus.registry import queries
from gpus.registry.audit import record
from jobs import transitions
from jobs.domain.errors import NotCancellable, NotDeadLetter, RunWasCancelled
from jobs.domain.states import JobState
from jobs.execution.follow_ups import after_ends, remove_tickets
from jobs.limits.submit_limits import queue_deadline
from jobs.models import DEAD_LETTER, Attempt, Job
from jobs.ports import Ports
from jobs.transitions import Ended

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


def cancel_each(job_ids: Iterable[str], *, ports: Ports, by_operator: bool = False) -> int:
    """Do `cancel_job` for each of these jobs, in a short transaction of its own and without an audit entry.
    Return how many; jobs that have ended meanwhile are not counted."""
    ended, requested = list[Ended](), list[str]()
    for job_id in job_ids:
        try:
            outcome, end = move_to_cancelled(job_id, ports, by_operator=by_operator)
        except (NotCancellable, Job.DoesNotExist):
            continue
        ended.append(end)
        if outcome is CancelOutcome.REQUESTED:
            requested.append(job_id)
    after_ends(ended, ports)
    ports.announce(requested)
    return len(ended)


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
