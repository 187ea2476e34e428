"""What follows the end of an attempt outside its transaction: the announcement, the callback hint, tickets of
jobs that wait again, and releases that Redis did not take. All of it may be repeated, and what fails here is
repaired by the sweeps.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from django.conf import settings
from django.db import DatabaseError, connection, transaction

from foundation.database import statements
from gpus.errors import LeasingUnavailable, Verdict
from gpus.leasing.contract import Leases
from gpus.leasing.keeper import LeaseKeeper
from gpus.protocol import Lease, LeaseRef, ModelSpec, ReleaseMode, Ticket
from jobs import transitions
from jobs.domain.retry import RetryPolicy
from jobs.domain.states import JobState
from jobs.models import Job
from jobs.ports import Ports
from jobs.submission.submit import push_later
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


@dataclass(frozen=True, slots=True)
class PendingRelease:
    leases: Leases
    lease: Lease
    mode: ReleaseMode
    gpu_seconds: float
    next_attempt_id: str | None = None
    verdict: Verdict = Verdict.NOTHING
    begun: Lease | None = None


class ReleaseRetries:
    """Retries of releases that Redis did not answer (each is idempotent), and the tickets to push after them:
    a ticket of a job that is still held would be refused. worker: the name that the leases are held under."""

    def __init__(self, ports: Ports, keeper: LeaseKeeper, *, worker: str) -> None:
        self._ports, self._keeper, self._worker = ports, keeper, worker
        self._pending: dict[LeaseRef, PendingRelease] = {}
        self._held: dict[LeaseRef, list[str]] = {}
        self._lock = threading.Lock()

    def __contains__(self, ref: LeaseRef) -> bool:
        return ref in self._pending

    def add(self, late: PendingRelease) -> None:
        self._pending[late.lease.ref] = late

    def push_after(self, ref: LeaseRef, job_id: str) -> None:
        """Push the job's ticket once this lease is released; at once if it is."""
        with self._lock:
            if ref in self._pending:
                self._held.setdefault(ref, []).append(job_id)
                return
        self._push(job_id)

    def retry_slot(self, slot: str) -> None:
        """Retry the slot's pending releases, before a later run of it is released: Redis must get them in
        order. Raises LeasingUnavailable."""
        for late in list(self._pending.values()):
            if late.lease.slot == slot:
                self._release(late)

    def retry_all(self) -> None:
        """Retry all pending releases (the watcher calls it)."""
        waiting: set[str] = set()
        for late in list(self._pending.values()):
            if late.lease.slot in waiting:
                continue
            try:
                self._release(late)
            except LeasingUnavailable:
                waiting.add(late.lease.slot)

    def _release(self, late: PendingRelease) -> None:
        following = late.leases.release(
            late.lease.ref,
            late.mode,
            worker=self._worker,
            gpu_seconds=late.gpu_seconds,
            next_attempt_id=late.next_attempt_id,
            verdict=late.verdict,
            begun=late.begun,
        )
        if following is not None:  # its thread has gone on: nothing ran under this lease
            late.leases.release(following.ref, ReleaseMode.FREE, worker=self._worker, gpu_seconds=0.0)
        with self._lock:
            self._pending.pop(late.lease.ref, None)
            held = self._held.pop(late.lease.ref, [])
        if late.mode is ReleaseMode.FREE:
            self._keeper.forget(late.lease.ref)
        if following is not None:
            held.append(following.job_id)
        for job_id in held:
            self._push(job_id)

    def _push(self, job_id: str) -> None:
        """A database that is away must keep no run's end from Redis; the reconciler finds the job."""
        try:
            push_waiting(job_id, self._ports)
        except DatabaseError as error:
            log.warning("not_pushed", job_id=job_id, error=str(error).strip())
            connection.close()
