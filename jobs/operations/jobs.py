"""What clients and operators do to a job that exists: cancel, retry a dead letter, dismiss it.

by: who an audit entry names, in the transaction of the deed; None where a client deals with its own job.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial

import structlog
from django.db import transaction

from foundation.database import statements
from gpus.errors import LeasingUnavailable
from gpus.registry import queries as registry
from gpus.registry.audit import record
from jobs import transitions
from jobs.domain.errors import NotCancellable, NotDeadLetter
from jobs.domain.states import JobState
from jobs.execution.follow_ups import after_ends, remove_tickets
from jobs.limits.submit_limits import queue_deadline_of
from jobs.models import Attempt, Job
from jobs.ports import Ports
from jobs.transitions import Ended

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
    spec = registry.model_spec(attempt.model) if attempt else None
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
            job = transitions.open_round(job_id, ports.clock.now(), queue_deadline=deadline)
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
