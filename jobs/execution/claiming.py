"""Claims: from a wake to a run with its lease, its job's row and its queued start. Prefetched jobs are
claimed in `jobs.execution.prefetch`; why leases, rows and requests have this order:
docs/explanation/leasing.md."""

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
from foundation.public_url import public_url
from foundation.secrets import SecretUnreadable, signed
from gpus.errors import LayoutNotInUse, LeasingUnavailable
from gpus.health.health import evidence_for, refused_url
from gpus.leasing.contract import Leases
from gpus.protocol import Lease, ModelSpec, ReleaseMode
from gpus.runners.base import Abort, RunRequest
from jobs import transitions
from jobs.callbacks.guard import refused_origins
from jobs.domain.states import AttemptState, JobState
from jobs.execution import follow_ups, orphaned_runs
from jobs.execution.answer_files import AnswerFiles
from jobs.execution.artifact_inputs import with_input_urls
from jobs.execution.attempt_run import AttemptRun, Order
from jobs.execution.completion import StartCommit
from jobs.execution.log_events import LogLimits, position_in_log
from jobs.execution.payload_urls import has_urls, with_files_of_urls
from jobs.execution.progress_events import progress_events_of
from jobs.execution.pushed_results import PUSH_TOKEN, pushed_body
from jobs.execution.row_prefetch import OF_JOB, rows_to_run
from jobs.execution.run_outputs import RunOutputs, inline_bytes_of
from jobs.execution.url_files import UrlFiles
from jobs.execution.worker_state import Claimed, WorkerState
from jobs.models import Attempt, Job
from jobs.transitions import Start, StartOutcome

log = structlog.get_logger()

NO_SERVER_REST_SECONDS = 2.0
ADOPTION_REST_SECONDS = 2.0
"""Pause of a run that could not be adopted; it doubles each time, up to 30 s (`hand_over.lua`)."""

_to_run = statements.Read(lambda: rows_to_run(Job.objects.filter(id=value(Job, "id"))))


def claim_next(worker: WorkerState, fleet_name: str, pool: str, host: str | None) -> Claimed | None:
    """Claim a free slot and the next ticket whose job may start.

    host: of a pinned worker, which claims slots of this host only; None: of the servers that are reached over
    the network. Returns None if there is neither, or no claim is possible now."""
    leases = worker.ports.leases(fleet_name)
    worker.ports.clock_watch.confirm_time()
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
                worker.uncertain_claims.add(attempt_id, fleet_name)  # Redis may have granted it
                return None
            if lease is None:
                return None
            claimed, may_try_next = _open(worker, fleet_name, leases, lease, asked_at)
        if claimed is not None or not may_try_next:
            return claimed
    return None


def return_uncertain_claims(worker: WorkerState) -> None:
    """Return the leases of claims whose answer was lost (the watcher calls it). No job ran under them, so
    they must not expire and count as deaths."""
    for fleet_name, attempts in worker.uncertain_claims.by_fleet().items():
        leases = worker.ports.leases(fleet_name)
        try:
            for attempt_id in attempts:
                lease = leases.granted(attempt_id, worker=worker.name)
                if lease is None:
                    worker.uncertain_claims.mark_not_granted(attempt_id, worker.ports.clock.monotonic())
                else:
                    _return_unrun_lease(worker, leases, lease)
                    worker.uncertain_claims.mark_returned(attempt_id)
        except LeasingUnavailable:
            continue


def _return_unrun_lease(worker: WorkerState, leases: Leases, lease: Lease) -> None:
    """Return a lease without a run: free its slot, and put the ticket back in its place.

    Raises LeasingUnavailable.
    """
    mode = ReleaseMode.ADOPT if lease.adopted else ReleaseMode.FREE
    leases.release(lease.ref, mode, worker=worker.name, gpu_seconds=0.0)
    if not lease.adopted:
        follow_ups.push_waiting(lease.job_id, worker.ports)


def open_lease(
    worker: WorkerState, fleet_name: str, leases: Leases, lease: Lease, asked_at: float
) -> Claimed | None:
    """Read the job and its endpoint, and queue the attempt's start; if the job can't run, return its lease.

    asked_at: monotonic time at which the claim was sent; the lease's age counts from there.
    """
    return _open(worker, fleet_name, leases, lease, asked_at)[0]


