"""Makes the `AttemptRun` of a claimed attempt, with all its ports."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from django.conf import settings

from gpus.health.health import evidence_for, refused_url
from gpus.protocol import Lease
from gpus.runners.base import RunRequest
from jobs.execution.attempt_run import AttemptRun, run_seconds
from jobs.execution.claimed import Claimed
from jobs.execution.progress_events import progress_events_of
from jobs.execution.push_tokens import push_token
from jobs.execution.pushed_results import pushed_body
from jobs.execution.run_steps import Order
from jobs.execution.worker_state import WorkerState
from jobs.transitions import StartOutcome


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
        push_token=push_token(lease.attempt_id),
        limit_seconds=claimed.job["max_run_seconds"] or math.inf,
        tell=progress_events.add,
        meanwhile=prefetch,
    )
    run = AttemptRun(
        request,
        worker.runner_for(spec),
        worker.ports.clock,
        limit_seconds=max(0.0, run_seconds(request) - claimed.ran_seconds),
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
        progress_events=progress_events,
    )
    if claimed.job["cancel_requested_at"] is not None:
        run.order(Order.CANCEL)
    if claimed.started is not None:
        # weak reference: avoids a reference cycle between run and future
        known = weakref.ref(run)
        claimed.started.add_done_callback(lambda started: _stop_if_refused(started, known()))
    return run


def _read_pushed(worker: WorkerState, lease: Lease) -> Mapping[str, Any] | None:
    with worker.ports.database():
        body: Mapping[str, Any] | None = pushed_body.first(attempt_id=lease.attempt_id)
    return body


def _stop_if_refused(started: Future[StartOutcome], run: AttemptRun | None) -> None:
    """run: None if it is over."""
    refused = started.exception() is not None or started.result() is not StartOutcome.STARTED
    if refused and run is not None:
        run.order(Order.STOP)
