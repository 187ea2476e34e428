"""Retries of releases that Redis did not answer (each is idempotent), and the tickets to push after them: a
ticket of a job that is still held would be refused."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import structlog
from django.db import DatabaseError, connection

from gpus.errors import LeasingUnavailable, Verdict
from gpus.leasing.contract import Leases
from gpus.leasing.keeper import LeaseKeeper
from gpus.protocol import Lease, LeaseRef, ReleaseMode
from jobs.execution import after_commit
from jobs.ports import Ports

log = structlog.get_logger()


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
    """worker: the name that the leases are held under."""

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
            after_commit.push_waiting(job_id, self._ports)
        except DatabaseError as error:
            log.warning("not_pushed", job_id=job_id, error=str(error).strip())
            connection.close()
