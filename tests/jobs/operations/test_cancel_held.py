"""A cancel of a job that a worker holds, and that is queued again instead of started."""

from __future__ import annotations

import pytest

from gpus.errors import LeasingUnavailable
from jobs.operations import bulk
from jobs.operations.jobs import CancelOutcome, cancel_job
from jobs.reports.jobs import JobFilter
from jobs.sweeps import cancelling
from tests.jobs.execution.by_hand import Hands
from tests.jobs.execution.prefetch_by_hand import hands, run_first, tries
from tests.support.worker_harness import state

__all__ = ["hands"]

pytestmark = pytest.mark.django_db(transaction=True)


def cancel(hands: Hands, job: object) -> None:
    assert cancel_job(job.id, ports=hands.worker.ports) is CancelOutcome.REQUESTED


def cancel_many(hands: Hands, job: object) -> None:
    outcome = bulk.cancel_jobs(JobFilter(), by="operator", ports=hands.worker.ports)
    assert outcome.done >= 1


@pytest.mark.parametrize("how", [cancel, cancel_many])
def test_a_prefetched_job_whose_cancel_was_requested_ends_when_it_is_given_back(hands: Hands, how) -> None:
    _, second = hands.submit(), hands.submit()

    def cancelled_meanwhile(run: object) -> None:
        how(hands, second)
        assert state(second) == "queued", "a worker holds its ticket"
        hands.worker.drain()

    hands.gpu.on_start = cancelled_meanwhile
    assert run_first(hands) is None
    assert (state(second), tries(second), hands.waiting()) == ("cancelled", 0, 0)


def test_the_sweep_cancels_a_job_that_was_given_back_while_redis_was_away(hands: Hands) -> None:
    _, second = hands.submit(), hands.submit()

    def unanswered(*_: object, **__: object) -> None:
        raise LeasingUnavailable("Redis does not answer")

    def cancelled_meanwhile(run: object) -> None:
        cancel(hands, second)
        hands.worker.drain()
        hands.leases.instead["remove"] = unanswered

    hands.gpu.on_start = cancelled_meanwhile
    run_first(hands)
    assert state(second) == "queued"
    del hands.leases.instead["remove"]
    hands.clock.move(cancelling.PERIOD_SECONDS + 0.1)
    assert cancelling.sweep(hands.worker.ports).repaired == 1
    assert (state(second), tries(second)) == ("cancelled", 0)


def test_the_sweep_leaves_a_job_that_a_worker_holds(hands: Hands) -> None:
    _, second, _third = (hands.submit() for _ in range(3))

    def cancelled_meanwhile(run: object) -> None:
        cancel(hands, second)
        hands.clock.move(cancelling.PERIOD_SECONDS + 0.1)
        assert cancelling.sweep(hands.worker.ports).repaired == 0
        assert state(second) == "queued"

    hands.gpu.on_start = cancelled_meanwhile
    run_first(hands)


def test_a_bulk_cancel_takes_jobs_that_wait_whose_cancel_was_asked_for(hands: Hands) -> None:
    """They went back into the line, and no sweep came by yet."""
    job = hands.submit()
    type(job).objects.filter(id=job.id).update(cancel_requested_at=hands.clock.now())
    outcome = bulk.cancel_jobs(JobFilter(), by="operator", ports=hands.worker.ports)
    assert (outcome.done, outcome.remaining, state(job)) == (1, 0, "cancelled")
