"""Claims: from a wake to a lease with its job's row and its queued start.

Prefetched jobs are claimed in `jobs.execution.prefetch`; why leases, rows and requests have this order:
docs/explanation/leasing.md."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import structlog
from django.conf import settings
from django.db import DatabaseError, transaction

from foundation.database import statements
from foundation.database.statements import value
from foundation.ids import new_id
from foundation.secrets import SecretUnreadable
from gpus.errors import LayoutNotInUse, LeasingUnavailable
from gpus.leasing.contract import Leases
from gpus.protocol import Endpoint, Lease, ModelSpec, ReleaseMode
from jobs import transitions
from jobs.domain.states import AttemptState, JobState
from jobs.execution import follow_ups, orphaned_runs
from jobs.execution.attempt_run import NOT_SENT, RunSoFar
from jobs.execution.completion import Completion, StartCommit
from jobs.execution.log_events import position_in_log
from jobs.execution.row_prefetch import OF_JOB, RowPrefetch, rows_to_run
from jobs.execution.worker_state import ClaimGate, RunsInHand, WorkerProcess
from jobs.models import Attempt, Job
from jobs.ports import Ports
from jobs.transitions import Start, StartOutcome

log = structlog.get_logger()

NO_SERVER_REST_SECONDS = 2.0
ADOPTION_REST_SECONDS = 2.0
"""Pause of a run that could not be adopted; it doubles each time, up to 30 s (`hand_over.lua`)."""
MAX_UNCERTAIN = 200
"""Beyond this the oldest claim is dropped; its lease, if it was granted, expires."""
HELD_BACK_SECONDS = 3.0
"""A claim without an answer counts as refused once Redis has held no lease for it for this long: the request
may arrive late (a stalled server, a slow network)."""

_to_run = statements.Read(lambda: rows_to_run(Job.objects.filter(id=value(Job, "id"))))


class Claimed(NamedTuple):
    """A lease with all that its run needs.

    job: the row as of `rows_to_run`; of an adopted attempt its `OF_JOB` fields, and None as payload.
    started: the commit of the start; None for an adopted attempt.
    so_far: how far another worker drove an adopted run.
    must_wait: the request is sent only after the start is committed.
    """

    fleet: str
    leases: Leases
    lease: Lease
    job: Mapping[str, Any]
    spec: ModelSpec
    endpoint: Endpoint
    started: StartCommit | None
    so_far: RunSoFar = NOT_SENT
    must_wait: bool = False

    @property
    def refused(self) -> StartOutcome | None:
        """Why the database refused the start; None if it accepted it or has not answered yet."""
        return None if self.started is None else self.started.refused


class Claims:
    """Claims jobs for the slots of one worker.

    gate: decides whether the worker may claim. completion: writes the starts and renews the leases. runs: in
    hand.
    """

    def __init__(
        self,
        ports: Ports,
        process: WorkerProcess,
        gate: ClaimGate,
        completion: Completion,
        row_prefetch: RowPrefetch,
        *,
        runs: RunsInHand,
    ) -> None:
        self.uncertain = UncertainClaims()
        self._ports, self._process, self._gate = ports, process, gate
        self._completion, self._row_prefetch, self._runs = completion, row_prefetch, runs
        self._generation_seen: dict[str, tuple[float, bool]] = {}

    def claim_next(self, fleet_name: str, pool: str, host: str | None) -> Claimed | None:
        """Claim a free slot and the next ticket whose job may start.

        host: of a pinned worker, which claims slots of this host only; None: of the servers that are reached
        over the network. Returns None if there is neither, or no claim is possible now."""
        leases = self._ports.leases(fleet_name)
        self._ports.clock_watch.confirm_time()
        while self._gate.may_claim():
            asked_at = self._ports.clock.monotonic()
            attempt_id = new_id()
            with self._gate.under_way:
                try:
                    lease = leases.claim(
                        pool,
                        worker=self._process.name,
                        attempt_id=attempt_id,
                        host=host,
                        warm=self._process.warm(),
                    )
                except LayoutNotInUse:
                    return None
                except LeasingUnavailable as error:
                    log.info("claim_refused", pool=pool, error=str(error))
                    self.uncertain.add(attempt_id, fleet_name)  # Redis may have granted it
                    return None
                if lease is None:
                    return None
                claimed, may_try_next = self._open(fleet_name, leases, lease, asked_at)
            if claimed is not None or not may_try_next:
                return claimed
        return None

    def return_uncertain(self) -> None:
        """Return the leases of claims whose answer was lost, and those whose return failed (the watcher calls
        it). No job ran under them, so they must not expire and count as deaths."""
        for fleet_name, attempts in self.uncertain.by_fleet().items():
            leases = self._ports.leases(fleet_name)
            try:
                for attempt_id in attempts:
                    lease = leases.granted(attempt_id, worker=self._process.name)
                    if lease is None:
                        self.uncertain.mark_not_granted(attempt_id, self._ports.clock.monotonic())
                    else:
                        self._return_unrun_lease(leases, lease, self.uncertain.rest_seconds(attempt_id))
                        self.uncertain.mark_returned(attempt_id)
            except LeasingUnavailable:
                continue

    def _return_unrun_lease(self, leases: Leases, lease: Lease, rest_seconds: float | None) -> None:
        """Return a lease without a run: free its slot, and put the ticket back in its place.

        Raises LeasingUnavailable.
        """
        mode = ReleaseMode.ADOPT if lease.adopted else ReleaseMode.FREE
        leases.release(lease.ref, mode, worker=self._process.name, gpu_seconds=0.0, rest_seconds=rest_seconds)
        if not lease.adopted:
            follow_ups.push_waiting(lease.job_id, self._ports)

    def open_lease(self, fleet_name: str, leases: Leases, lease: Lease, asked_at: float) -> Claimed | None:
        """Read the job and its endpoint, and queue the attempt's start; if the job can't run, return its
        lease.

        asked_at: monotonic time at which the claim was sent; the lease's age counts from there.
        """
        return self._open(fleet_name, leases, lease, asked_at)[0]

    def _open(
        self, fleet_name: str, leases: Leases, lease: Lease, asked_at: float
    ) -> tuple[Claimed | None, bool]:
        """Open a lease as `open_lease`. Return the claim or None, and True if another claim is worth
        trying."""
        try:
            if lease.adopted:
                return self._adopt(fleet_name, leases, lease, asked_at), True
            return self._open_new(fleet_name, leases, lease, asked_at), True
        except DatabaseError as error:
            log.warning("claim_without_database", job_id=lease.job_id, error=str(error).strip())
            self._gate.pause()  # the process has no database: it can open no lease of any pool
            # the next worker adopts the run; the reconciler pushes a ticket again
            mode = ReleaseMode.ADOPT if lease.adopted else ReleaseMode.FREE
            self._return_lease(fleet_name, leases, lease, mode)
            return None, False
        except LeasingUnavailable as error:
            # the lease expires, and the sweep raises its epoch to the one that the database may have by now
            log.warning("adoption_without_redis", job_id=lease.job_id, slot=lease.slot, error=str(error))
            return None, False
        except SecretUnreadable as error:
            log.warning("server_secret_unreadable", job_id=lease.job_id, slot=lease.slot, error=str(error))
            # other servers can run it
            self._return_and_rest(fleet_name, leases, lease, push=not lease.adopted)
            return None, True
        except Exception:  # a bug or an unreadable row: not the job's fault, so no death is counted
            log.exception("claim_crashed", job_id=lease.job_id, slot=lease.slot)
            self._return_and_rest(fleet_name, leases, lease)
            return None, lease.adopted  # the next ticket would fail the same way

    def _return_and_rest(self, fleet_name: str, leases: Leases, lease: Lease, *, push: bool = False) -> None:
        """Return a lease that would fail again, and pause its run or server. push: as for `_return_lease`;
        only for a lease that is not adopted."""
        if lease.adopted:
            mode, rest = ReleaseMode.ADOPT, ADOPTION_REST_SECONDS
        else:
            mode, rest = ReleaseMode.FREE, self._completion.backoff.after_failure(lease.server)
        self._return_lease(fleet_name, leases, lease, mode, rest_seconds=rest, push=push)

    def _open_new(self, fleet_name: str, leases: Leases, lease: Lease, asked_at: float) -> Claimed | None:
        claimed = self.read_claimed(fleet_name, leases, lease)
        if claimed is None:
            return None
        if self._ports.clock.monotonic() - asked_at >= settings.DISPATCHER.lease_seconds:
            # this process stalled: the lease has expired, so no start may be written under it
            self._return_lease(fleet_name, leases, lease, ReleaseMode.FREE, push=True)
            return None
        self._completion.keeper.add(lease, fleet=fleet_name, asked_at=asked_at)
        return self.start_attempt(claimed)

    def start_attempt(self, claimed: Claimed) -> Claimed | None:
        """Queue the start of an attempt that holds its slot; if it must not be sent earlier, wait for the
        commit.

        Returns the claim, or None if the database refused the start.
        """
        self.queue_start(claimed)
        if claimed.must_wait:
            refused = self._await_start(claimed)
            if refused is not None:
                self._completion.refuse_start(
                    claimed.leases, claimed.lease, refused, claimed.spec, proven_free=True
                )
                return None
        return claimed

    def queue_start(self, claimed: Claimed) -> None:
        """Queue the attempt's start for the group commit."""
        if claimed.started is None:
            raise ValueError("an adopted attempt was started by another worker")
        lease, now = claimed.lease, self._ports.clock.now()
        self._completion.write_start(
            Start(lease.job_id, lease.attempt_id, lease.slot, lease.model, self._process.name, now),
            claimed.started,
        )

    def read_claimed(self, fleet_name: str, leases: Leases, lease: Lease) -> Claimed | None:
        """Read the job's row, its model and endpoint. If it is not queued any more or can't run there, return
        its lease to Redis, and None."""
        job = self._row_prefetch.take(lease.pool, lease.job_id)
        with self._ports.database():
            job = job or _to_run.first(id=lease.job_id)
            registry = self._ports.registry
            spec = registry.model_spec(lease.model)
            endpoint = registry.endpoint_for(lease.server, lease.model)
        if job is None or job["state"] != JobState.QUEUED:
            # a stale ticket: the job was moved meanwhile
            self._return_lease(fleet_name, leases, lease, ReleaseMode.FREE)
            return None
        if spec is None or endpoint is None:
            log.warning("lease_without_endpoint", slot=lease.slot, model=lease.model)
        if not self._has_runner(spec, lease) or spec is None or endpoint is None or endpoint.is_off:
            # the index is older than the database
            self._return_lease(
                fleet_name, leases, lease, ReleaseMode.FREE, rest_seconds=NO_SERVER_REST_SECONDS, push=True
            )
            return None
        must_wait = spec.at_most_once or self.must_await_starts(fleet_name, leases)
        return Claimed(fleet_name, leases, lease, job, spec, endpoint, StartCommit(), must_wait=must_wait)

    def _has_runner(self, spec: ModelSpec | None, lease: Lease) -> bool:
        """Return False, and log it, if no runner of the model is installed here."""
        if spec is None or self._process.may_run(spec):
            return True
        log.warning("runner_not_installed", slot=lease.slot, model=lease.model, model_type=spec.model_type)
        return False

    def _await_start(self, claimed: Claimed) -> StartOutcome | None:
        """Wait until the start is committed; return why it was refused, or None."""
        if claimed.started is not None:
            self._process.wait_for_commit(claimed.started)
        return claimed.refused

    def _adopt(self, fleet_name: str, leases: Leases, lease: Lease, asked_at: float) -> Claimed | None:
        """Adopt a waiting run of another worker. Raises the epoch in the database first, then the lease's, so
        that between the two only this worker's result counts. A run of this worker's own, which stood still
        until its lease had expired, gets it back when the keeper renews it."""
        if lease.attempt_id in self._runs:
            self._return_and_rest(fleet_name, leases, lease)
            return None
        attempt = Attempt.objects.filter(id=lease.attempt_id).first()
        if attempt is None or attempt.state != AttemptState.WAITING:
            # the attempt has ended: its row says whether that end proved the slot free
            mode = ReleaseMode.FREE if _ended_clean(lease) else ReleaseMode.SUSPECT
            self._return_lease(fleet_name, leases, lease, mode)
            return None
        gone = orphaned_runs.missing_registration(lease.server, lease.model)
        if gone is not None:
            log.warning("run_unreachable", job_id=lease.job_id, slot=lease.slot, why=gone)
            if not orphaned_runs.end_unreachable(attempt, gone, leases, self._ports):
                self._return_and_rest(fleet_name, leases, lease)
            return None
        registry = self._ports.registry
        spec, endpoint = registry.model_spec(lease.model), registry.endpoint_for(lease.server, lease.model)
        if not self._has_runner(spec, lease) or spec is None or endpoint is None:
            # the cached registry is older than the rows read above
            self._return_and_rest(fleet_name, leases, lease)
            return None
        epoch, now = attempt.epoch, self._ports.clock.now()
        with transaction.atomic():
            job = Job.objects.filter(id=lease.job_id).values(*OF_JOB).get()
            won = transitions.take_over(lease.job_id, lease.attempt_id, epoch, self._process.name, now)
        if not won or not leases.take_over(lease.ref, worker=self._process.name, new_epoch=epoch + 1):
            return None
        lease = replace(lease, epoch=epoch + 1, adopted=False)
        self._completion.keeper.add(lease, fleet=fleet_name, asked_at=asked_at)
        log.info(
            "attempt_adopted",
            job_id=lease.job_id,
            attempt=lease.attempt_id,
            epoch=lease.epoch,
            slot=lease.slot,
        )
        return Claimed(
            fleet_name,
            leases,
            lease,
            {**job, "payload": None},
            spec,
            endpoint,
            None,
            RunSoFar(
                attempt.remote_id,
                max(0.0, (now - attempt.started_at).total_seconds()),
                position_in_log(lease.job_id, attempt.number),
            ),
        )

    def _return_lease(
        self,
        fleet_name: str,
        leases: Leases,
        lease: Lease,
        mode: ReleaseMode,
        *,
        rest_seconds: float | None = None,
        push: bool = False,
    ) -> None:
        """Release a lease under which this worker ran no job. If Redis is away the watcher returns a new one
        later; an adopted one expires, and a sweep resolves it. push: push the job's ticket again."""
        try:
            leases.release(
                lease.ref, mode, worker=self._process.name, gpu_seconds=0.0, rest_seconds=rest_seconds
            )
        except LeasingUnavailable as error:
            log.warning("release_failed", slot=lease.slot, error=str(error))
            if not lease.adopted:
                self.uncertain.add(lease.attempt_id, fleet_name, rest_seconds)
        if push:
            follow_ups.push_waiting(lease.job_id, self._ports)

    def must_await_starts(self, fleet_name: str, leases: Leases) -> bool:
        """Return True if a start has to be committed before its request is sent: for one lease time after a
        new generation of the index, because the database may still get a run that the index does not know.
        Not if no job was held when the generation began."""
        now = self._ports.clock.monotonic()
        checked_at, young = self._generation_seen.get(fleet_name, (-1e9, True))
        if now - checked_at < 1.0:
            return young
        try:
            age = leases.unsure_age_seconds()
        except LeasingUnavailable:
            age = None
        young = age is None or age < settings.DISPATCHER.lease_seconds
        self._generation_seen[fleet_name] = (now, young)
        return young


