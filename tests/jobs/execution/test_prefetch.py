"""Slot prefetch: the next job is claimed during the run, sent without waiting for Redis, and never lost by
that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpus.errors import ConnectFailed, ServerFailed
from gpus.models import ModelConfig
from gpus.protocol import Lease, ReleaseMode
from gpus.registry.queries import rows_changed
from gpus.runners.base import Accepted, Finished, RunRequest
from jobs.execution.prefetch import EMPTY_SECONDS
from jobs.models import Attempt, Job
from tests.jobs.execution.by_hand import OVER, Hands, by_hand
from tests.jobs.execution.prefetch_by_hand import (
    calls,
    deferred_end,
    hands,
    run_first,
    run_next,
    tries,
    with_followers,
)
from tests.support.worker_harness import WorkerHarness, state

__all__ = ["hands"]

pytestmark = pytest.mark.django_db(transaction=True)


# -- it is sent first, and the ended run released afterwards ---------------------------------------------


def test_the_prefetched_run_is_sent_before_the_ended_one_is_released(hands: Hands) -> None:
    first, second, third, _ = (hands.submit() for _ in range(4))
    following = run_first(hands)
    assert following is not None
    assert following.lease.job_id == second.id
    assert calls(hands, "reserve", "release") == ["reserve"]
    releases = []
    hands.gpu.on_start = lambda run: releases.append(calls(hands, "release"))
    following = run_next(hands, following)
    assert releases == [["release"]]  # in the time of the second run
    assert (state(first), state(second)) == ("completed", "running")
    assert following is not None
    assert following.lease.job_id == third.id
    run_next(hands, following, OVER)
    assert hands.gpu.sent == [first.id, second.id, third.id]
    assert calls(hands, "claim", "reserve") == ["claim", "reserve"]


def test_all_jobs_of_a_queue_run_once_each_and_in_order(hands: Hands) -> None:
    jobs = [hands.submit() for _ in range(7)]
    hands.gpu.seconds = 0.1
    hands.worker.work("m")
    assert hands.gpu.sent == [job.id for job in jobs]
    assert [state(job) for job in jobs] == ["completed"] * 7
    assert [tries(job) for job in jobs] == [1] * 7
    assert len(calls(hands, "release")) == 7
    assert hands.slot() == "free"
    assert hands.worker.completion.keeper.held() == 0


def test_ends_are_written_before_the_starts_that_followed_them(hands: Hands) -> None:
    """One live attempt a slot: the index of the database would refuse the other order."""
    first, second, *_ = (hands.submit() for _ in range(3))
    hands.writer.at_once = False
    following = run_first(hands)
    hands.gpu.on_start = lambda run: hands.writer.commit()
    run_next(hands, following, OVER)
    hands.writer.commit()
    assert (state(first), state(second)) == ("completed", "completed")
    assert list(Attempt.objects.order_by("started_at").values_list("job_id", flat=True)) == [
        first.id,
        second.id,
    ]


def test_a_server_that_accepts_no_connection_does_not_delay_the_deferred_end(harness: WorkerHarness) -> None:
    """Its runner never said that the request is on its way."""
    hands = with_followers(harness, Finished("done"), ConnectFailed("no"))
    first, second, *_ = (hands.submit() for _ in range(3))
    following = run_first(hands)
    hands.gpu.calls_on_sent = False
    run_next(hands, following, OVER)
    assert state(first) == "completed"
    assert (state(second), hands.slot()) == ("retrying", "free")


# -- when no job is prefetched -------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_no_job_is_prefetched_behind_a_long_run(harness: WorkerHarness, seconds: float) -> None:
    """A model without history is expected to take a second."""
    hands = by_hand(harness)
    hands.worker.prefetch.short_seconds = seconds
    for _ in range(3):
        hands.submit()
    run_first(hands)
    assert calls(hands, "reserve") == []


def test_a_pool_without_waiting_jobs_is_asked_only_now_and_then(hands: Hands) -> None:
    for _ in range(6):
        hands.submit()
    hands.gpu.seconds = 0.0
    hands.leases.instead["reserve"] = lambda real, *given, **named: None
    following = run_next(hands, run_first(hands))
    assert calls(hands, "reserve") == ["reserve"]
    hands.clock.move(EMPTY_SECONDS)
    run_next(hands, following)
    assert calls(hands, "reserve") == ["reserve"] * 2


def test_no_job_is_prefetched_at_the_end_of_a_time_slice_or_of_a_worker(hands: Hands) -> None:
    for _ in range(4):
        hands.submit()
    assert run_first(hands, OVER) is None
    claimed = hands.worker.claims.claim_next("main", "m", None)
    hands.worker.drain()
    assert claimed is not None
    assert run_next(hands, hands.loop.prepare(claimed)) is None
    assert calls(hands, "reserve") == []


@pytest.mark.parametrize("change", [{"at_most_once": True}, {"model_type": "async"}])
def test_no_job_is_prefetched_behind_polled_or_at_most_once_runs(
    hands: Hands, change: dict[str, object]
) -> None:
    ModelConfig.objects.update(**change)
    rows_changed.send(None)
    for _ in range(3):
        hands.submit()
    run_first(hands)
    assert calls(hands, "reserve") == []


# -- when it is not sent at once ---------------------------------------------------------------------------


def test_after_a_failed_run_redis_decides_whether_the_prefetched_job_begins(harness: WorkerHarness) -> None:
    hands = with_followers(harness, ServerFailed("no"), Finished("done"))
    _, second, *_ = (hands.submit() for _ in range(3))
    following = run_first(hands)
    assert calls(hands, "reserve", "release") == ["reserve", "release"]
    assert following is not None
    assert (following.lease.job_id, deferred_end(following)) == (second.id, None)
    run_next(hands, following, OVER)
    assert (state(second), tries(second)) == ("completed", 1)


def test_after_a_failed_run_redis_may_give_the_slot_to_another_job(harness: WorkerHarness) -> None:
    """Under the id that was the follower's."""
    hands = with_followers(harness, ServerFailed("no"), Finished("done"))
    _, second, third = (hands.submit() for _ in range(3))

    def vanish(run: RunRequest) -> None:
        for follower in hands.worker.prefetched.leases():
            hands.leases.real.release(follower.ref, ReleaseMode.FREE, worker="w")

    hands.gpu.on_start = vanish
    following = run_first(hands)
    assert following is not None
    assert following.lease.job_id == third.id
    run_next(hands, following, OVER)
    assert (state(third), state(second), hands.waiting()) == ("completed", "queued", 1)


