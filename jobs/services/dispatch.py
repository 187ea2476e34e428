"""A worker thread's way with a claimed attempt: run it, end it, go straight on with the slot.

The order of writes is the protocol (docs/leasing.md): Redis gives the lease, the start is queued for the
group commit, the run goes to the GPU; at its end Redis moves the lease into `settling` and may hand the
slot to the next ticket in the same step, then the end is queued, and what follows a commit follows it. Where
the next ticket was claimed ahead, its run is sent first, and all that is done in the time that it takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import structlog
from django.conf import settings
from django.db import connection

from gpus.errors import Interrupted
from gpus.protocol import Lease
from gpus.runners.base import RunRequest
from gpus.services.health import evidence_for
from jobs.ids import new_id
from jobs.retry import Ending
from jobs.services.attempts import pushed_body
from jobs.services.claims import Claimed, drop_follower, open_lease, start
from jobs.services.meanwhile import Meanwhile, may_begin
from jobs.services.push_tokens import push_token
from jobs.services.run_end import RunEnd
from jobs.services.run_news import news_of
from jobs.services.runs import AttemptRun, run_seconds
from jobs.services.steps import HandedOver, Order, Over, Remote, Wait
from jobs.services.turns import Turn
from jobs.transitions import StartOutcome

if TYPE_CHECKING:
    from jobs.services.worker import GpuWorker

log = structlog.get_logger()

LONG_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class WorkReport:
    """What one attempt was; shown in Flower. outcome: its end as this worker saw it, or an error code."""

    job_id: str
    model: str
    server: str
    slot: int
    attempt: str
    outcome: str
    seconds: float
    error_code: str = ""


def run_claimed(worker: GpuWorker, claimed: Claimed, turn: Turn) -> tuple[Claimed | None, WorkReport]:
    """Runs a claimed attempt to its end; if the thread's turn is not over then, also claims the next ticket
    for the same slot."""
    lease = claimed.lease
    meanwhile = Meanwhile(worker, claimed, turn)
    try:
        run = make_run(worker, claimed, meanwhile)
        with worker.running(lease, run):
            try:
                over = _drive(worker, lease, run)
            except Exception as error:  # whatever broke, the lease must not be renewed without a run
                log.exception("run_broke", job_id=lease.job_id, attempt=lease.attempt_id)
                over = Over(Ending(Interrupted(f"The dispatcher broke: {error}"), suspect=True))
    finally:
        meanwhile.make_up()
    if run.news is not None:
        run.news.end()
    seconds = run.elapsed_seconds + claimed.ran_seconds
    following = None
    if isinstance(over, HandedOver):
        follower, _ = worker.followers.take(lease.attempt_id)
        worker.settlement.hand_over(claimed.leases, lease, lost=run.was_lost)
        drop_follower(worker, follower)
        outcome, code = "handed_over", ""
    else:
        end = RunEnd(claimed, over, seconds, worker.ports.clock.now())
        following = _end(worker, end, run, turn)
        code = over.ending.error.code if over.ending.error else ""
        outcome = code or "completed"
    # a line for each of hundreds a second helps nobody and costs as much as asking Redis for the next job
    say = log.debug if outcome == "completed" and seconds < LONG_SECONDS else log.info
    say(
        "attempt_finished",
        job_id=lease.job_id,
        attempt=lease.attempt_id,
        epoch=lease.epoch,
        slot=lease.slot,
        model=lease.model,
        outcome=outcome,
        seconds=round(seconds, 3),
    )
    return following, _report(lease, outcome, seconds, code)


def make_run(worker: GpuWorker, claimed: Claimed, meanwhile: Callable[[], None] = lambda: None) -> AttemptRun:
    """The steps of this attempt, with everything that they ask of the world."""
    lease, spec, knobs = claimed.lease, claimed.spec, settings.DISPATCHER
    news = news_of(
        lease,
        worker.settlement,
        attempts_made=claimed.job["attempts_made"],
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
        tell=news.tell,
        meanwhile=meanwhile,
    )
    deadline: datetime | None = claimed.job["deadline_at"]
    run = AttemptRun(
        request,
        worker.runner_for(spec),
        worker.ports.clock,
        limit_seconds=max(0.0, run_seconds(request) - claimed.ran_seconds),
        deadline_seconds=(deadline - worker.ports.clock.now()).total_seconds() if deadline else None,
        is_fresh=lambda: worker.settlement.keeper.age_seconds(lease) < knobs.lease_seconds,
        pushed=lambda: _read_pushed(worker, lease),
        prove_free=lambda: evidence_for(
            lease.server,
            lease.attempt_id,
            transport=worker.ports.transport,
            leases=claimed.leases,
            clock=worker.ports.clock,
        ),
        remote_id=claimed.remote_id,
        news=news,
    )
    if claimed.job["cancel_requested_at"] is not None:
        run.order(Order.CANCEL)
    if claimed.started is not None:
        claimed.started.add_done_callback(lambda future: _stop_if_refused(future, run))
    return run


def _read_pushed(worker: GpuWorker, lease: Lease) -> Mapping[str, Any] | None:
    with worker.ports.database():
        body: Mapping[str, Any] | None = pushed_body.first(attempt_id=lease.attempt_id)
    return body


def _drive(worker: GpuWorker, lease: Lease, run: AttemptRun) -> Over | HandedOver:
    if lease.estimate_seconds >= LONG_SECONDS:
        connection.close()  # the wait for the GPU needs none
        worker.show_run(lease)
    while True:
        run.woken.clear()
        step = run.step()
        if isinstance(step, Wait):
            worker.wait(run, step.seconds)
        elif isinstance(step, Remote):
            worker.settlement.write_remote_id(lease, step.remote_id, run)
            worker.rests.answered(lease.server)
        else:
            return step


def _end(worker: GpuWorker, end: RunEnd, run: AttemptRun, turn: Turn) -> Claimed | None:
    """What the slot runs next: its follower, of which Redis is told once it runs; or what Redis gives."""
    claimed, lease, ending = end.claimed, end.claimed.lease, end.over.ending
    follower, asked = worker.followers.take(lease.attempt_id)
    refused = claimed.refused
    if refused is not None:
        is_free = not ending.suspect
        worker.settlement.refuse_start(claimed.leases, lease, refused, claimed.spec, proven_free=is_free)
        drop_follower(worker, follower)
        return None
    asked_at = worker.ports.clock.monotonic()
    go_on = not ending.suspect and worker.may_claim()
    if follower is not None and go_on and may_begin(worker, follower, run, ending):
        return replace(follower, past=end)
    if follower is None:
        go_on = go_on and not turn.is_over(asked_at, end.seconds)
    if go_on:
        worker.ahead.want(claimed.fleet, lease.pool, slots=worker.busy() + 1, ran_seconds=end.seconds)
    next_id = follower.lease.attempt_id if follower else asked or new_id()
    following = end.release(worker, next_attempt_id=next_id if go_on else None)
    end.write(worker, gather=following is not None)
    if follower is not None and following is not None and following.ref == follower.lease.ref:
        worker.settlement.keeper.add(following, fleet=claimed.fleet, asked_at=asked_at)
        return start(worker, follower)
    drop_follower(worker, follower)
    if following is None:
        return None
    return open_lease(worker, claimed.fleet, claimed.leases, following, asked_at)


def _stop_if_refused(started: Future[StartOutcome], run: AttemptRun) -> None:
    if started.exception() is not None or started.result() is not StartOutcome.STARTED:
        run.order(Order.STOP)


def _report(lease: Lease, outcome: str, seconds: float, error_code: str) -> WorkReport:
    return WorkReport(
        job_id=lease.job_id,
        model=lease.model,
        server=lease.server,
        slot=lease.slot_index,
        attempt=lease.attempt_id,
        outcome=outcome,
        seconds=round(seconds, 3),
        error_code=error_code,
    )
