"""The checks between a claim and its request: a fresh lease, and a committed start where it is needed."""

from __future__ import annotations

import pytest
from django.conf import settings

from gpus.errors import LeasingUnavailable
from gpus.models import ModelConfig
from jobs.domain.states import JobState
from jobs.models import Attempt, Job
from tests.jobs.execution.by_hand import GOES_ON, OLD, OVER, by_hand, run_claimed
from tests.support.worker_harness import state

pytestmark = pytest.mark.django_db(transaction=True)

LEASE_SECONDS = settings.DISPATCHER.lease_seconds


def run_after(hands, seconds: float):
    """Claims, lets time pass, runs."""
    claimed = hands.worker.claims.claim_next("main", "m", None)
    hands.clock.move(seconds)
    return run_claimed(hands.worker, OVER, claimed)[1]


# -- the lease's age ------------------------------------------------------------------------------------


def test_a_lease_that_is_too_old_is_not_sent_under(harness):
    hands = by_hand(harness)
    job = hands.submit()
    report = run_after(hands, LEASE_SECONDS)
    assert hands.gpu.sent == []
    assert report.outcome == "lease_lost"
    job.refresh_from_db()
    assert (job.state, job.tries, job.deaths) == (JobState.QUEUED, 0, 0), "it cost no try"
    assert Attempt.objects.get(job=job).error_code == "lease_lost"
    assert (hands.slot(), hands.waiting()) == ("free", 1)


def test_a_lease_with_some_time_left_is_sent_under(harness):
    hands = by_hand(harness)
    job = hands.submit()
    run_after(hands, LEASE_SECONDS - 0.01)
    assert hands.gpu.sent == [job.id]


def test_a_lease_that_was_lost_meanwhile_is_not_sent_under(harness):
    hands = by_hand(harness)
    hands.submit()
    hands.leases.instead["renew"] = lambda real, worker, leases, *others: [lease.ref for lease in leases]
    claimed = hands.worker.claims.claim_next("main", "m", None)
    hands.worker.completion.keeper.step(hands.clock.monotonic())
    run_claimed(hands.worker, OVER, claimed)
    assert hands.gpu.sent == []


def test_a_stalled_worker_starts_no_attempt_under_an_expired_lease(harness):
    """The answer to the claim took a whole lease time. A start that is written now has no lease, so no sweep
    could judge it if the worker died."""
    hands = by_hand(harness)
    job = hands.submit()
    late, given_back = iter([LEASE_SECONDS]), []

    def claim(real, *given, **named):
        lease = real(*given, **named)
        given_back.append(lease.attempt_id)
        hands.clock.move(next(late, 0.0))
        return lease

    hands.leases.instead["claim"] = claim
    run_after(hands, 0.0)
    assert hands.gpu.sent == [job.id], "under the next lease"
    assert Attempt.objects.get().id != given_back[0]
    assert (hands.slot(), hands.waiting()) == ("free", 0)


def test_the_age_of_the_next_lease_counts_from_its_release(harness):
    """Redis gives the next lease inside the release; that answer can be late as well."""
    hands = by_hand(harness)
    first, _second = hands.submit(), hands.submit()
    hands.gpu.seconds = 0.1

    def late(real, *given, **named):
        lease = real(*given, **named)
        hands.clock.move(LEASE_SECONDS)
        return lease

    hands.leases.instead["release"] = late
    claimed = hands.worker.claims.claim_next("main", "m", None)
    following, _ = run_claimed(hands.worker, GOES_ON, claimed)
    assert following is None
    assert hands.gpu.sent == [first.id]
    assert Attempt.objects.count() == 1
    assert (hands.slot(), hands.waiting()) == ("free", 1)


def test_after_a_commit_that_took_longer_than_the_lease_no_request_is_sent(harness):
    hands = by_hand(harness, generation_age=0.0)
    hands.submit()
    hands.writer.at_once = False

    def late():
        hands.clock.move(LEASE_SECONDS)
        hands.writer.commit()

    hands.process.on_await = late
    run_after(hands, 0.0)
    assert hands.process.awaited == 1
    assert hands.gpu.sent == []


# -- the durable start ----------------------------------------------------------------------------------


