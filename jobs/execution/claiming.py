"""Claims: from a wake to a run that may start, with its lease, its job's row and its queued start. Claims of
prefetched jobs are in `jobs.execution.prefetch`."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import structlog
from django.conf import settings
from django.db import DatabaseError, transaction

from foundation.database import statements
from foundation.database.statements import value
from foundation.ids import new_id
from foundation.secrets import SecretUnreadable, signed
from gpus.errors import LayoutNotInUse, LeasingUnavailable
from gpus.health.health import evidence_for, refused_url
from gpus.leasing.contract import Leases
from gpus.protocol import Lease, ReleaseMode
from gpus.runners.base import RunRequest
from jobs import transitions
from jobs.domain.states import AttemptState, JobState
from jobs.execution import follow_ups, orphaned_runs
from jobs.execution.attempt_run import AttemptRun, Order
from jobs.execution.completion import StartCommit
from jobs.execution.progress_events import progress_events_of
from jobs.execution.pushed_results import PUSH_TOKEN, pushed_body
from jobs.execution.row_prefetch import OF_JOB
from jobs.execution.worker_state import Claimed, WorkerState
from jobs.models import Attempt, Job
from jobs.transitions import Start, StartOutcome

log = structlog.get_logger()

NO_SERVER_REST_SECONDS = 2.0
ADOPTION_REST_SECONDS = 2.0
"""A run that could not be adopted rests so long; twice as long each time, up to 30 s (`hand_over.lua`)."""

_to_run = statements.Read(lambda: Job.objects.filter(id=value(Job, "id")).values("state", "payload", *OF_JOB))


def claim_next(worker: WorkerState, fleet_name: str, pool: str, host: str | None) -> Claimed | None:
    """Claim a slot and the next ticket whose job may start; None: there is none."""
    leases = worker.ports.leases(fleet_name)
    worker.ports.clocks.make_sure()
    while worker.may_claim():
        asked_at = worker.ports.clock.monotonic()
        attempt_id = new_id()
        with worker.switch_readiness.claim_under_way:
            try:
                lease = leases.claim(
                    pool, worker=worker.name, attempt_id=attempt_id, host=host, warm=worker.warm()
                )
            except LayoutNotInUse:
                return None
            except LeasingUnavailable as error:
                log.info("claim_refused", pool=pool, error=str(error))
                worker.uncertain_claims.add(attempt_id, fleet_name)  # it may have been granted all the same
                return None
            if lease is None:
                return None
            claimed, looks_on = _open(worker, fleet_name, leases, lease, asked_at)
        if claimed is not None or not looks_on:
            return claimed
    return None


def return_uncertain_claims(worker: WorkerState) -> None:
    """Give back the leases of claims whose answer was lost. Nothing ran under them: they must not expire and
    count as deaths (the watcher calls it)."""
    for fleet_name, attempts in worker.uncertain_claims.by_fleet().items():
        leases = worker.ports.leases(fleet_name)
        try:
            for attempt_id in attempts:
                lease = leases.granted(attempt_id, worker=worker.name)
                if lease is None:
                    worker.uncertain_claims.mark_not_granted(attempt_id, worker.ports.clock.monotonic())
                else:
                    give_back_unrun(worker, leases, lease)
                    worker.uncertain_claims.mark_returned(attempt_id)
        except LeasingUnavailable:
            continue


def give_back_unrun(worker: WorkerState, leases: Leases, lease: Lease) -> None:
    """Give back a lease that no thread used: the slot is free at once, the ticket is back in its place."""
    mode = ReleaseMode.ADOPT if lease.adopted else ReleaseMode.FREE
    leases.release(lease.ref, mode, worker=worker.name, gpu_seconds=0.0)
    if not lease.adopted:
        follow_ups.push_waiting(lease.job_id, worker.ports)


def open_lease(
    worker: WorkerState, fleet_name: str, leases: Leases, lease: Lease, asked_at: float
) -> Claimed | None:
    """Read what the run needs and queue its start; give the lease back if it can't run.

    asked_at: monotonic time at which the claim was sent; the lease's age counts from there.
    """
    return _open(worker, fleet_name, leases, lease, asked_at)[0]


def _open(
    worker: WorkerState, fleet_name: str, leases: Leases, lease: Lease, asked_at: float
) -> tuple[Claimed | None, bool]:
    """Return the opened claim, and whether a further claim is worth trying."""
    try:
        if lease.adopted:
            return _adopt(worker, fleet_name, leases, lease, asked_at), True
        return _begin(worker, fleet_name, leases, lease, asked_at), True
    except DatabaseError as error:
        log.warning("claim_without_database", job_id=lease.job_id, error=str(error).strip())
        worker.pause_claims()  # this is about the process: no lease of any pool can be opened
        # an adopted run goes back to whoever comes next; a ticket is brought back by the reconciler
        _give_back(worker, leases, lease, ReleaseMode.ADOPT if lease.adopted else ReleaseMode.FREE)
        return None, False
    except LeasingUnavailable as error:
        # the lease runs out, and the sweep brings its epoch up to the one that the database may have by now
        log.warning("adoption_without_redis", job_id=lease.job_id, slot=lease.slot, error=str(error))
        return None, False
    except SecretUnreadable as error:
        log.warning("server_secret_unreadable", job_id=lease.job_id, slot=lease.slot, error=str(error))
        _back_off(worker, leases, lease, push=not lease.adopted)  # other servers can run it
        return None, True
    except Exception:  # a bug, a row that can't be read: not the job's fault, and no death
        log.exception("claim_broke", job_id=lease.job_id, slot=lease.slot)
        _back_off(worker, leases, lease)
        return None, lease.adopted  # the next ticket would only break on another server


def _back_off(worker: WorkerState, leases: Leases, lease: Lease, *, push: bool = False) -> None:
    """Give back a lease that would fail again: its run or its server rests. push: as for `_give_back`, of a
    lease that is not adopted."""
    if lease.adopted:
        _give_back(worker, leases, lease, ReleaseMode.ADOPT, rest_seconds=ADOPTION_REST_SECONDS)
    else:
        rest = worker.completion.backoff.after_failure(lease.server)
        _give_back(worker, leases, lease, ReleaseMode.FREE, rest_seconds=rest, push=push)


def _begin(
    worker: WorkerState, fleet_name: str, leases: Leases, lease: Lease, asked_at: float
) -> Claimed | None:
    claimed = read_claimed(worker, fleet_name, leases, lease)
    if claimed is None:
        return None
    if worker.ports.clock.monotonic() - asked_at >= settings.DISPATCHER.lease_seconds:
        # this process stood still meanwhile: a start that is written now has no lease any more
        _give_back(worker, leases, lease, ReleaseMode.FREE, push=True)
        return None
    worker.completion.keeper.add(lease, fleet=fleet_name, asked_at=asked_at)
    return start(worker, claimed)


def start(worker: WorkerState, claimed: Claimed) -> Claimed | None:
    """Queue the start of an attempt that holds its slot and is not sent yet; return None if it may not be
    sent."""
    write_start(worker, claimed)
    if claimed.must_wait:
        refused = _await_start(worker, claimed)
        if refused is not None:
            worker.completion.refuse_start(
                claimed.leases, claimed.lease, refused, claimed.spec, proven_free=True
            )
            return None
    return claimed


def write_start(worker: WorkerState, claimed: Claimed) -> None:
    if claimed.started is None:
        raise ValueError("an adopted attempt was started by another worker")
    lease, now = claimed.lease, worker.ports.clock.now()
    worker.completion.write_start(
        Start(lease.job_id, lease.attempt_id, lease.slot, lease.model, worker.name, now), claimed.started
    )


def read_claimed(worker: WorkerState, fleet_name: str, leases: Leases, lease: Lease) -> Claimed | None:
    """Read what the run needs; give the lease back if its job moved on, or can't run there."""
    job = worker.row_prefetch.take(lease.pool, lease.job_id)
    with worker.ports.database():
        job = job or _to_run.first(id=lease.job_id)
        registry = worker.ports.registry
        spec = registry.model_spec(lease.model)
        endpoint = registry.endpoint_for(lease.server, lease.model)
    if job is None or job["state"] != JobState.QUEUED:
        _give_back(worker, leases, lease, ReleaseMode.FREE)  # a stale ticket: the job moved on meanwhile
        return None
    if spec is None or endpoint is None:
        log.warning("lease_without_endpoint", slot=lease.slot, model=lease.model)
    if spec is not None and not worker.may_run(spec):
        log.warning("runner_not_installed", slot=lease.slot, model=lease.model, model_type=spec.model_type)
        endpoint = None
    if spec is None or endpoint is None or endpoint.is_off:  # the lease layer does not know it yet
        _give_back(worker, leases, lease, ReleaseMode.FREE, rest_seconds=NO_SERVER_REST_SECONDS, push=True)
        return None
    must_wait = spec.at_most_once or worker.must_await_starts(fleet_name, leases)
    return Claimed(fleet_name, leases, lease, job, spec, endpoint, StartCommit(), must_wait=must_wait)


