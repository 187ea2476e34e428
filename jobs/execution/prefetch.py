"""Slot prefetch: reserves a slot's next job, and makes its run, while the current run is on the GPU.

The prefetched job is the follower of the current run's lease (`jobs.execution.slot_loop`). A worker's
prefetched jobs are kept in `jobs.execution.worker_state.PrefetchedJobs`."""

from __future__ import annotations

import math

import structlog

from foundation.ids import new_id
from gpus.errors import LeasingUnavailable
from gpus.leasing.contract import Leases
from gpus.protocol import Lease, ReleaseMode
from gpus.runners.registry import is_polled
from jobs.execution.attempt_run import AttemptRun
from jobs.execution.claiming import make_run, queue_start, read_claimed
from jobs.execution.completion import RunEnd
from jobs.execution.worker_state import Claimed, Ready, TimeSlice, WorkerState

log = structlog.get_logger()


class Prefetch:
    """The prefetch of one run. Called once by the HTTP runner, during or right after sending.

    deferred_end: the end of the slot's previous run, until it is released and queued.
    time_slice: of the thread; None: prefetch no job.
    """

    def __init__(self, worker: WorkerState, claimed: Claimed) -> None:
        self.deferred_end: RunEnd | None = None
        self.time_slice: TimeSlice | None = None
        self._worker, self._claimed = worker, claimed
        self._is_done = False

    def __call__(self) -> None:
        """Release the deferred end, and prefetch the next job. Never raises: it must not fail the run."""
        try:
            with self._worker.switch_readiness.claim_under_way:
                self._release_and_prefetch(prefetch=True)
        except Exception:
            log.exception("prefetch_failed", job_id=self._claimed.lease.job_id)

    def defer_end(self, ended: RunEnd) -> None:
        """Keep the end of the slot's previous run, and release it when this object is called."""
        self.deferred_end = ended

    def finish_deferred(self) -> None:
        """Release a deferred end that is still kept, because the run ended before its runner called this
        object."""
        self._release_and_prefetch(prefetch=False)

    def _release_and_prefetch(self, *, prefetch: bool) -> None:
        if self._is_done:
            return
        worker, claimed, ended = self._worker, self._claimed, self.deferred_end
        asked_at = worker.ports.clock.monotonic()
        next_id = new_id() if prefetch and self._may_prefetch(asked_at) else None
        self._is_done = True
        self.deferred_end = None  # frees its result's memory while this run goes on
        following = None
        if ended is not None:
            following = ended.release(
                worker.completion, next_attempt_id=next_id, warm=worker.warm(), begun=claimed.lease
            )
            worker.completion.write_end(ended, gather=True)
            queue_start(worker, claimed)
        elif next_id is not None and worker.prefetched.may_reserve(claimed.lease.pool, asked_at):
            following = self._reserve(next_id)
            if following is None:
                worker.prefetched.note_empty(claimed.lease.pool, asked_at)
        if following is not None:
            prefetched = open_prefetched(worker, claimed, following, asked_at)
            if prefetched is not None:
                ready = make_ready(worker, prefetched)
                now = worker.ports.clock.monotonic()
                # a copy: `ready` refers to `prefetched`, and a cycle would wait for the garbage collector
                worker.prefetched.put(claimed.lease.attempt_id, prefetched._replace(ready=ready), now)
        if ended is not None and next_id is not None:
            slots = worker.busy()
            worker.row_prefetch.request(
                claimed.fleet, claimed.lease.pool, slots=slots, ran_seconds=ended.seconds
            )

    def _may_prefetch(self, at: float) -> bool:
        claimed, worker, expected = self._claimed, self._worker, self._claimed.lease.estimate_seconds
        return (
            expected < worker.prefetched.short_seconds
            and not is_polled(claimed.spec)
            and not claimed.spec.at_most_once
            and worker.may_claim()
            and self.time_slice is not None
            and not self.time_slice.is_over(at + expected, expected)
        )

    def _reserve(self, next_id: str) -> Lease | None:
        worker, claimed = self._worker, self._claimed
        try:
            return claimed.leases.reserve(
                claimed.lease.ref, worker=worker.name, next_attempt_id=next_id, warm=worker.warm()
            )
        except LeasingUnavailable as error:
            log.info("prefetch_not_claimed", slot=claimed.lease.slot, error=str(error))
            worker.prefetched.note_unanswered(claimed.lease.attempt_id, next_id)
            return None


def make_ready(worker: WorkerState, claimed: Claimed) -> Ready:
    """Make the run of a claimed attempt, with its prefetch."""
    prefetch = Prefetch(worker, claimed)
    return Ready(make_run(worker, claimed, prefetch), prefetch)


def send_prefetched_first(worker: WorkerState, prefetched: Claimed, run: AttemptRun, end: RunEnd) -> bool:
    """Let the prefetched run be sent before the ended one is released. Return False if that is not allowed.

    Only after a success without a remote id: after any other end the slot may have to be quarantined or the
    run adopted.
    run: the ended one. end: deferred, and released by the prefetched run (`Prefetch.defer_end`).
    """
    if (
        prefetched.ready is None
        or end.outcome.ending.error is not None
        or run.remote_id is not None
        or prefetched.must_wait
        or not prefetched.ready.run.runner.calls_on_sent
        or not worker.completion.keeper.begin_follower(prefetched.lease.ref)
    ):
        return False
    prefetched.ready.prefetch.defer_end(end)
    return True


def open_prefetched(worker: WorkerState, holder: Claimed, lease: Lease, asked_at: float) -> Claimed | None:
    """Read the prefetched job's row and endpoint. If it can't run, return its lease to Redis, and None.

    holder: the claim of the current run. asked_at: as for `open_lease`.
    """
    try:
        claimed = read_claimed(worker, holder.fleet, holder.leases, lease)
    except Exception as error:  # the next claim of this job raises it again, and handles it
        log.warning("prefetched_job_not_read", job_id=lease.job_id, slot=lease.slot, error=str(error).strip())
        _return_prefetched_lease(worker, holder.leases, lease)
        return None
    if claimed is not None:
        worker.completion.keeper.add(lease, fleet=holder.fleet, asked_at=asked_at, follows=True)
    return claimed


def drop_prefetched(worker: WorkerState, prefetched: Claimed | None, holder: Lease) -> None:
    """Drop a prefetched job, and push its ticket again. holder: the current lease; its release also drops the
    prefetched job in Redis."""
    if prefetched is not None:
        worker.completion.keeper.forget(prefetched.lease.ref)
        worker.completion.push_after(holder.ref, prefetched.lease.job_id)


def return_overdue_prefetched(worker: WorkerState) -> None:
    """Return the leases of prefetched jobs that waited too long, since another slot may be free sooner (the
    watcher calls it). While the index is being switched, return all of them."""
    now = math.inf if worker.ports.layouts.switches_away() else worker.ports.clock.monotonic()
    for prefetched in worker.prefetched.overdue(now):
        _return_prefetched_lease(worker, prefetched.leases, prefetched.lease)


def _return_prefetched_lease(worker: WorkerState, leases: Leases, lease: Lease) -> None:
    worker.completion.release(leases, lease, ReleaseMode.FREE, gpu_seconds=0.0)
    worker.completion.keeper.forget(lease.ref)
    worker.completion.push_after(lease.ref, lease.job_id)
