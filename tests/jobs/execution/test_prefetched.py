"""A prefetched job that does not begin is queued again; releases that Redis did not answer are retried."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import OperationalError

from gpus.errors import LeasingUnavailable, ServerLost
from gpus.leasing.contract import Leases
from gpus.models import ModelConfig
from gpus.protocol import Lease, LeaseRef
from gpus.runners.base import Accepted, RunRequest
from jobs.domain.states import JobState
from jobs.execution import follow_ups
from jobs.execution.claiming import Claimed
from jobs.models import Job
from jobs.operations import jobs as operate
from tests.jobs.execution.by_hand import GOES_ON, OVER, Hands
from tests.jobs.execution.prefetch_by_hand import (
    deferred_end,
    hands,
    run_first,
    run_next,
    tries,
    with_followers,
)
from tests.support.by_process import run_sweep
from tests.support.worker_harness import WorkerHarness, state

__all__ = ["hands"]

pytestmark = pytest.mark.django_db(transaction=True)


# -- when it goes back into the line -----------------------------------------------------------------------


def waits_again(hands: Hands, job: Job) -> bool:
    """In the line, untried, and claimed by the next one that comes."""
    return (state(job), tries(job)) == ("queued", 0) and hands.waiting() >= 1


def test_a_suspect_slot_runs_no_next_job(harness: WorkerHarness) -> None:
    hands = with_followers(harness, ServerLost("gone"))
    _, second, third = (hands.submit() for _ in range(3))
    assert run_first(hands) is None
    assert hands.slot() == "quarantined"
    assert waits_again(hands, second)
    assert hands.waiting() == 2
    assert hands.worker.completion.keeper.held() == 0
    assert state(third) == "queued"


def test_a_worker_that_stops_gives_its_prefetched_job_back(hands: Hands) -> None:
    first, second, *_ = (hands.submit() for _ in range(3))
    hands.gpu.on_start = lambda run: hands.worker.drain()
    assert run_first(hands) is None
    assert state(first) == "completed"
    assert waits_again(hands, second)
    assert hands.waiting() == 2


def test_a_run_that_is_handed_over_leaves_its_prefetched_job(harness: WorkerHarness) -> None:
    ModelConfig.objects.update(poll_endpoint_template="/status/{id}")
    hands = with_followers(harness, Accepted("r1"))
    _, second, *_ = (hands.submit() for _ in range(3))
    hands.gpu.on_start = lambda run: hands.worker.drain()
    assert run_first(hands) is None
    assert hands.slot() == "adoptable"
    assert waits_again(hands, second)
    assert hands.waiting() == 2


def test_a_prefetched_job_is_returned_when_the_run_takes_longer_than_expected(hands: Hands) -> None:
    first, second, third = (hands.submit() for _ in range(3))

    def looks(run: RunRequest) -> None:
        if run.job_id == first.id:
            hands.worker.watch()
            assert waits_again(hands, second)

    hands.gpu.on_start = looks
    following = run_first(hands)
    assert following is not None
    assert (following.lease.job_id, deferred_end(following)) == (second.id, None)
    assert run_next(hands, following) is not None
    assert state(third) == "queued"


@pytest.mark.parametrize("drains", [True, False])
def test_a_job_is_not_pushed_before_redis_has_its_release(hands: Hands, drains: bool) -> None:
    """Its ticket would be refused while the job is held, and the job would be lost once it is not."""
    first, second, third = (hands.submit() for _ in range(3))

    def cut_off(run: RunRequest) -> None:
        hands.leases.instead["release"] = lambda real, *given, **named: unanswered()
        hands.worker.drain() if drains else hands.worker.watch()

    hands.gpu.on_start = cut_off
    assert run_first(hands) is None
    assert hands.waiting() == 1
    del hands.leases.instead["release"]
    hands.worker.watch()
    assert (state(first), state(third)) == ("completed", "queued")
    assert waits_again(hands, second)
    assert hands.waiting() == 2


def test_a_database_that_is_away_at_the_release_costs_no_end(hands: Hands, monkeypatch) -> None:
    first, _, _ = (hands.submit() for _ in range(3))

    def away(*asked: object) -> None:
        raise OperationalError("the database is away")

    def cut_off_for_a_moment(run: RunRequest) -> None:
        hands.leases.instead["release"] = lambda real, *given, **named: unanswered()
        hands.worker.watch()
        del hands.leases.instead["release"]
        monkeypatch.setattr(follow_ups, "push_waiting", away)

    hands.gpu.on_start = cut_off_for_a_moment
    run_first(hands)
    assert state(first) == "completed"


def test_until_the_run_takes_too_long_the_prefetched_job_waits(hands: Hands) -> None:
    for _ in range(3):
        hands.submit()
    hands.gpu.seconds = 1.0
    hands.gpu.on_start = lambda run: hands.worker.watch()
    following = run_first(hands)
    assert following is not None
    assert deferred_end(following) is not None


def test_a_prefetched_job_whose_lease_is_lost_is_not_sent(hands: Hands) -> None:
    first, second, third = (hands.submit() for _ in range(3))

    def lose(run: RunRequest) -> None:
        if run.job_id == first.id:
            (follower,) = hands.worker.prefetched.leases()
            hands.leases.instead["renew"] = lambda real, worker, running, ends, followers: [follower.ref]
            hands.worker.completion.keeper.step(hands.clock.monotonic())
            del hands.leases.instead["renew"]

    hands.gpu.on_start = lose
    following = run_first(hands)
    assert following is not None
    assert following.lease.job_id == third.id
    hands.worker.watch()
    assert waits_again(hands, second)


def test_a_stale_ticket_is_not_kept_for_later(hands: Hands) -> None:
    first, second, third = (hands.submit() for _ in range(3))
    at = hands.clock.now()
    Job.objects.filter(id=second.id).update(state=JobState.CANCELLED, finished_at=at)
    following = run_first(hands)
    assert following is not None
    assert following.lease.job_id == third.id
    assert state(first) == "completed"


# -- cancels -----------------------------------------------------------------------------------------------


def test_a_prefetched_job_that_is_cancelled_is_never_sent(hands: Hands) -> None:
    first, second, third, _ = (hands.submit() for _ in range(4))

    def cancel(run: RunRequest) -> None:
        if run.job_id == first.id:
            outcome = operate.cancel_job(second.id, ports=hands.worker.ports)
            assert outcome is operate.CancelOutcome.REQUESTED
            hands.worker.watch()

    hands.gpu.seconds = 0.1
    hands.gpu.on_start = cancel
    following = run_next(hands, run_first(hands))
    assert state(second) == "cancelled"
    run_next(hands, following, OVER)
    assert hands.gpu.sent == [first.id, third.id]


def test_a_change_of_a_prefetched_job_is_checked_at_once(hands: Hands) -> None:
    first, second, *_ = (hands.submit() for _ in range(3))
    nudged = []

    def nudge(run: RunRequest) -> None:
        hands.worker.nudge([second.id])
        nudged.append(hands.worker.nudged.is_set())

    hands.gpu.on_start = nudge
    run_first(hands, GOES_ON)
    assert nudged == [True]
    assert state(first) == "running"


# -- Redis or the database fail ----------------------------------------------------------------------------


def unanswered(*given: object, **named: object) -> None:
    raise LeasingUnavailable("no answer")


def test_releases_without_an_answer_are_retried_in_order(hands: Hands) -> None:
    """Two runs of a slot ended while Redis was away: the first one's end must come first."""
    jobs = [hands.submit() for _ in range(3)]
    following = run_first(hands)
    hands.leases.instead["release"] = unanswered
    assert run_next(hands, following, OVER) is None

    def but_the_first(real: Callable[..., object], ref: LeaseRef, *given: object, **named: object) -> object:
        return unanswered() if ref.job_id == jobs[0].id else real(ref, *given, **named)

    hands.leases.instead["release"] = but_the_first
    hands.leases.calls.clear()
    hands.worker.watch()
    assert [given[0].job_id for given, _ in hands.leases.named("release")] == [jobs[0].id]
    del hands.leases.instead["release"]
    hands.leases.calls.clear()
    hands.worker.watch()
    released = [given[0].job_id for given, _ in hands.leases.named("release")]
    assert released == [jobs[0].id, jobs[1].id]
    assert (state(jobs[0]), state(jobs[1])) == ("completed", "completed")
    assert hands.slot() == "free"
    assert hands.worker.completion.keeper.held() == 0