def _await_start(worker: WorkerState, claimed: Claimed) -> StartOutcome | None:
    """Wait until the start is durable; return why it was refused, or None."""
    if claimed.started is not None:
        worker.until_done(claimed.started)
    return claimed.refused


def _adopt(
    worker: WorkerState, fleet_name: str, leases: Leases, lease: Lease, asked_at: float
) -> Claimed | None:
    """Take the waiting run over: database epoch first, then the lease's: between the two nobody's result
    counts but ours."""
    attempt = Attempt.objects.filter(id=lease.attempt_id).first()
    if attempt is None or attempt.state != AttemptState.WAITING:
        # it ended meanwhile: the slot is as clean as that end said, and a quarantine row says if not
        _give_back(worker, leases, lease, ReleaseMode.FREE if _ended_clean(lease) else ReleaseMode.SUSPECT)
        return None
    gone = orphaned_runs.missing_part(lease.server, lease.model)
    if gone is not None:
        log.warning("run_out_of_reach", job_id=lease.job_id, slot=lease.slot, why=gone)
        if not orphaned_runs.end(attempt, gone, leases, worker.ports):
            _back_off(worker, leases, lease)
        return None
    registry = worker.ports.registry
    spec, endpoint = registry.model_spec(lease.model), registry.endpoint_for(lease.server, lease.model)
    if spec is not None and not worker.may_run(spec):
        log.warning("runner_not_installed", slot=lease.slot, model=lease.model, model_type=spec.model_type)
        endpoint = None
    if spec is None or endpoint is None:  # what this process remembers is older: the next look knows better
        _back_off(worker, leases, lease)
        return None
    epoch, now = attempt.epoch, worker.ports.clock.now()
    with transaction.atomic():
        job = Job.objects.filter(id=lease.job_id).values(*OF_JOB).get()
        won = transitions.take_over(lease.job_id, lease.attempt_id, epoch, worker.name, now)
    if not won or not leases.take_over(lease.ref, worker=worker.name, new_epoch=epoch + 1):
        return None
    lease = replace(lease, epoch=epoch + 1, adopted=False)
    worker.completion.keeper.add(lease, fleet=fleet_name, asked_at=asked_at)
    log.info(
        "attempt_adopted", job_id=lease.job_id, attempt=lease.attempt_id, epoch=lease.epoch, slot=lease.slot
    )
    return Claimed(
        fleet_name,
        leases,
        lease,
        {**job, "payload": None},
        spec,
        endpoint,
        None,
        remote_id=attempt.remote_id,
        ran_seconds=max(0.0, (now - attempt.started_at).total_seconds()),
    )


