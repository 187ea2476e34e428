"""Completes attempts: releases the lease, commits the end, and confirms the end to Redis after the commit.

A release stores the end in Redis, uncommitted (`settling`); the end goes into the group commit, and after the
commit Redis forgets it. Confirmations that Redis does not answer are retried here, releases in
`jobs.execution.follow_ups`.

The types of an end, in their order:
`jobs.domain.retry.Ending`: the error, if any, and whether the slot is suspect;
`jobs.execution.attempt_run.RunOutcome`: the ending with result, usage and evidence, as the run returns it;
`RunEnd`: the same with lease, model and seconds, to release the slot and write the row;
`jobs.transitions.End`: the values that the transaction writes;
`jobs.transitions.Ended`: the transaction's outcome: whether it won, the job's row, the next step;
`EndWritten`: the outcome with the lease whose end is confirmed after the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import structlog
from django.conf import settings

from gpus.errors import (
    ConnectFailed,
    CredentialsRefused,
    GpuBusy,
    GpuError,
    LeasingUnavailable,
    RunFailed,
    StaleFence,
    Verdict,
)
from gpus.leasing.contract import Leases
from gpus.leasing.keeper import LeaseKeeper
from gpus.protocol import Lease, LeaseRef, ModelSpec, ReleaseMode
from jobs import transitions
from jobs.domain.retry import Ending, RetryPolicy, verdict_of
from jobs.execution import follow_ups
from jobs.execution.attempt_run import RunOutcome
from jobs.execution.follow_ups import PendingRelease, ReleaseRetries
from jobs.execution.group_commit import (
    MAX_BYTES,
    GroupCommitWriter,
    LatestEnds,
    MakeWriter,
    Write,
    Writer,
    estimate_bytes,
)
from jobs.models import Job
from jobs.ports import Ports
from jobs.reports import counters
from jobs.transitions import End, Ended, Start, StartOutcome, Touched

log = structlog.get_logger()

_OF_SUCCESS = RetryPolicy()
"""A placeholder: a success without outputs is not retried."""
_LONG_BYTES = 256 * 1024
"""A result over this is committed alone."""
FIRST_REST_SECONDS, REST_CAP_SECONDS = 1.0, 30.0


class StartCommit(Future[Any]):
    """The commit of an attempt's start; done when the start is committed or refused.

    start: as it was queued. outcome: None before it is done.
    """

    start: Start | None = None
    outcome: StartOutcome | None = None

    def set_result(self, result: tuple[JobTouched, StartOutcome]) -> None:
        self.outcome = result[1]
        super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        self.outcome = StartOutcome.JOB_MOVED
        super().set_exception(exception)

    @property
    def committed(self) -> Start | None:
        """The committed start; None before the commit, or if the database refused it."""
        return self.start if self.outcome is StartOutcome.STARTED else None

    @property
    def refused(self) -> StartOutcome | None:
        """Why the database refused the start; None if it accepted it or has not answered yet."""
        return None if self.outcome is StartOutcome.STARTED else self.outcome


class RunEnd(NamedTuple):
    """The end of a run, with what its release in Redis and its row in the database need.

    max_retries: of its job. seconds: how long it ran. at: when it ended. started: the commit of its start;
    None if another worker wrote that."""

    leases: Leases
    lease: Lease
    spec: ModelSpec
    max_retries: int | None
    outcome: RunOutcome
    seconds: float
    at: datetime
    started: StartCommit | None = None

    @property
    def charge_seconds(self) -> float:
        """GPU-seconds that the tenant is charged: none if the server refused the run or it was not sent."""
        ending = self.outcome.ending
        was_refused = isinstance(ending.error, (GpuBusy, ConnectFailed)) or not ending.sent
        return 0.0 if was_refused else self.seconds

    def release(
        self,
        completion: Completion,
        *,
        next_attempt_id: str | None,
        warm: Sequence[str] | None,
        begun: Lease | None = None,
    ) -> Lease | None:
        """Release the slot, and claim the next ticket for it.

        next_attempt_id: of the next attempt; None: claim no job.
        warm: loaded models, whose jobs are claimed first.
        begun: the lease of the prefetched run that was sent already; the next ticket becomes its follower.
        Returns the next ticket's lease, or None.
        """
        lease, ending = self.lease, self.outcome.ending
        return completion.release(
            self.leases,
            lease,
            ReleaseMode.SUSPECT if ending.suspect else ReleaseMode.ENDED,
            gpu_seconds=self.charge_seconds,
            next_attempt_id=next_attempt_id,
            rest_seconds=completion.backoff.after_answer(lease.server, ending.error),
            verdict=verdict_of(ending),
            warm=warm if next_attempt_id else None,
            begun=begun,
        )

    def to_write(self) -> End:
        """Return the values to write; with the attempt's start, once that is committed."""
        lease, outcome = self.lease, self.outcome
        is_success = outcome.ending.error is None
        return End(
            job_id=lease.job_id,
            attempt_id=lease.attempt_id,
            epoch=lease.epoch,
            slot=lease.slot,
            ending=outcome.ending,
            policy=_OF_SUCCESS
            if is_success and outcome.outputs is None
            else follow_ups.policy_for(self.spec, self.max_retries),
            at=self.at,
            result=outcome.result,
            gpu_seconds=self.charge_seconds,
            run_limit_seconds=self.spec.run_limit_seconds,
            evidence=outcome.evidence,
            usage=outcome.usage,
            refused_url=outcome.refused_url,
            start=self.started.committed if self.started is not None else None,
            outputs=outcome.outputs,
        )