def _ended_clean(lease: Lease) -> bool:
    return Attempt.objects.filter(id=lease.attempt_id, slot_freed=True).exists()


@dataclass(slots=True)
class _Uncertain:
    """rest_seconds: of the server, once the lease is returned. not_granted_since: monotonic time since which
    Redis holds no lease."""

    fleet_name: str
    rest_seconds: float | None = None
    not_granted_since: float | None = None


class UncertainClaims:
    """Claims under which no job runs, and whose lease Redis may have: their answer was lost, or the return of
    their lease failed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claims: dict[str, _Uncertain] = {}  # by attempt, the oldest first

    def add(self, attempt_id: str, fleet_name: str, rest_seconds: float | None = None) -> None:
        """Note a claim whose lease is to be returned, if Redis has it. rest_seconds: of its server then."""
        with self._lock:
            claim = self._claims.setdefault(attempt_id, _Uncertain(fleet_name))
            if rest_seconds is not None:
                claim.rest_seconds = rest_seconds
            if len(self._claims) > MAX_UNCERTAIN:
                del self._claims[next(iter(self._claims))]

    def by_fleet(self) -> dict[str, list[str]]:
        """Return the attempt ids of the claims, by fleet."""
        found: dict[str, list[str]] = {}
        with self._lock:
            for attempt_id, claim in self._claims.items():
                found.setdefault(claim.fleet_name, []).append(attempt_id)
        return found

    def rest_seconds(self, attempt_id: str) -> float | None:
        """Return how long the server rests after the return of this claim's lease."""
        with self._lock:
            claim = self._claims.get(attempt_id)
            return None if claim is None else claim.rest_seconds

    def mark_not_granted(self, attempt_id: str, now: float) -> None:
        """Note that Redis holds no lease for this claim at `now` (monotonic seconds)."""
        with self._lock:
            claim = self._claims.get(attempt_id)
            if claim is None:
                return
            if claim.not_granted_since is None:
                claim.not_granted_since = now
            if now - claim.not_granted_since >= HELD_BACK_SECONDS:
                del self._claims[attempt_id]

    def mark_returned(self, attempt_id: str) -> None:
        """Note that the claim's lease was found and returned."""
        with self._lock:
            self._claims.pop(attempt_id, None)
