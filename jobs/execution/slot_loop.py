"""The life of an attempt, one slot after another: claim → start → run → complete → next.

The order of the writes is the protocol (docs/explanation/leasing.md). Claim: Redis grants the lease, and the
start is queued for the group commit. Run: the request goes to the GPU. Complete: Redis releases the slot, and
may grant it to the next ticket in the same step; then the end is queued, and its follow-ups run after the
commit.

Next: while a short run is on the GPU, its slot's next job is prefetched (`jobs.execution.prefetch`), so that
between two runs the GPU waits for one request only. The prefetched job is stored in the slot as its follower,
so Redis grants the slot to no other worker. When the run ends, the follower's request is sent first; the old
lease is released while that request is on its way."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

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
from jobs.execution.claiming import Claimed, Claims
from jobs.execution.completion import Completion, RunEnd
from jobs.execution.prefetch import Ready, SlotPrefetch, Turn
from jobs.execution.row_prefetch import RowPrefetch
from jobs.execution.worker_state import ClaimGate, RunsInHand, WorkerProcess
from jobs.ports import Ports

log = structlog.get_logger()
_logger = logging.getLogger(__name__)

LONG_SECONDS = 1.0
SHORT_SLICES = 20
"""With short jobs and idle threads, a thread is kept for this many time slices."""
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


def random_short_slices() -> float:
    """Return `SHORT_SLICES` with jitter, so that the slices of threads that began together end apart."""
    return SHORT_SLICES * random.uniform(0.75, 1.25)


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """How long a Celery task keeps its thread.

    A long run is a task of its own, which Flower shows. Short runs share a task, because a message through
    the broker costs more than such a run; the slice ends when other wakes may wait for the thread, and at
    the latest after `short_slices` times `seconds`.

    seconds: the least time that a thread is kept; a job that runs longer is not short. began: monotonic.
    is_wanted: returns True if other wakes may wait for the thread.
    """

    seconds: float
    began: float
    is_wanted: Callable[[], bool] = lambda: True
    short_slices: float = SHORT_SLICES

    def is_over(self, now: float, ran_seconds: float) -> bool:
        """Return True if the thread is handed back after a job that ran for `ran_seconds`. now: monotonic."""
        worked = now - self.began
        if worked < self.seconds:
            return False
        return ran_seconds >= self.seconds or worked >= self.seconds * self.short_slices or self.is_wanted()


@dataclass(frozen=True, slots=True, eq=False)
class LoopParts:
    """The parts of a worker that its loops use, in the order of an attempt's life."""

    ports: Ports
    process: WorkerProcess
    gate: ClaimGate
    claims: Claims
    make_run: Callable[[Claimed, Callable[[], None]], AttemptRun]
    runs: RunsInHand
    prefetch: SlotPrefetch
    row_prefetch: RowPrefetch
    completion: Completion


