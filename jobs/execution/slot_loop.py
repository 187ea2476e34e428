"""The life of an attempt, one slot after another: claim → start → run → complete → next.

The order of the writes is the protocol (docs/explanation/leasing.md). Claim: Redis grants the lease, and the
start is queued for the group commit. Run: the request goes to the GPU. Complete: Redis releases the slot, and
may grant it to the next ticket in the same step; then the end is queued, and its follow-ups run after the
commit.

Next: while a short run is on the GPU, `jobs.execution.prefetch` reserves the slot's next job, so that between
two runs the GPU waits for one request only. The prefetched job is stored in the slot as its follower, so
Redis grants the slot to no other worker. When the run ends, the follower's request is sent first; the old
lease is released while that request is on its way."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import structlog
from django.db import connection

from foundation.ids import new_id
from foundation.log_lines import safe_text
from gpus.errors import DoesNotFit, GpuError, Interrupted
from gpus.leasing.values import Wakes
from gpus.protocol import Lease
from gpus.registry.registry import mark_too_large
from jobs.domain.retry import Ending
from jobs.domain.tracebacks import without_own_frames
from jobs.execution.attempt_run import AttemptRun, HandedOver, Remote, RunOutcome, Wait
from jobs.execution.claiming import claim_next, open_lease, start_attempt
from jobs.execution.completion import RunEnd
from jobs.execution.prefetch import drop_prefetched, make_ready, send_prefetched_first
from jobs.execution.worker_state import Claimed, Ready, TimeSlice, WorkerState

log = structlog.get_logger()
_logger = logging.getLogger(__name__)

LONG_SECONDS = 1.0
_MESSAGE_CHARS = 500


@dataclass(frozen=True, slots=True)
class WorkReport:
    """The report of one attempt, shown in Flower.

    outcome: ``completed``, ``handed_over``, or the error code of its end as this worker saw it.
    """

    job_id: str
    model: str
    server: str
    slot: int
    attempt: str
    outcome: str
    seconds: float
    error_code: str = ""


class SlotLoop:
    """Runs the attempts of one task, from claim to claim. time_slice: after it the thread is returned to
    Celery's pool."""

    def __init__(self, worker: WorkerState, time_slice: TimeSlice) -> None:
        self._worker, self._time_slice = worker, time_slice

    def work(self, pool: str, host: str | None) -> list[WorkReport]:
        """Claim and run until no job is left or the time slice is over.

        host: of a pinned worker, as of `claim_next`.
        """
        worker = self._worker
        with worker.ports.database():
            fleet_name = worker.ports.registry.fleet_of(pool)
        reports: list[WorkReport] = []
        claimed = claim_next(worker, fleet_name, pool, host)
        while claimed is not None:
            claimed, report = self.run(claimed)
            reports.append(report)
            if claimed is None and not worker.is_draining:
                if self._end_time_slice(pool, host, report.seconds):
                    break
                claimed = claim_next(worker, fleet_name, pool, host)
        return reports

    def run(self, claimed: Claimed) -> tuple[Claimed | None, WorkReport]:
        """Run a claimed attempt to its end. Return the slot's next claim, or None, and the report."""
        ready = self._prepare(claimed)
        outcome = self._drive(claimed.lease, ready)
        seconds = ready.run.elapsed_seconds + claimed.ran_seconds
        following, error = None, None
        if isinstance(outcome, HandedOver):
            self._hand_over(claimed, ready.run)
            label = "handed_over"
        else:
            error = outcome.ending.error
            label = error.code if error is not None else "completed"
            following = self._complete(claimed, outcome, seconds, ready.run)
        return following, _report(claimed.lease, label, seconds, error)

    def _prepare(self, claimed: Claimed) -> Ready:
        """Make the run, unless it was made when the job was prefetched, and start its clock."""
        ready = claimed.ready or make_ready(self._worker, claimed)
        ready.start_clock(self._time_slice)
        return ready

    def _drive(self, lease: Lease, ready: Ready) -> RunOutcome | HandedOver:
        """Step through the run to its end, and commit its remote id. Never raises."""
        run = ready.run
        try:
            with self._worker.running(lease, run):
                try:
                    outcome = self._step_to_end(lease, run)
                except Exception as error:  # the lease must not be renewed without a run
                    log.exception("run_crashed", job_id=lease.job_id, attempt=lease.attempt_id)
                    outcome = RunOutcome(Ending(Interrupted(f"The dispatcher broke: {error}"), suspect=True))
        finally:
            ready.prefetch.finish_deferred()
        if run.progress_events is not None:
            run.progress_events.end(_trace_of(outcome))
        return outcome

    def _step_to_end(self, lease: Lease, run: AttemptRun) -> RunOutcome | HandedOver:
        worker = self._worker
        if lease.estimate_seconds >= LONG_SECONDS:
            connection.close()  # not needed while the GPU runs
            worker.show_run(lease)
        while True:
            run.woken.clear()
            step = run.step()
            if isinstance(step, Wait):
                worker.wait(run, step.seconds)
            elif isinstance(step, Remote):
                worker.completion.write_remote_id(lease, step.remote_id, run.remote_id_committed)
                worker.completion.backoff.reset(lease.server)
            else:
                return step

    def _complete(
        self, claimed: Claimed, outcome: RunOutcome, seconds: float, run: AttemptRun
    ) -> Claimed | None:
        """Release and write now, or leave both to the prefetched run, which does them after its request is
        sent. Return the slot's next claim, or None."""
        worker, lease, ending = self._worker, claimed.lease, outcome.ending
        now, retries = worker.ports.clock.now(), claimed.job["max_retries"]
        end = RunEnd(claimed.leases, lease, claimed.spec, retries, outcome, seconds, now, claimed.started)
        if isinstance(ending.error, DoesNotFit):
            _leave_to_larger_servers(worker, lease, ending.error)
        prefetched, unanswered_id = worker.prefetched.take(lease.attempt_id)
        refused = claimed.refused
        if refused is not None:
            is_free = not ending.suspect
            worker.completion.refuse_start(claimed.leases, lease, refused, claimed.spec, proven_free=is_free)
            drop_prefetched(worker, prefetched, lease)
            return None
        may_claim = not ending.suspect and worker.may_claim()
        if prefetched is not None and may_claim and send_prefetched_first(worker, prefetched, run, end):
            return prefetched
        return self._next(claimed, end, prefetched, unanswered_id, may_claim=may_claim)

    def _next(
        self,
        claimed: Claimed,
        end: RunEnd,
        prefetched: Claimed | None,
        unanswered_id: str | None,
        *,
        may_claim: bool,
    ) -> Claimed | None:
        """Release the slot. Return its prefetched job, or the claim of the next ticket, which the release
        grants.

        unanswered_id: the attempt id of a reservation whose answer was lost.
        """
        worker, lease = self._worker, claimed.lease
        asked_at = worker.ports.clock.monotonic()
        if prefetched is None:  # else it is leased already, and runs even if the time slice is over
            may_claim = may_claim and not self._time_slice.is_over(asked_at, end.seconds)
        if may_claim:
            slots = worker.busy() + 1
            worker.row_prefetch.request(claimed.fleet, lease.pool, slots=slots, ran_seconds=end.seconds)
        # the same id again: if Redis granted the lost reservation, the release returns that lease
        next_id = prefetched.lease.attempt_id if prefetched else unanswered_id or new_id()
        with worker.switch_readiness.claim_under_way:
            following = end.release(
                worker.completion, next_attempt_id=next_id if may_claim else None, warm=worker.warm()
            )
            worker.completion.write_end(end, gather=following is not None)
            if prefetched is not None and following is not None and following.ref == prefetched.lease.ref:
                worker.completion.keeper.add(following, fleet=claimed.fleet, asked_at=asked_at)
                return start_attempt(worker, prefetched)
            drop_prefetched(worker, prefetched, lease)
            if following is None:
                return None
            return open_lease(worker, claimed.fleet, claimed.leases, following, asked_at)

    def _hand_over(self, claimed: Claimed, run: AttemptRun) -> None:
        """Release the lease of a run that goes on at its server, for another worker to poll."""
        prefetched, _ = self._worker.prefetched.take(claimed.lease.attempt_id)
        self._worker.completion.hand_over(claimed.leases, claimed.lease, lost=run.was_lost)
        drop_prefetched(self._worker, prefetched, claimed.lease)

    def _end_time_slice(self, pool: str, host: str | None, ran_seconds: float) -> bool:
        """End the time slice if it is over: send a wake, whose task continues. Return False if this thread
        must continue to claim."""
        worker = self._worker
        if not self._time_slice.is_over(worker.ports.clock.monotonic(), ran_seconds):
            return False
        if worker.ports.send_wakes([Wakes(pool, host, 1)]):
            return True
        # The broker is away, and the slot must not wait for it: this thread claims again.
        # An empty write: when it is done, all writes before it are committed.
        worker.wait_for_commit(worker.completion.writer.submit(lambda: None))
        return False


