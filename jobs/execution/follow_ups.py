"""Follow-ups of an attempt's committed end: the announcement, the callback hint, tickets of requeued jobs,
and retries of releases that Redis did not answer.

All of it is idempotent, and the sweeps repair what fails here.
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
from jobs.domain.states import JobState, is_final
from jobs.models import Job
from jobs.ports import Ports
from jobs.submission.submit import push_again
from jobs.transitions import Ended

log = structlog.get_logger()

waiting_job = statements.Read(
    lambda: Job.objects.filter(id=statements.value(Job, "id"), state=JobState.QUEUED.value).defer(
        "payload", "result"
    )
)


def policy_for(spec: ModelSpec, max_retries: int | None) -> RetryPolicy:
    """Return the retry policy of a job. max_retries: the job's own; None: the model's."""
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
    """`after_ends` for one end (sweeps, operators)."""
    after_ends([ended], ports)


def after_ends(ends: Sequence[Ended], ports: Ports) -> None:
    """Announce the jobs of committed ends, send hints for their callbacks, and push tickets of requeued jobs.

    Best effort: the reconciler pushes missing tickets, and the `due_callbacks` sweep finds callbacks.
    """
    won = [ended for ended in ends if ended.won and ended.job is not None]
    ports.announce([ended.job.id for ended in won if ended.job is not None])
    ports.wake_callbacks([ended.callback_id for ended in won if ended.callback_id])
    wake_followers([ended.job for ended in won if ended.job is not None], ports)
    again: dict[tuple[str, str], list[Ticket]] = defaultdict(list)
    for ended in won:
        if ended.job is not None and ended.job.state == JobState.QUEUED:
            again[ended.job.fleet, ended.job.pool].append(ended.job.ticket)
    for (fleet, pool), tickets in again.items():
        push_tickets(fleet, pool, tickets, ports)


def wake_followers(jobs: Sequence[Job], ports: Ports) -> None:
    """Send a hint to the followers of those jobs that have ended."""
    followers = sorted({job.followed_by for job in jobs if job.followed_by and is_final(job.state)})
    if followers:
        ports.wake_followers(followers)


def push_tickets(fleet: str, pool: str, tickets: Sequence[Ticket], ports: Ports) -> None:
    """Push tickets and send the wakes. Best effort: if Redis is away, they are pushed again every second, and
    the reconciler finds them."""
    try:
        pushed = ports.leases(fleet).push(pool, tickets)
    except LeasingUnavailable as error:
        log.warning("push_failed", pool=pool, tickets=len(tickets), error=str(error))
        push_again(fleet, pool, tickets, ports)
        return
    ports.send_wakes(pushed.wakes)


def push_waiting(job_id: str, ports: Ports) -> None:
    """Push the ticket of a job that is still queued, after a lease under which it did not run. If its cancel
    was requested meanwhile, end it as cancelled instead."""
    job: Job | None = waiting_job.first(id=job_id)
    if job is None:
        return
    if job.cancel_requested_at is None:
        push_tickets(job.fleet, job.pool, [job.ticket], ports)
        return
    try:
        cancel_waiting(job, ports)
    except LeasingUnavailable as error:
        log.warning("cancel_left_to_sweep", job_id=job_id, error=str(error))


def remove_tickets(job: Job, ports: Ports) -> bool:
    """Remove the tickets of a queued job from its pool. Return False if a worker holds one. Raises
    LeasingUnavailable."""
    leases = ports.leases(job.fleet)
    leases.remove(job.pool, job.ticket)
    # also after a removal: of two tickets a worker may hold the other one
    return not leases.has_tickets(job.pool, [job.ticket])[0]


def cancel_waiting(job: Job, ports: Ports) -> bool:
    """End a queued job as cancelled; its cancel was requested while a worker held its ticket.

    Returns False if a worker still holds it, or the job is not queued any more. Raises LeasingUnavailable.
    """
    if not remove_tickets(job, ports):
        return False
    with transaction.atomic():
        ended = transitions.end_cancelled(job.id, ports.clock.now(), by_operator=job.cancelled_by_operator)
    after_end(ended, ports)
    return ended.won


@dataclass(frozen=True, slots=True)
class PendingRelease:
    """A release that Redis did not answer; the fields are the arguments of `Leases.release`."""

    leases: Leases
    lease: Lease
    mode: ReleaseMode
    gpu_seconds: float
    next_attempt_id: str | None = None
    verdict: Verdict = Verdict.NOTHING
    begun: Lease | None = None


class ReleaseRetries:
    """Retries releases that Redis did not answer (each is idempotent), and pushes tickets after them: the
    ticket of a job that is still leased would be refused.

    worker: the name under which the leases are held.
    """

    def __init__(self, ports: Ports, keeper: LeaseKeeper, *, worker: str) -> None:
        self._ports, self._keeper, self._worker = ports, keeper, worker
        self._pending: dict[LeaseRef, PendingRelease] = {}
        self._held: dict[LeaseRef, list[str]] = {}
        self._lock = threading.Lock()

    def __contains__(self, ref: LeaseRef) -> bool:
        return ref in self._pending

    def add(self, pending: PendingRelease) -> None:
        """Retry this release from now on."""
        self._pending[pending.lease.ref] = pending

    def push_after(self, ref: LeaseRef, job_id: str) -> None:
        """Push the job's ticket once this lease is released; at once if it is already."""
        with self._lock:
            if ref in self._pending:
                self._held.setdefault(ref, []).append(job_id)
                return
        self._push(job_id)

    def retry_slot(self, slot: str) -> None:
        """Retry the slot's pending releases; call it before the next release of the slot, since Redis must
        get them in order. Raises LeasingUnavailable."""
        for pending in list(self._pending.values()):
            if pending.lease.slot == slot:
                self._release(pending)

    def retry_all(self) -> None:
        """Retry all pending releases (the watcher calls it)."""
        waiting: set[str] = set()
        for pending in list(self._pending.values()):
            if pending.lease.slot in waiting:
                continue
            try:
                self._release(pending)
            except LeasingUnavailable:
                waiting.add(pending.lease.slot)

    def _release(self, pending: PendingRelease) -> None:
        asked_at = self._ports.clock.monotonic()
        following = pending.leases.release(
            pending.lease.ref,
            pending.mode,
            worker=self._worker,
            gpu_seconds=pending.gpu_seconds,
            next_attempt_id=pending.next_attempt_id,
            verdict=pending.verdict,
            begun=pending.begun,
        )
        if following is not None:  # the slot's thread has gone on, so no job runs under this lease
            pending.leases.release(following.ref, ReleaseMode.FREE, worker=self._worker, gpu_seconds=0.0)
        if pending.mode is ReleaseMode.FREE and not self._keeper.forget_end(pending.lease.ref, asked_at):
            return  # released again: a rebuilt index may have got it meanwhile
        with self._lock:
            self._pending.pop(pending.lease.ref, None)
            held = self._held.pop(pending.lease.ref, [])
        if following is not None:
            held.append(following.job_id)
        for job_id in held:
            self._push(job_id)

    def _push(self, job_id: str) -> None:
        """Push the ticket if the job is still queued. A database error must not stop later releases; the
        reconciler finds the job."""
        try:
            push_waiting(job_id, self._ports)
        except DatabaseError as error:
            log.warning("ticket_not_pushed", job_id=job_id, error=str(error).strip())
            connection.close()
