"""The end of an attempt: written first, then told. Everything here follows a commit and may be repeated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import structlog
from django.conf import settings
from django.db import transaction

from foundation.database import statements
from gpus.errors import LeasingUnavailable
from gpus.protocol import ModelSpec, Ticket
from jobs import transitions
from jobs.domain.retry import RetryPolicy
from jobs.domain.states import JobState
from jobs.models import Job
from jobs.ports import Ports
from jobs.submission.enqueue_retries import push_later
from jobs.transitions import Ended

log = structlog.get_logger()

waiting_job = statements.Read(
    lambda: Job.objects.filter(id=statements.value(Job, "id"), state=JobState.QUEUED.value).defer(
        "payload", "result"
    )
)


def policy_for(spec: ModelSpec, max_retries: int | None) -> RetryPolicy:
    """max_retries: the job's own, or None for the model's."""
    knobs = settings.DISPATCHER
    return RetryPolicy(
        max_retries=spec.max_retries if max_retries is None else max_retries,
        base_seconds=knobs.retry_base_seconds,
        cap_seconds=knobs.retry_cap_seconds,
        jitter=knobs.retry_jitter,
        free_connects=knobs.free_connect_tries,
        poison_deaths=knobs.poison_deaths,
        same_failures=knobs.same_failures,
        free_attempts=knobs.free_attempts,
        at_most_once=spec.at_most_once,
    )


def after_end(ended: Ended, ports: Ports) -> None:
    """For one committed end (sweeps, operators)."""
    after_ends([ended], ports)


def after_ends(ends: Sequence[Ended], ports: Ports) -> None:
    """Tells listeners, hands callbacks on, and puts jobs that stand QUEUED again back into the line. What
    fails here is repaired: the reconciler pushes tickets, the outbox sweep finds callbacks."""
    won = [ended for ended in ends if ended.won and ended.job is not None]
    ports.announce([ended.job.id for ended in won if ended.job is not None])
    ports.wake_callbacks([ended.callback_id for ended in won if ended.callback_id])
    again: dict[tuple[str, str], list[Ticket]] = defaultdict(list)
    for ended in won:
        if ended.job is not None and ended.job.state == JobState.QUEUED:
            again[ended.job.fleet, ended.job.pool].append(ended.job.ticket)
    for (fleet, pool), tickets in again.items():
        push_tickets(fleet, pool, tickets, ports)


def push_tickets(fleet: str, pool: str, tickets: Sequence[Ticket], ports: Ports) -> None:
    """Best effort: what Redis does not take is tried again every second, and found by the reconciler."""
    try:
        pushed = ports.leases(fleet).push(pool, tickets)
    except LeasingUnavailable as error:
        log.warning("push_failed", pool=pool, tickets=len(tickets), error=str(error))
        push_later(fleet, pool, tickets, ports)
        return
    ports.send_wakes(pushed.wakes)


def push_waiting(job_id: str, ports: Ports) -> None:
    """Back into the line if it still waits: a lease that came to nothing took its ticket. A job whose cancel
    was asked for meanwhile ends instead."""
    job: Job | None = waiting_job.first(id=job_id)
    if job is None:
        return
    if job.cancel_requested_at is None:
        push_tickets(job.fleet, job.pool, [job.ticket], ports)
        return
    try:
        cancel_waiting(job, ports)
    except LeasingUnavailable as error:
        log.warning("cancel_left_to_the_sweep", job_id=job_id, error=str(error))


def remove_tickets(job: Job, ports: Ports) -> bool:
    """The ticket of a QUEUED job leaves the line. False: a worker holds it. Raises LeasingUnavailable."""
    leases = ports.leases(job.fleet)
    leases.remove(job.pool, job.ticket)
    # asked whatever was removed: of two tickets a worker may have the other one
    return not leases.has_tickets(job.pool, [job.ticket])[0]


def cancel_waiting(job: Job, ports: Ports) -> bool:
    """Ends a QUEUED job whose cancel was asked for while a worker held its ticket. False: one holds it still,
    or the job moved on. Raises LeasingUnavailable."""
    if not remove_tickets(job, ports):
        return False
    with transaction.atomic():
        ended = transitions.end_cancelled(job.id, ports.clock.now(), by_operator=job.cancelled_by_operator)
    after_end(ended, ports)
    return ended.won
