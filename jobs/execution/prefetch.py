"""What a worker's thread does in the time that a GPU takes for a run: it tells of the run before, and claims
the one after it.

So between two short jobs of a slot stands nothing but the first one's answer and the second one's request.
The second was claimed as the first one's follower: Redis gives their slot to nobody else, whether or not it
has heard that the one is over and the other has begun.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from foundation.ids import new_id
from gpus.errors import LeasingUnavailable
from gpus.protocol import Lease
from gpus.runners.registry import is_polled
from jobs.execution.attempt_run import AttemptRun
from jobs.execution.claimed import Claimed, Ready
from jobs.execution.claiming import open_follower, write_start
from jobs.execution.run_end import RunEnd
from jobs.execution.run_inputs import make_run
from jobs.execution.time_slice import Turn
from jobs.execution.worker_state import WorkerState

log = structlog.get_logger()


class Meanwhile:
    """Of one run. Called by its runner once the request is on its way.

    past: the run before it on the slot, as long as nobody was told of its end. turn: of the thread; without
    one nothing is claimed ahead.
    """

    def __init__(self, worker: WorkerState, claimed: Claimed) -> None:
        self.past: RunEnd | None = None
        self.turn: Turn | None = None
        self._worker, self._claimed = worker, claimed
        self._is_done = False

    def __call__(self) -> None:
        """Never raises: it has nothing to do with the run."""
        try:
            with self._worker.starts.asking():
                self._do(claims_ahead=True)
        except Exception:
            log.exception("meanwhile_broke", job_id=self._claimed.lease.job_id)

    def tell_of(self, past: RunEnd) -> None:
        """Of the run before this one on the slot."""
        self.past = past

    def make_up(self) -> None:
        """The run is over, and its runner never called: of the run before it must be told all the same."""
        self._do(claims_ahead=False)

    def _do(self, *, claims_ahead: bool) -> None:
        if self._is_done:
            return
        worker, claimed, past = self._worker, self._claimed, self.past
        asked_at = worker.ports.clock.monotonic()
        next_id = new_id() if claims_ahead and self._may_claim_ahead(asked_at) else None
        self._is_done = True
        self.past = None  # what it brought is not kept while this run goes on
        following = None
        if past is not None:
            following = past.release(worker, next_attempt_id=next_id, begun=claimed.lease)
            past.write(worker, gather=True)
            write_start(worker, claimed)
        elif next_id is not None and worker.followers.may_ask(claimed.lease.pool, asked_at):
            following = self._reserve(next_id)
            if following is None:
                worker.followers.is_shallow(claimed.lease.pool, asked_at)
        if following is not None:
            follower = open_follower(worker, claimed, following, asked_at)
            if follower is not None:
                ready = make_ready(worker, follower)
                now = worker.ports.clock.monotonic()
                worker.followers.put(claimed.lease.attempt_id, replace(follower, ready=ready), now)
        if past is not None and next_id is not None:
            slots = worker.busy()
            worker.ahead.want(claimed.fleet, claimed.lease.pool, slots=slots, ran_seconds=past.seconds)

    def _may_claim_ahead(self, now: float) -> bool:
        claimed, worker, expected = self._claimed, self._worker, self._claimed.lease.estimate_seconds
        return (
            expected < worker.followers.short_seconds
            and not is_polled(claimed.spec)
            and not claimed.spec.at_most_once
            and worker.may_claim()
            and self.turn is not None
            and not self.turn.is_over(now + expected, expected)
        )

    def _reserve(self, next_id: str) -> Lease | None:
        worker, claimed = self._worker, self._claimed
        try:
            return claimed.leases.reserve(
                claimed.lease.ref, worker=worker.name, next_attempt_id=next_id, warm=worker.warm()
            )
        except LeasingUnavailable as error:
            log.info("nothing_claimed_ahead", slot=claimed.lease.slot, error=str(error))
            worker.followers.ask(claimed.lease.attempt_id, next_id)
            return None


def make_ready(worker: WorkerState, claimed: Claimed) -> Ready:
    meanwhile = Meanwhile(worker, claimed)
    return Ready(make_run(worker, claimed, meanwhile), meanwhile)


def goes_on(worker: WorkerState, follower: Claimed, run: AttemptRun, end: RunEnd) -> bool:
    """Whether it is sent before Redis has heard that the run before it is over, of which it will tell: where
    that one went well, so that nothing speaks against its slot, and its server never went on with it under an
    id of its own, so that nobody could take it up."""
    if (
        follower.ready is None
        or end.over.ending.error is not None
        or run.remote_id is not None
        or follower.must_wait
        or not worker.runner_for(follower.spec).tells_meanwhile
        or not worker.settlement.keeper.begin(follower.lease.ref)
    ):
        return False
    follower.ready.meanwhile.tell_of(end)
    return True