def _open(
    worker: WorkerState, fleet_name: str, leases: Leases, lease: Lease, asked_at: float
) -> tuple[Claimed | None, bool]:
    """Open a lease as `open_lease`. Return the claim or None, and True if another claim is worth trying."""
    try:
        if lease.adopted:
            return _adopt(worker, fleet_name, leases, lease, asked_at), True
        return _open_new(worker, fleet_name, leases, lease, asked_at), True
    except DatabaseError as error:
        log.warning("claim_without_database", job_id=lease.job_id, error=str(error).strip())
        worker.pause_claims()  # the process has no database: it can open no lease of any pool
        # the next worker adopts the run; the reconciler pushes a ticket again
        _return_lease(worker, leases, lease, ReleaseMode.ADOPT if lease.adopted else ReleaseMode.FREE)
        return None, False
    except LeasingUnavailable as error:
        # the lease expires, and the sweep raises its epoch to the one that the database may have by now
        log.warning("adoption_without_redis", job_id=lease.job_id, slot=lease.slot, error=str(error))
        return None, False
    except SecretUnreadable as error:
        log.warning("server_secret_unreadable", job_id=lease.job_id, slot=lease.slot, error=str(error))
        _return_and_rest(worker, leases, lease, push=not lease.adopted)  # other servers can run it
        return None, True
    except Exception:  # a bug or an unreadable row: not the job's fault, so no death is counted
        log.exception("claim_crashed", job_id=lease.job_id, slot=lease.slot)
        _return_and_rest(worker, leases, lease)
        return None, lease.adopted  # the next ticket would fail the same way


def _return_and_rest(worker: WorkerState, leases: Leases, lease: Lease, *, push: bool = False) -> None:
    """Return a lease that would fail again, and pause its run or server. push: as for `_return_lease`; only
    for a lease that is not adopted."""
    if lease.adopted:
        _return_lease(worker, leases, lease, ReleaseMode.ADOPT, rest_seconds=ADOPTION_REST_SECONDS)
    else:
        rest = worker.completion.backoff.after_failure(lease.server)
        _return_lease(worker, leases, lease, ReleaseMode.FREE, rest_seconds=rest, push=push)


def _open_new(
    worker: WorkerState, fleet_name: str, leases: Leases, lease: Lease, asked_at: float
) -> Claimed | None:
    claimed = read_claimed(worker, fleet_name, leases, lease)
    if claimed is None:
        return None
    if worker.ports.clock.monotonic() - asked_at >= settings.DISPATCHER.lease_seconds:
        # this process stalled: the lease has expired, so no start may be written under it
        _return_lease(worker, leases, lease, ReleaseMode.FREE, push=True)
        return None
    worker.completion.keeper.add(lease, fleet=fleet_name, asked_at=asked_at)
    return start_attempt(worker, claimed)


def start_attempt(worker: WorkerState, claimed: Claimed) -> Claimed | None:
    """Queue the start of an attempt that holds its slot; if it must not be sent earlier, wait for the commit.

    Returns the claim, or None if the database refused the start.
    """
    queue_start(worker, claimed)
    if claimed.must_wait:
        refused = _await_start(worker, claimed)
        if refused is not None:
            worker.completion.refuse_start(
                claimed.leases, claimed.lease, refused, claimed.spec, proven_free=True
            )
            return None
    return claimed


def queue_start(worker: WorkerState, claimed: Claimed) -> None:
    """Queue the attempt's start for the group commit."""
    if claimed.started is None:
        raise ValueError("an adopted attempt was started by another worker")
    lease, now = claimed.lease, worker.ports.clock.now()
    worker.completion.write_start(
        Start(lease.job_id, lease.attempt_id, lease.slot, lease.model, worker.name, now), claimed.started
    )