@dataclass(frozen=True, slots=True)
class EndWritten:
    """An end's outcome, with the lease whose end is confirmed after its commit.

    end: as it was written; None if only a quarantine was written. result_bytes: roughly, of its result.
    """

    ended: Ended
    leases: Leases
    ref: LeaseRef
    end: End | None = None
    result_bytes: int = 0


@dataclass(frozen=True, slots=True)
class JobTouched:
    """A job whose start, remote id or progress was committed: to be announced to listeners."""

    job_id: str


class Completion:
    """Writes starts, progress and ends of a worker's attempts, releases their leases, and confirms the ends.

    name: the worker's; its leases are held under it.
    on_lost: called with a lease that the worker does not hold any more.
    writer: makes the writer of the group commit.
    """

    def __init__(
        self,
        ports: Ports,
        *,
        name: str,
        on_lost: Callable[[LeaseRef], None],
        writer: MakeWriter = GroupCommitWriter,
    ) -> None:
        self.ports = ports
        self.name = name
        self.keeper = LeaseKeeper(
            ports.leases,
            worker=name,
            renew_seconds=settings.DISPATCHER.renew_seconds,
            clock=ports.clock,
            on_lost=on_lost,
        )
        self.writer: Writer = writer(self._after_commit, self._restore_latest)
        self._latest = LatestEnds(ports.clock.monotonic)
        self._release_retries = ReleaseRetries(ports, self.keeper, worker=name)
        self.backoff = ServerBackoff()
        self._unconfirmed: dict[LeaseRef, EndWritten] = {}

    def start(self) -> None:
        """Start the threads of the lease keeper and the writer."""
        self.keeper.start()
        self.writer.start()

    def stop(self, timeout_seconds: float) -> None:
        """Write the queued rows; ends that the database does not commit in time are left to the sweeps."""
        if not self.writer.stop(timeout_seconds):
            log.error("ends_not_written", writes=self.writer.backlog)
        self.keeper.stop()

    def write_start(self, start: Start, started: StartCommit) -> None:
        """Queue the attempt's start. started: gets its outcome."""
        started.start = start
        self.writer.submit(
            lambda: _touched(start.job_id, transitions.start_attempt(start)),
            Touched(start.job_id, start.attempt_id),
            done=started,
        )

    def write_remote_id(self, lease: Lease, remote_id: str, then: Callable[[], None]) -> None:
        """Queue the remote id. then: called once it is committed; only then may the run be handed over."""
        at = self.ports.clock.now()

        def committed(done: Future[Any]) -> None:
            if done.exception() is None and done.result()[1]:
                then()

        self.writer.submit(
            lambda: _touched(
                lease.job_id,
                transitions.note_remote_id(lease.job_id, lease.attempt_id, lease.epoch, remote_id, at),
            ),
            Touched(lease.job_id, lease.attempt_id),
        ).add_done_callback(committed)

    def write_progress(self, lease: Lease, kind: str, data: Mapping[str, Any]) -> None:
        """Queue a progress event of the run. kind: of the event. data: as of `ProgressEvents`."""
        at, ref, tries = self.ports.clock.now(), lease.ref, count()

        def apply() -> Any:
            may_be_written = next(tries) > 0
            return transitions.note_progress(ref, kind, data, at, may_be_written=may_be_written)

        self.writer.submit(
            lambda: _touched(ref.job_id, apply()),
            Touched(ref.job_id, ref.attempt_id),
            size=estimate_bytes(data, _LONG_BYTES) if kind == "log" else 0,
        )

    def write_end(self, end: RunEnd, *, gather: bool) -> None:
        """Queue the end; call it after the release, since a crash in between leaves an uncommitted end that a
        sweep resolves. gather: wait for the start of the slot's next job, to commit both together."""
        self._submit_end(end, gather=gather).add_done_callback(
            lambda done: None if done.exception() is None else self._end_unstorable(end)
        )

    def _submit_end(self, end: RunEnd, *, gather: bool = True) -> Future[Any]:
        # outputs lock rows of artifacts: no two such ends in one transaction, which others could wait for
        size = MAX_BYTES if end.outcome.outputs is not None else _size(end.outcome.result)

        def apply() -> EndWritten:
            known = end.to_write()
            return EndWritten(transitions.end_attempt(known), end.leases, end.lease.ref, known, size)

        touched = Touched(end.lease.job_id, end.lease.attempt_id)
        return self.writer.submit(apply, touched, gather=gather, size=size)

    def _end_unstorable(self, end: RunEnd) -> None:
        """End an attempt whose result the database refuses as a failure. If that is refused too, the lease
        expires, and a sweep ends the attempt."""
        error = RunFailed("The run ended with something that the database can't store.")
        error.unfinished = True  # the run counts neither for nor against server and model
        outcome = replace(
            end.outcome,
            ending=Ending(error, suspect=end.outcome.ending.suspect),
            result=None,
            evidence="",
            outputs=None,
        )
        self._submit_end(end._replace(outcome=outcome)).add_done_callback(
            partial(self._expire_refused, end.lease.ref)
        )

    def _expire_refused(self, ref: LeaseRef, written: Future[Any]) -> None:
        """Let a lease expire if the database refused its last write: a sweep resolves it."""
        if written.exception() is not None:
            self.keeper.forget(ref)

    def release(
        self,
        leases: Leases,
        lease: Lease,
        mode: ReleaseMode,
        *,
        gpu_seconds: float,
        next_attempt_id: str | None = None,
        rest_seconds: float | None = None,
        verdict: Verdict = Verdict.NOTHING,
        warm: Sequence[str] | None = None,
        begun: Lease | None = None,
    ) -> Lease | None:
        """End the lease as `mode` says; if Redis is away, the watcher retries it.

        gpu_seconds: charged to the tenant. rest_seconds: pause of the server. verdict: for the circuit
        breakers.
        next_attempt_id, warm, begun: as of `RunEnd.release`.
        Returns the next ticket's lease, or None.
        """
        if is_return := mode is ReleaseMode.FREE:
            self.keeper.mark_returned(lease.ref)
        else:
            self.keeper.mark_ending(lease.ref)
        pending = PendingRelease(leases, lease, mode, gpu_seconds, next_attempt_id, verdict, begun)
        asked_at = self.ports.clock.monotonic()
        try:
            self._release_retries.retry_slot(lease.slot)
            following = leases.release(
                lease.ref,
                mode,
                worker=self.name,
                gpu_seconds=gpu_seconds,
                next_attempt_id=next_attempt_id,
                rest_seconds=rest_seconds,
                verdict=verdict,
                warm=warm,
                begun=begun,
            )
        except LeasingUnavailable as error:
            log.warning("release_failed", slot=lease.slot, error=str(error))
            self._release_retries.add(pending)
            return None
        if is_return and not self.keeper.forget_end(lease.ref, asked_at):
            self._release_retries.add(pending)  # a rebuilt index may have got it again
        return following

    def drop_follower(self, holder: Lease, follower: Lease) -> None:
        """Drop a prefetched job, and push its ticket again once Redis has released the holder's lease, which
        drops the job there."""
        self.keeper.forget(follower.ref)
        self._release_retries.push_after(holder.ref, follower.job_id)

    def return_follower(self, leases: Leases, follower: Lease) -> None:
        """Return the lease of a prefetched job while its holder runs, and push its ticket again."""
        self.keeper.forget(follower.ref)  # a renewal under way restores no follower
        self.release(leases, follower, ReleaseMode.FREE, gpu_seconds=0.0)
        self._release_retries.push_after(follower.ref, follower.job_id)

    def refuse_start(
        self, leases: Leases, lease: Lease, outcome: StartOutcome, spec: ModelSpec, *, proven_free: bool
    ) -> None:
        """Release a lease whose start the database refused. The slot is quarantined if the database has
        another live attempt on it, or if its GPU may be busy with the refused run.

        proven_free: the GPU does not run the refused attempt.
        """
        log.warning("start_refused", job_id=lease.job_id, slot=lease.slot, outcome=str(outcome))
        suspect = not proven_free or outcome is StartOutcome.SLOT_TAKEN
        self.release(leases, lease, ReleaseMode.SUSPECT if suspect else ReleaseMode.FREE, gpu_seconds=0.0)
        if suspect:
            self._quarantine(leases, lease, spec, outcome)

    def hand_over(self, leases: Leases, lease: Lease, *, lost: bool) -> None:
        """Hand over a run whose remote id is committed: the worker that claims it next polls it.

        lost: another worker holds the lease already.
        """
        self.keeper.forget(lease.ref)
        if lost:
            return
        try:
            leases.release(lease.ref, ReleaseMode.ADOPT, worker=self.name)
        except LeasingUnavailable as error:
            log.warning("hand_over_left_to_expiry", slot=lease.slot, error=str(error))

    def _quarantine(self, leases: Leases, lease: Lease, spec: ModelSpec, outcome: StartOutcome) -> None:
        at = self.ports.clock.now()

        def apply() -> EndWritten:
            transitions.quarantine_slot(
                lease.slot,
                attempt_id=lease.attempt_id,
                job_id=lease.job_id,
                model=lease.model,
                reason=f"start refused: {outcome}",
                at=at,
                run_limit_seconds=spec.run_limit_seconds,
            )
            # a queued job lost its ticket to this lease: it is pushed again after the commit
            job: Job | None = follow_ups.waiting_job.first(id=lease.job_id)
            return EndWritten(Ended(won=job is not None, job=job, quarantined=True), leases, lease.ref)

        self.writer.submit(apply).add_done_callback(partial(self._expire_refused, lease.ref))

    def retry_releases(self) -> None:
        """Retry releases and confirmations that Redis did not answer (the watcher calls it)."""
        self._release_retries.retry_all()
        if self._unconfirmed:
            self._confirm_ends()

    def _after_commit(self, outcomes: Sequence[Any]) -> None:
        ends = [outcome for outcome in outcomes if isinstance(outcome, EndWritten)]
        self.ports.announce([outcome[0].job_id for outcome in outcomes if isinstance(outcome, tuple)])
        for end in ends:
            self._unconfirmed[end.ref] = end
            if end.ended.won and end.end is not None:
                # not `ended`: it would keep the job's row in memory
                self._latest.add(end.result_bytes, (_with_cancel(end.end, end.ended.job), end.leases))
            if not end.ended.won:
                log.warning(
                    "end_refused", job_id=end.ref.job_id, attempt=end.ref.attempt_id, epoch=end.ref.epoch
                )
        self._latest.drop_old()
        self._confirm_ends()
        follow_ups.after_ends([end.ended for end in ends], self.ports)
        if refused := sum(not end.ended.won for end in ends):
            counters.add_if_possible(counters.Name.RESULTS_REFUSED, refused)

    def _restore_latest(self) -> list[Write]:
        """Return writes that restore the latest ends if a failover of the database lost them."""
        return [
            Write(partial(_restore, end, leases), Touched(end.job_id, end.attempt_id))
            for end, leases in self._latest.all()
        ]

    def _confirm_ends(self) -> None:
        """Confirm committed ends to Redis. Writer and watcher may both do it: it is idempotent."""
        by_leases: dict[int, list[EndWritten]] = {}
        for ref, end in list(self._unconfirmed.items()):
            if ref not in self._release_retries:
                by_leases.setdefault(id(end.leases), []).append(end)
        for ends in by_leases.values():
            leases, refs = ends[0].leases, [end.ref for end in ends]
            asked_at = self.ports.clock.monotonic()
            try:
                for end in ends:
                    if end.ended.quarantined:  # after a rebuild of the index, this would free the slot
                        leases.quarantine(end.ref.slot, end.ref.attempt_id)
                wakes = leases.confirm_ends(refs)
            except LeasingUnavailable as error:
                log.warning("settle_failed", refs=len(refs), error=str(error))
                continue
            for end in ends:
                if end.ended.quarantined:  # not confirmed again: the quarantine may have been lifted by then
                    self.keeper.forget(end.ref)
                elif not self.keeper.forget_end(end.ref, asked_at):
                    continue  # the watcher confirms it again
                self._unconfirmed.pop(end.ref, None)
            self.ports.send_wakes(wakes)