def test_a_slots_pending_release_is_retried_before_its_next_one(hands: Hands) -> None:
    jobs = [hands.submit() for _ in range(4)]
    following = run_first(hands)

    def first_only(real: Callable[..., Lease | None], ref: object, *given: object, **named: object) -> object:
        hands.leases.instead.pop("release")
        return unanswered()

    hands.leases.instead["release"] = first_only
    following = run_next(hands, following)
    assert following is not None
    run_next(hands, following, OVER)
    assert hands.gpu.sent == [job.id for job in jobs[:3]]
    assert [state(job) for job in jobs[:3]] == ["completed"] * 3
    assert hands.slot() == "free"
    assert hands.waiting() == 1


def test_a_reservation_without_an_answer_begins_when_its_holder_ends(hands: Hands) -> None:
    _, second, *_ = (hands.submit() for _ in range(3))

    def answer_lost(real: Callable[..., object], *given: object, **named: object) -> None:
        real(*given, **named)
        unanswered()

    hands.leases.instead["reserve"] = answer_lost
    following = run_first(hands)
    assert following is not None
    assert (following.lease.job_id, deferred_end(following)) == (second.id, None)
    run_next(hands, following, OVER)
    assert state(second) == "completed"


def test_a_reservation_without_an_answer_is_found_when_its_worker_stops(hands: Hands) -> None:
    _, second, *_ = (hands.submit() for _ in range(3))

    def answer_lost(real: Callable[..., object], *given: object, **named: object) -> None:
        real(*given, **named)
        unanswered()

    hands.leases.instead["reserve"] = answer_lost
    hands.gpu.on_start = lambda run: hands.worker.drain()
    assert run_first(hands) is None
    assert hands.waiting() == 1
    run_sweep("reconcile", hands.worker.ports)
    assert waits_again(hands, second)
    assert hands.waiting() == 2