def read_claimed(worker: WorkerState, fleet_name: str, leases: Leases, lease: Lease) -> Claimed | None:
    """Read the job's row, its model and endpoint. If it is not queued any more or can't run there, return its
    lease to Redis, and None."""
    job = worker.row_prefetch.take(lease.pool, lease.job_id)
    with worker.ports.database():
        job = job or _to_run.first(id=lease.job_id)
        registry = worker.ports.registry
        spec = registry.model_spec(lease.model)
        endpoint = registry.endpoint_for(lease.server, lease.model)
    if job is None or job["state"] != JobState.QUEUED:
        _return_lease(worker, leases, lease, ReleaseMode.FREE)  # a stale ticket: the job was moved meanwhile
        return None
    if spec is None or endpoint is None:
        log.warning("lease_without_endpoint", slot=lease.slot, model=lease.model)
    if not _has_runner(worker, spec, lease) or spec is None or endpoint is None or endpoint.is_off:
        # the index is older than the database
        _return_lease(worker, leases, lease, ReleaseMode.FREE, rest_seconds=NO_SERVER_REST_SECONDS, push=True)
        return None
    must_wait = spec.at_most_once or worker.must_await_starts(fleet_name, leases)
    return Claimed(fleet_name, leases, lease, job, spec, endpoint, StartCommit(), must_wait=must_wait)


def _has_runner(worker: WorkerState, spec: ModelSpec | None, lease: Lease) -> bool:
    """Return False, and log it, if no runner of the model is installed here."""
    if spec is None or worker.may_run(spec):
        return True
    log.warning("runner_not_installed", slot=lease.slot, model=lease.model, model_type=spec.model_type)
    return False


def _await_start(worker: WorkerState, claimed: Claimed) -> StartOutcome | None:
    """Wait until the start is committed; return why it was refused, or None."""
    if claimed.started is not None:
        worker.wait_for_commit(claimed.started)
    return claimed.refused


def _adopt(
    worker: WorkerState, fleet_name: str, leases: Leases, lease: Lease, asked_at: float
) -> Claimed | None:
    """Adopt a waiting run of another worker. Raises the epoch in the database first, then the lease's, so
    that between the two only this worker's result counts."""
    attempt = Attempt.objects.filter(id=lease.attempt_id).first()
    if attempt is None or attempt.state != AttemptState.WAITING:
        # the attempt has ended: its row says whether that end proved the slot free
        _return_lease(worker, leases, lease, ReleaseMode.FREE if _ended_clean(lease) else ReleaseMode.SUSPECT)
        return None
    gone = orphaned_runs.missing_registration(lease.server, lease.model)
    if gone is not None:
        log.warning("run_unreachable", job_id=lease.job_id, slot=lease.slot, why=gone)
        if not orphaned_runs.end_unreachable(attempt, gone, leases, worker.ports):
            _return_and_rest(worker, leases, lease)
        return None
    registry = worker.ports.registry
    spec, endpoint = registry.model_spec(lease.model), registry.endpoint_for(lease.server, lease.model)
    if not _has_runner(worker, spec, lease) or spec is None or endpoint is None:
        # the cached registry is older than the rows read above
        _return_and_rest(worker, leases, lease)
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
        logs_seen=position_in_log(lease.job_id, attempt.number),
    )


def _ended_clean(lease: Lease) -> bool:
    return Attempt.objects.filter(id=lease.attempt_id, slot_freed=True).exists()


def _return_lease(
    worker: WorkerState,
    leases: Leases,
    lease: Lease,
    mode: ReleaseMode,
    *,
    rest_seconds: float | None = None,
    push: bool = False,
) -> None:
    """Release a lease under which this worker ran no job. If Redis is away the lease expires, and a sweep
    resolves it. push: push the job's ticket again."""
    try:
        leases.release(lease.ref, mode, worker=worker.name, gpu_seconds=0.0, rest_seconds=rest_seconds)
    except LeasingUnavailable as error:
        log.warning("release_failed", slot=lease.slot, error=str(error))
    if push:
        follow_ups.push_waiting(lease.job_id, worker.ports)