def test_a_prefetched_job_whose_lease_was_just_lost_is_not_sent(hands: Hands) -> None:
    _, second, *_ = (hands.submit() for _ in range(3))

    def forget_it(run: RunRequest) -> None:
        for follower in hands.worker.prefetched.leases():
            hands.worker.completion.keeper.forget(follower.ref)

    hands.gpu.on_start = forget_it
    following = run_first(hands)
    assert following is not None
    assert deferred_end(following) is None
    run_next(hands, following, OVER)  # Redis has said that it may
    assert (state(second), tries(second)) == ("completed", 1)


def test_a_job_that_may_run_once_waits_for_its_commit(hands: Hands) -> None:
    _, second, *_ = (hands.submit() for _ in range(3))

    def may_run_once(real: Callable[..., Lease], *given: object, **named: object) -> Lease:
        ModelConfig.objects.update(at_most_once=True)
        rows_changed.send(None)
        return real(*given, **named)

    hands.leases.instead["reserve"] = may_run_once
    following = run_first(hands)
    assert calls(hands, "reserve", "release") == ["reserve", "release"]
    assert following is not None
    assert (following.lease.job_id, hands.process.awaited) == (second.id, 1)
    assert state(second) == "running"


def test_in_a_young_index_a_prefetched_job_waits_for_its_commit(harness: WorkerHarness) -> None:
    hands = with_followers(harness, generation_age=0.0)
    for _ in range(3):
        hands.submit()
    following = run_first(hands)
    assert following is not None
    assert (deferred_end(following), hands.process.awaited) == (None, 2)


def test_without_a_call_during_the_run_redis_begins_the_next_job(hands: Hands) -> None:
    """Else the run before would end only with the next one."""
    first, *_ = (hands.submit() for _ in range(3))
    hands.gpu.on_start = lambda run: setattr(hands.gpu, "calls_on_sent", False)
    following = run_first(hands)
    assert following is not None
    assert deferred_end(following) is None
    assert state(first) == "completed"


def test_after_a_run_with_a_remote_id_redis_decides_what_runs_next(harness: WorkerHarness) -> None:
    """Accepted under an id of its own: what its row says then is that others may poll it."""
    ModelConfig.objects.update(poll_endpoint_template="/status/{id}")
    hands = with_followers(harness, Accepted("r1"))
    first, second, *_ = (hands.submit() for _ in range(3))
    following = run_first(hands)
    assert following is not None
    assert (following.lease.job_id, deferred_end(following)) == (second.id, None)
    assert state(first) == "completed"


def test_a_prefetched_jobs_wait_does_not_count_as_run_time(hands: Hands) -> None:
    """Neither for its charge nor for its limit."""
    _, second, *_ = (hands.submit() for _ in range(3))
    Job.objects.filter(id=second.id).update(max_run_seconds=6.0)
    run_next(hands, run_first(hands), OVER)
    assert state(second) == "completed"
    assert Attempt.objects.get(job=second).gpu_seconds == hands.gpu.seconds
