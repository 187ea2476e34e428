"""What clients and operators do to a job that exists: cancel, retry a dead letter, dismiss it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import structlog
from django.db import transaction
from django.db.models import QuerySet

from gpus.errors import LeasingUnavailable
from jobs import transitions
from jobs.errors import CANCELLED, NotCancellable, NotDeadLetter
from jobs.models import Job
from jobs.services.finish import after_end, after_ends
from jobs.services.ports import Ports
from jobs.states import JobState
from jobs.transitions import Ended

log = structlog.get_logger()

RETRIES_PER_CALL = 1_000
"""A request takes seconds, not minutes; whoever has more dead letters asks again."""
_BULK = 100


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
    job = _open_round(job_id, ports)
    if job is None:
        raise NotDeadLetter()
    after_end(Ended(won=True, job=job), ports)


@dataclass(frozen=True, slots=True)
class Retried:
    """remaining: dead letters that match and were not retried by this call."""

    retried: int
    remaining: int


def retry_dead_letters(jobs: QuerySet[Job], *, ports: Ports, at_most: int = RETRIES_PER_CALL) -> Retried:
    """Each in its own short transaction; ask again for what remains. Those that failed longest ago come
    first, so that one which fails again at once does not stand in the way of the others."""
    letters = jobs.filter(state=JobState.FAILED, dismissed_at__isnull=True)
    ids = list(letters.order_by("finished_at", "id").values_list("id", flat=True)[:at_most])
    retried = 0
    for at in range(0, len(ids), _BULK):
        opened = [job for job_id in ids[at : at + _BULK] if (job := _open_round(job_id, ports)) is not None]
        after_ends([Ended(won=True, job=job) for job in opened], ports)
        retried += len(opened)
    return Retried(retried, letters.count())


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


def _open_round(job_id: str, ports: Ports) -> Job | None:
    """None: it is no dead letter (any more)."""
    with transaction.atomic():
        return transitions.open_round(job_id, ports.clock.now())