def started_rows(hands) -> list[int]:
    """How many attempts were durable at each request."""
    seen: list[int] = []
    hands.gpu.on_start = lambda run: seen.append(Attempt.objects.filter(id=run.attempt_id).count())
    return seen


@pytest.mark.parametrize("age", [0.0, LEASE_SECONDS - 0.1, None])
def test_in_a_young_generation_the_start_is_durable_before_it_is_sent(harness, age):
    """None: Redis doesn't say how old it is."""
    hands = by_hand(harness, generation_age=age)
    hands.submit()
    hands.writer.at_once = False
    seen = started_rows(hands)
    hands.worker.work("m")
    assert seen == [1]


def test_where_redis_is_away_the_start_is_durable_before_it_is_sent(harness):
    def away(real):
        raise LeasingUnavailable("Redis is away")

    hands = by_hand(harness)
    hands.leases.instead["unsure_age_seconds"] = away
    hands.submit()
    hands.writer.at_once = False
    seen = started_rows(hands)
    hands.worker.work("m")
    assert seen == [1]


@pytest.mark.parametrize("age", [LEASE_SECONDS, OLD])
def test_in_an_older_generation_a_request_does_not_wait_for_the_commit(harness, age):
    hands = by_hand(harness, generation_age=age)
    hands.submit()
    hands.writer.at_once = False
    seen = started_rows(hands)
    hands.worker.work("m")
    assert (seen, hands.process.awaited) == ([0], 0)


def test_a_new_generation_is_noticed_within_a_second(harness):
    hands = by_hand(harness)
    assert not hands.worker.claims.must_await_starts("main", hands.leases)
    hands.leases.instead["unsure_age_seconds"] = lambda real: 0.5
    hands.clock.move(1.0)
    assert hands.worker.claims.must_await_starts("main", hands.leases)


def test_each_fleet_has_its_own_generation(harness):
    hands, other = by_hand(harness), by_hand(harness, generation_age=0.0)
    assert not hands.worker.claims.must_await_starts("main", hands.leases)
    assert hands.worker.claims.must_await_starts("far", other.leases)


def test_an_at_most_once_model_awaits_its_start_in_any_generation(harness):
    ModelConfig.objects.filter(name="m").update(at_most_once=True)
    hands = by_hand(harness)
    hands.submit()
    hands.writer.at_once = False
    seen = started_rows(hands)
    hands.worker.work("m")
    assert seen == [1]


@pytest.mark.parametrize("at_most_once", [True, False])
def test_a_refused_start_sends_nothing(harness, at_most_once):
    """The client cancels between the claim's look and the commit."""
    ModelConfig.objects.filter(name="m").update(at_most_once=at_most_once)
    hands = by_hand(harness, generation_age=OLD if at_most_once else 0.0)
    job = hands.submit()
    hands.writer.at_once = False

    def cancelled_first():
        Job.objects.filter(id=job.id).update(state=JobState.CANCELLED, finished_at=hands.clock.now())
        hands.writer.commit()

    hands.process.on_await = cancelled_first
    assert hands.worker.work("m") == [], "no run began"
    assert hands.gpu.sent == []
    assert state(job) == JobState.CANCELLED
    assert Attempt.objects.count() == 0
    assert (hands.slot(), hands.worker.completion.keeper.held()) == ("free", 0)


def test_a_start_that_can_not_be_written_sends_nothing(harness, monkeypatch):
    hands = by_hand(harness, generation_age=0.0)
    hands.submit()
    monkeypatch.setattr("jobs.transitions.start_attempt", lambda start: 1 / 0)
    assert hands.worker.work("m") == []
    assert hands.gpu.sent == []
    assert (hands.slot(), hands.worker.completion.keeper.held()) == ("free", 0)


def test_a_jobs_own_run_limit_goes_with_its_request(harness):
    hands = by_hand(harness)
    Job.objects.filter(id=hands.submit().id).update(max_run_seconds=3.0)
    hands.submit()
    limits = []
    hands.gpu.on_start = lambda run: limits.append(run.limit_seconds)
    run_after(hands, 0.1)
    run_after(hands, 0.1)
    assert limits == [3.0, float("inf")]