def _ended_clean(lease: Lease) -> bool:
    return Attempt.objects.filter(id=lease.attempt_id, slot_freed=True).exists()


def _give_back(
    worker: WorkerState,
    leases: Leases,
    lease: Lease,
    mode: ReleaseMode,
    *,
    rest_seconds: float | None = None,
    push: bool = False,
) -> None:
    """Release a lease under which nothing of ours ran. If Redis is away it expires, and the sweep resolves
    it. push: push the job's ticket again."""
    try:
        leases.release(lease.ref, mode, worker=worker.name, gpu_seconds=0.0, rest_seconds=rest_seconds)
    except LeasingUnavailable as error:
        log.warning("release_failed", slot=lease.slot, error=str(error))
    if push:
        follow_ups.push_waiting(lease.job_id, worker.ports)


def make_run(
    worker: WorkerState, claimed: Claimed, prefetch: Callable[[], None] = lambda: None
) -> AttemptRun:
    """Return the run of this attempt."""
    lease, spec, knobs = claimed.lease, claimed.spec, settings.DISPATCHER
    completion = worker.completion
    progress_events = progress_events_of(
        partial(completion.write_progress, lease),
        completion.writer,
        completion.ports.clock,
        tries=claimed.job["attempts_made"] + lease.epoch,
        rest_seconds=knobs.news_seconds,
    )
    request = RunRequest(
        job_id=lease.job_id,
        attempt_id=lease.attempt_id,
        model=spec,
        endpoint=claimed.endpoint,
        payload=claimed.job["payload"],
        slot=lease.slot,
        fence=lease.fence,
        push_url=f"{knobs.public_url.rstrip('/')}/api/v1/tasks/callback/{lease.job_id}",
        push_token=signed(lease.attempt_id, purpose=PUSH_TOKEN),
        limit_seconds=claimed.job["max_run_seconds"] or math.inf,
        tell=progress_events.add,
        meanwhile=prefetch,
    )
    run = AttemptRun(
        request,
        worker.runner_for(spec),
        worker.ports.clock,
        deadline=claimed.job["deadline_at"],
        clocks_agree=lambda: worker.ports.clocks.report().agree,
        is_fresh=lambda: worker.completion.keeper.age_seconds(lease) < knobs.lease_seconds,
        pushed=lambda: _read_pushed(worker, lease),
        prove_free=lambda: evidence_for(
            lease.server,
            lease.attempt_id,
            transport=worker.ports.transport,
            leases=claimed.leases,
            clock=worker.ports.clock,
        ),
        refused_url=lambda: refused_url(lease.server, lease.model, transport=worker.ports.transport),
        in_background=worker.in_background,
        remote_id=claimed.remote_id,
        ran_seconds=claimed.ran_seconds,
        progress_events=progress_events,
    )
    if claimed.job["cancel_requested_at"] is not None:
        run.order(Order.CANCEL)
    if claimed.started is not None:
        # weak reference: avoids a reference cycle between run and future
        known = weakref.ref(run)
        claimed.started.add_done_callback(
            lambda started: _stop_if_refused(cast("StartCommit", started), known())
        )
    return run


def _read_pushed(worker: WorkerState, lease: Lease) -> Mapping[str, Any] | None:
    with worker.ports.database():
        body: Mapping[str, Any] | None = pushed_body.first(attempt_id=lease.attempt_id)
    return body


def _stop_if_refused(started: StartCommit, run: AttemptRun | None) -> None:
    """run: None if it is over."""
    if started.refused is not None and run is not None:
        run.order(Order.STOP)