class SlotLoop:
    """Runs the attempts of one task, from claim to claim. time_slice: after it the thread is returned to
    Celery's pool."""

    def __init__(self, parts: LoopParts, time_slice: TimeSlice) -> None:
        self._parts, self._time_slice = parts, time_slice
        self._now = parts.ports.clock.monotonic

    def work(self, pool: str, host: str | None) -> list[WorkReport]:
        """Claim and run until no job is left or the time slice is over.

        host: of a pinned worker, as of `Claims.claim_next`.
        """
        parts = self._parts
        with parts.ports.database():
            fleet_name = parts.ports.registry.fleet_of(pool)
        reports: list[WorkReport] = []
        ready = self._claim(fleet_name, pool, host)
        while ready is not None:
            ready, report = self.run(ready)
            reports.append(report)
            if ready is None and not parts.gate.is_closed:
                if self._end_time_slice(pool, host, report.seconds):
                    break
                ready = self._claim(fleet_name, pool, host)
        return reports

    def _claim(self, fleet_name: str, pool: str, host: str | None) -> Ready | None:
        claimed = self._parts.claims.claim_next(fleet_name, pool, host)
        return self.prepare(claimed) if claimed is not None else None

    def prepare(self, claimed: Claimed) -> Ready:
        """Make the run of a claimed attempt."""
        turn = Turn()
        return Ready(claimed, self._parts.make_run(claimed, partial(self._on_sent, claimed, turn)), turn)

    def run(self, ready: Ready) -> tuple[Ready | None, WorkReport]:
        """Run a claimed attempt to its end. Return the slot's next one, or None, and the report."""
        claimed, run = ready.claimed, ready.run
        run.start_clock()
        outcome = self._drive(ready)
        seconds = run.elapsed_seconds + claimed.so_far.ran_seconds
        following, error = None, None
        if isinstance(outcome, HandedOver):
            self._hand_over(ready)
            label = "handed_over"
        else:
            error = outcome.ending.error
            label = error.code if error is not None else "completed"
            following = self._complete(ready, outcome, seconds)
        return following, _report(claimed.lease, label, seconds, error)

    def _drive(self, ready: Ready) -> RunOutcome | HandedOver:
        """Step through the run to its end, and commit its remote id. Never raises."""
        run, lease = ready.run, ready.claimed.lease
        try:
            with self._parts.runs.holding(lease, run):
                try:
                    outcome = self._step_to_end(lease, run)
                except Exception as error:  # the lease must not be renewed without a run
                    log.exception("run_crashed", job_id=lease.job_id, attempt=lease.attempt_id)
                    outcome = RunOutcome(Ending(Interrupted(f"The dispatcher broke: {error}"), suspect=True))
        finally:
            # unless its runner has called `_on_sent`
            self._take_turn(ready.claimed, ready.turn, prefetch=False)
        if run.progress_events is not None:
            run.progress_events.end(_trace_of(outcome))
        return outcome

    def _step_to_end(self, lease: Lease, run: AttemptRun) -> RunOutcome | HandedOver:
        parts = self._parts
        if lease.estimate_seconds >= LONG_SECONDS:
            connection.close()  # not needed while the GPU runs
            parts.process.show_run(lease)
        while True:
            run.woken.clear()
            step = run.step()
            if isinstance(step, Wait):
                parts.process.wait(run, step.seconds)
            elif isinstance(step, Remote):
                parts.completion.write_remote_id(lease, step.remote_id, run.remote_id_committed)
                parts.completion.backoff.reset(lease.server)
            else:
                return step

    # -- while the request is on its way -----------------------------------------------------------------

    def _on_sent(self, claimed: Claimed, turn: Turn) -> None:
        """Release the slot's previous run, and prefetch its next job. The runner calls it once, during or
        right after sending. Never raises: it must not fail the run."""
        try:
            with self._parts.gate.under_way:
                self._take_turn(claimed, turn, prefetch=True)
        except Exception:
            log.exception("prefetch_failed", job_id=claimed.lease.job_id)

    def _take_turn(self, claimed: Claimed, turn: Turn, *, prefetch: bool) -> None:
        """Release the deferred end, if there is one, and hold the job that follows this run."""
        if turn.is_over:
            return
        parts, ended = self._parts, turn.deferred_end
        asked_at = self._now()
        next_id = new_id() if prefetch and self._may_prefetch(claimed, asked_at) else None
        turn.is_over = True
        turn.deferred_end = None  # frees its result's memory while this run goes on
        following = None
        if ended is not None:
            following = ended.release(
                parts.completion, next_attempt_id=next_id, warm=parts.process.warm(), begun=claimed.lease
            )
            parts.completion.write_end(ended, gather=True)
            parts.claims.queue_start(claimed)
        if next_id is None:
            return
        if ended is None or following is not None:
            parts.prefetch.reserve(
                claimed, turn, asked_at, self.prepare, attempt_id=next_id, granted=following
            )
        if ended is not None:
            self._read_next_rows(claimed, len(parts.runs), ended.seconds)

    def _may_prefetch(self, claimed: Claimed, at: float) -> bool:
        expected = claimed.lease.estimate_seconds
        return self._parts.prefetch.may_prefetch(claimed) and not self._time_slice.is_over(
            at + expected, expected
        )

    # -- after the run -----------------------------------------------------------------------------------

    def _complete(self, ready: Ready, outcome: RunOutcome, seconds: float) -> Ready | None:
        """Release and write now, or leave both to the prefetched run, which does them after its request is
        sent. Return the slot's next run, or None."""
        parts, claimed, ending = self._parts, ready.claimed, outcome.ending
        lease, now, retries = claimed.lease, parts.ports.clock.now(), claimed.job["max_retries"]
        end = RunEnd(claimed.leases, lease, claimed.spec, retries, outcome, seconds, now, claimed.started)
        if isinstance(ending.error, DoesNotFit):
            _leave_to_larger_servers(parts.ports, lease, ending.error)
        prefetched = parts.prefetch.take(lease)
        refused = claimed.refused
        if refused is not None:
            is_free = not ending.suspect
            parts.completion.refuse_start(claimed.leases, lease, refused, claimed.spec, proven_free=is_free)
            self._drop(prefetched, lease)
            return None
        may_claim = not ending.suspect and parts.gate.may_claim()
        if prefetched is not None and may_claim and self._begin_prefetched(prefetched, ready.run, end):
            return prefetched
        return self._next(claimed, end, prefetched, ready.turn.unanswered_id, may_claim=may_claim)

    def _begin_prefetched(self, prefetched: Ready, ended: AttemptRun, end: RunEnd) -> bool:
        """Begin the prefetched run before the ended one is released: renew its lease from now on, and leave
        the end to it. Return False if that is not allowed.

        Only after a success without a remote id: after any other end the slot may have to be quarantined or
        the run adopted.
        """
        has_begun = (
            end.outcome.ending.error is None
            and ended.remote_id is None
            and not prefetched.claimed.must_wait
            and prefetched.run.runner.calls_on_sent
            and self._parts.completion.keeper.begin_follower(prefetched.lease.ref)
        )
        if has_begun:
            prefetched.turn.deferred_end = end
        return has_begun

    def _next(
        self,
        claimed: Claimed,
        end: RunEnd,
        prefetched: Ready | None,
        unanswered_id: str | None,
        *,
        may_claim: bool,
    ) -> Ready | None:
        """Release the slot. Return its prefetched run, or that of the next ticket, which the release grants.

        unanswered_id: the attempt id of a reservation whose answer was lost.
        """
        parts, lease = self._parts, claimed.lease
        asked_at = self._now()
        if prefetched is None:  # else it is leased already, and runs even if the time slice is over
            may_claim = may_claim and not self._time_slice.is_over(asked_at, end.seconds)
        if may_claim:
            self._read_next_rows(claimed, len(parts.runs) + 1, end.seconds)
        # the same id again: if Redis granted the lost reservation, the release returns that lease
        next_id = prefetched.lease.attempt_id if prefetched else unanswered_id or new_id()
        with parts.gate.under_way:
            following = end.release(
                parts.completion, next_attempt_id=next_id if may_claim else None, warm=parts.process.warm()
            )
            parts.completion.write_end(end, gather=following is not None)
            if prefetched is not None and following is not None and following.ref == prefetched.lease.ref:
                parts.completion.keeper.add(following, fleet=claimed.fleet, asked_at=asked_at)
                started = parts.claims.start_attempt(prefetched.claimed)
                return prefetched if started is not None else None
            self._drop(prefetched, lease)
            if following is None:
                return None
            opened = parts.claims.open_lease(claimed.fleet, claimed.leases, following, asked_at)
        return self.prepare(opened) if opened is not None else None

    def _hand_over(self, ready: Ready) -> None:
        """Release the lease of a run that goes on at its server, for another worker to poll."""
        claimed, parts = ready.claimed, self._parts
        prefetched = parts.prefetch.take(claimed.lease)
        parts.completion.hand_over(claimed.leases, claimed.lease, lost=ready.run.was_lost)
        self._drop(prefetched, claimed.lease)

    def _drop(self, prefetched: Ready | None, holder: Lease) -> None:
        """Drop the prefetched job of a slot that runs no job of this worker next."""
        if prefetched is not None:
            self._parts.completion.drop_follower(holder, prefetched.lease)

    def _read_next_rows(self, claimed: Claimed, slots: int, ran_seconds: float) -> None:
        """Request the rows of the pool's next jobs. slots: busy ones of this worker."""
        self._parts.row_prefetch.request(
            claimed.fleet, claimed.lease.pool, slots=slots, ran_seconds=ran_seconds
        )

    def _end_time_slice(self, pool: str, host: str | None, ran_seconds: float) -> bool:
        """End the time slice if it is over: send a wake, whose task continues. Return False if this thread
        must continue to claim."""
        parts = self._parts
        if not self._time_slice.is_over(self._now(), ran_seconds):
            return False
        if parts.ports.send_wakes([Wakes(pool, host, 1)]):
            return True
        # The broker is away, and the slot must not wait for it: this thread claims again.
        # An empty write: when it is done, all writes before it are committed.
        parts.process.wait_for_commit(parts.completion.writer.submit(lambda: None))
        return False


def _leave_to_larger_servers(ports: Ports, lease: Lease, error: DoesNotFit) -> None:
    """Mark the model as too large for this server, before its job is queued again and claimed here."""
    try:
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