def _leave_to_larger_servers(worker: WorkerState, lease: Lease, error: DoesNotFit) -> None:
    """Mark the model as too large for this server, before its job is queued again and claimed here."""
    try:
        ports = worker.ports
        ports.send_wakes(mark_too_large(lease.server, lease.model, error.message, leases=ports.leases))
    except Exception as failed:  # the database is away: this server may claim the job again, at no cost
        log.warning("too_large_not_stored", server=lease.server, model=lease.model, error=str(failed).strip())


def _trace_of(outcome: RunOutcome | HandedOver) -> str:
    """Return the traceback of the model's code that ended the run, without our own frames; empty without
    one."""
    if isinstance(outcome, HandedOver) or outcome.ending.error is None:
        return ""
    return without_own_frames(outcome.ending.error.detail).rstrip()


def _report(lease: Lease, outcome: str, seconds: float, error: GpuError | None) -> WorkReport:
    """Log the attempt, and return the report of it."""
    message = {} if error is None else {"error": safe_text(error.message, _MESSAGE_CHARS)}
    # hundreds of lines a second would cost as much as the claims
    is_usual = outcome == "completed" and seconds < LONG_SECONDS
    if not is_usual or _logger.isEnabledFor(logging.DEBUG):
        (log.debug if is_usual else log.info)(
            "attempt_finished",
            job_id=lease.job_id,
            attempt=lease.attempt_id,
            epoch=lease.epoch,
            slot=lease.slot,
            model=lease.model,
            outcome=outcome,
            seconds=round(seconds, 3),
            **message,
        )
    return WorkReport(
        job_id=lease.job_id,
        model=lease.model,
        server=lease.server,
        slot=lease.slot_index,
        attempt=lease.attempt_id,
        outcome=outcome,
        seconds=round(seconds, 3),
        error_code=error.code if error is not None else "",
    )