def test_a_prefetched_job_whose_row_can_not_be_read_stays_queued(hands: Hands, monkeypatch) -> None:
    first, second, *_ = (hands.submit() for _ in range(3))
    real = hands.worker.claims.read_claimed

    def broken(fleet: str, leases: Leases, lease: Lease) -> Claimed | None:
        if lease.job_id == second.id:
            raise RuntimeError("a secret that can't be read")
        return real(fleet, leases, lease)

    monkeypatch.setattr(hands.worker.claims, "read_claimed", broken)
    waiting = []
    hands.gpu.on_start = lambda run: waiting.append(hands.waiting())
    run_first(hands)
    assert waiting == [2]
    assert state(first) == "completed"
    assert tries(second) == 0


def test_a_failure_of_the_prefetch_ends_no_run_and_loses_no_end(hands: Hands, monkeypatch) -> None:
    first, second, *_ = (hands.submit() for _ in range(3))
    following = run_first(hands)
    monkeypatch.setattr(hands.worker.prefetch, "short_seconds", None)  # no number: it can't be compared
    run_next(hands, following, OVER)
    assert hands.gpu.sent == [first.id, second.id]
    assert (state(first), state(second)) == ("completed", "completed")
    assert hands.slot() == "free"


def test_a_start_that_the_database_refuses_stops_the_run_and_drops_what_follows(hands: Hands) -> None:
    _, second, third, _ = (hands.submit() for _ in range(4))
    following = run_first(hands)
    assert following is not None
    at = hands.clock.now()
    Job.objects.filter(id=second.id).update(state=JobState.CANCELLED, finished_at=at)
    assert run_next(hands, following._replace()) is None
    assert tries(second) == 0
    assert waits_again(hands, third)
    assert hands.waiting() == 2
    assert hands.worker.completion.keeper.held() == 0
