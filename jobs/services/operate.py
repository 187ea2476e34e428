"""What clients and operators do to a job that exists: cancel, retry a dead letter, dismiss it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import structlog
from django.db import transaction
from django.db.models import QuerySet

from gpus.errors import LeasingUnavailable
from jobs import transitions
from jobs.errors import CANCELLED, NotCancellable, NotDeadLetter
from jobs.models import Job
from jobs.services.finish import after_end, push_tickets
from jobs.services.ports import Ports
from jobs.states import JobState
from jobs.transitions import Ended

log = structlog.get_logger()

_BULK = 500


class CancelOutcome(StrEnum):
    CANCELLED = "cancelled"
    """It was waiting and is out of the line for good."""
    REQUESTED = "requested"
    """It is running: its worker stops it at the GPU; it is CANCELLED once the GPU is proven free."""


def cancel_job(job_id: str, *, ports: Ports) -> CancelOutcome:
    """Raises Job.DoesNotExist, NotCancellable. Asked twice, it answers the same.

    The ticket goes first: with it gone, no worker can start the job. A ticket that a worker holds already is
    running, whatever the row says yet. Without Redis the database alone decides: a claim that comes later
    loses its start.
    """
    job = Job.objects.defer("payload", "result").get(id=job_id)
    if job.state == JobState.CANCELLED:
        return CancelOutcome.CANCELLED
    is_held = job.state == JobState.QUEUED and not _take_out_of_line(job, ports)
    now = ports.clock.now()
    with transaction.atomic():
        ended = Ended(won=False)
        if not is_held:
            ended = transitions.end_waiting(
                job_id, JobState.CANCELLED, now, code=CANCELLED, message="Cancelled on request."
            )
        requested = not ended.won and transitions.request_cancel(job_id, now)
    if ended.won:
        after_end(ended, ports)
        return CancelOutcome.CANCELLED
    if requested:
        ports.announce([job_id])
        return CancelOutcome.REQUESTED
    if Job.objects.filter(id=job_id, state=JobState.CANCELLED).exists():
        return CancelOutcome.CANCELLED
    raise NotCancellable()


def retry_dead_letter(job_id: str, *, ports: Ports) -> None:
    """Opens a new round with its own budget. Raises NotDeadLetter."""
    with transaction.atomic():
        job = transitions.open_round(job_id, ports.clock.now())
    if job is None:
        raise NotDeadLetter()
    ports.announce([job_id])
    push_tickets(job.fleet, job.pool, [job.ticket], ports)


def retry_dead_letters(jobs: QuerySet[Job], *, ports: Ports) -> int:
    """Each in its own short transaction; returns how many were retried."""
    count = 0
    for job_id in _dead_letter_ids(jobs):
        try:
            retry_dead_letter(job_id, ports=ports)
            count += 1
        except NotDeadLetter:
            continue  # somebody else was first
    return count


def dismiss_dead_letter(job_id: str, *, ports: Ports) -> None:
    """Takes a job off the dead letters; its row stays until retention. Raises NotDeadLetter."""
    with transaction.atomic():
        dismissed = transitions.dismiss(job_id, ports.clock.now())
    if not dismissed:
        raise NotDeadLetter()


def _take_out_of_line(job: Job, ports: Ports) -> bool:
    """False: a worker holds it."""
    leases = ports.leases(job.fleet)
    try:
        return leases.remove(job.pool, job.ticket) or not leases.has_tickets(job.pool, [job.ticket])[0]
    except LeasingUnavailable as error:
        log.warning("ticket_not_removed", job_id=job.id, error=str(error))
        return True


def _dead_letter_ids(jobs: QuerySet[Job]) -> Iterable[str]:
    """Pages by id, so that a long list is neither held in memory nor shifted by what is retried."""
    last = ""
    while True:
        page = list(
            jobs.filter(state=JobState.FAILED, dismissed_at__isnull=True, id__gt=last)
            .order_by("id")
            .values_list("id", flat=True)[:_BULK]
        )
        if not page:
            return
        yield from page
        last = page[-1]