def make_run(
    worker: WorkerState, claimed: Claimed, prefetch: Callable[[], None] = lambda: None
) -> AttemptRun:
    """Make the run of a claimed attempt.

    prefetch: called once, during or right after sending (`RunRequest.on_sent`)."""
    lease, spec, knobs = claimed.lease, claimed.spec, settings.DISPATCHER
    completion = worker.completion
    tries = claimed.job["attempts_made"] + lease.epoch
    progress_events = progress_events_of(
        partial(completion.write_progress, lease),
        completion.writer,
        completion.ports.clock,
        tries=tries,
        rest_seconds=knobs.news_seconds,
        log_limits=_log_limits(worker, tries, knobs),
    )
    inline_bytes = inline_bytes_of(spec, claimed.job.get("followed_by"), knobs.inline_result_bytes)
    abort = Abort()
    files = _answer_files(worker, claimed, abort) if spec.may_have_files else None
    outputs = RunOutputs(lease, worker.ports, inline_bytes=inline_bytes, files=files)
    tasks_url = public_url("/api/v1/tasks", base=knobs.public_url)
    request = RunRequest(
        job_id=lease.job_id,
        attempt_id=lease.attempt_id,
        model=spec,
        endpoint=claimed.endpoint,
        payload=claimed.job["payload"],
        slot=lease.slot,
        fence=lease.fence,
        push_url=f"{tasks_url}/callback/{lease.job_id}",
        artifact_url=f"{tasks_url}/artifacts/{lease.job_id}",
        push_token=signed(lease.attempt_id, purpose=PUSH_TOKEN),
        limit_seconds=claimed.job["max_run_seconds"] or math.inf,
        report=progress_events.add,
        on_sent=prefetch,
        logs_seen=claimed.logs_seen,
        save=outputs.save,
        max_file_bytes=knobs.answer_file_bytes,
    )
    run = AttemptRun(
        request,
        worker.runner_for(spec),
        worker.ports.clock,
        deadline=claimed.job["deadline_at"],
        clocks_agree=lambda: worker.ports.clock_watch.report().agree,
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
        to_send=_to_send(worker, claimed, abort, fetches_urls=bool(knobs.fetched_urls)),
        keep=outputs.keep,
        keep_seconds=knobs.artifact_save_seconds,
        abort=abort,
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


def _to_send(
    worker: WorkerState, claimed: Claimed, abort: Abort, *, fetches_urls: bool
) -> Callable[[RunRequest], RunRequest] | None:
    """Return what makes the payload that the server gets; None: it is sent as it is."""
    ports = worker.ports
    reads_urls = fetches_urls and has_urls(claimed.spec, claimed.job["payload"])
    if not reads_urls and not claimed.job.get("uses_artifacts"):
        return None
    with_urls = partial(with_input_urls, ports=ports)
    if not reads_urls:
        return with_urls
    fetcher, tenant_id = worker.url_fetcher, int(claimed.lease.tenant)
    return lambda request: with_urls(with_files_of_urls(request, tenant_id, fetcher, abort, ports))


def _answer_files(worker: WorkerState, claimed: Claimed, abort: Abort) -> AnswerFiles:
    """Return what keeps the files in the result of a claimed attempt. abort: ends their reading."""
    ports = worker.ports
    urls = UrlFiles(
        claimed.endpoint,
        int(claimed.lease.tenant),
        ports.clock,
        lambda: refused_origins(ports.registry),
        abort,
    )
    return AnswerFiles(claimed.spec, ports.schema_processes, urls)


def _log_limits(worker: WorkerState, tries: int, knobs: Any) -> LogLimits | None:
    """Return the limits of a run's log lines. tries: its number among its job's tries, from 1. knobs: the
    `DispatcherSettings`."""
    allowance = knobs.log_chars_per_job // tries
    if not allowance:
        return None
    return LogLimits(allowance, knobs.log_lines_per_second, knobs.log_line_chars, worker.log_rate)


def _read_pushed(worker: WorkerState, lease: Lease) -> Mapping[str, Any] | None:
    with worker.ports.database():
        body: Mapping[str, Any] | None = pushed_body.first(attempt_id=lease.attempt_id)
    return body


def _stop_if_refused(started: StartCommit, run: AttemptRun | None) -> None:
    """Stop the run if the database refused its start. run: None if it has ended."""
    if started.refused is not None and run is not None:
        run.order(Order.START_REFUSED)