def _touched(job_id: str, outcome: Any) -> tuple[JobTouched, Any]:
    return JobTouched(job_id), outcome


def _restore(end: End, leases: Leases) -> EndWritten | None:
    ended = transitions.restore_end(end)
    if not ended.won:
        return None
    log.warning("lost_end_restored", job_id=end.job_id, attempt=end.attempt_id)
    return EndWritten(ended, leases, LeaseRef(end.slot, end.job_id, end.attempt_id, end.epoch))


def _size(result: Any) -> int:
    """Return the result's size in bytes, roughly; `MAX_BYTES` for a long one, which is then committed alone:
    counting all of it would cost more."""
    size = estimate_bytes(result, _LONG_BYTES)
    return size if size <= _LONG_BYTES else MAX_BYTES


def _with_cancel(end: End, job: Job | None) -> End:
    """Return the end with the cancel that its job had. job: its row as committed."""
    if job is None or job.cancel_requested_at is None:
        return end
    return end._replace(cancelled_by_operator=job.cancelled_by_operator)


class ServerBackoff:
    """Exponential backoff of GPU servers that refused a run: how long this process sends them no request."""

    def __init__(self) -> None:
        self._next: dict[str, float] = {}

    def after_answer(self, server: str, error: GpuError | None) -> float | None:
        """Return the rest in seconds after a refusal (busy, stale fence, bad credentials, unreachable): the
        server's Retry-After if that is a second or more, else 1 s doubling to 30 s. Any other answer resets
        the backoff and returns None."""
        if not isinstance(error, (GpuBusy, ConnectFailed, CredentialsRefused, StaleFence)):
            self.reset(server)
            return None
        rest = self.after_failure(server)
        asked = error.retry_after_seconds
        return rest if asked is None or asked < FIRST_REST_SECONDS else min(asked, 3600.0)

    def after_failure(self, server: str) -> float:
        """Return the next rest in seconds of a server that this process can't use (an unreadable secret)."""
        rest = self._next.get(server, FIRST_REST_SECONDS)
        self._next[server] = min(rest * 2.0, REST_CAP_SECONDS)
        return rest

    def reset(self, server: str) -> None:
        """Forget the server's refusals: it answered."""
        self._next.pop(server, None)
