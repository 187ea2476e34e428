"""The end of a run: the order of release and commit, the charge, and which task goes on with the slot."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gpus.errors import BadInput, ConnectFailed, GpuBusy, LeasingUnavailable, ServerFailed
from gpus.runners.base import Accepted, Finished
from jobs.domain.states import AttemptState, JobState
from jobs.models import Attempt
from tests.jobs.execution.by_hand import by_hand
from tests.support.worker_harness import state

pytestmark = pytest.mark.django_db(transaction=True)


def charges(hands) -> list[float]:
    """What each release gave the tenant's account."""
    return [named["gpu_seconds"] for _, named in hands.leases.named("release")]


def test_a_slot_is_released_before_its_end_can_be_committed(harness):
    """The fastest writer commits at once; a slot that settles before its release would stay shut."""
    hands = by_hand(harness)
    job = hands.submit()
    hands.worker.work("m")
    assert state(job) == JobState.COMPLETED
    names = [name for name, _, _ in hands.leases.calls if name in ("release", "confirm_ends")]
    assert names == ["release", "confirm_ends"]
    assert hands.slot() == "free"
    assert hands.worker.completion.keeper.held() == 0


def test_a_released_slot_waits_for_its_end_to_be_durable(harness):
    hands = by_hand(harness)
    hands.submit()
    hands.writer.at_once = False
    hands.worker.work("m")
    assert hands.slot() == "settling"
    assert hands.worker.completion.keeper.held() == 1, "the unconfirmed end is renewed"
    hands.writer.commit()
    assert hands.slot() == "free"
    assert hands.worker.completion.keeper.held() == 0


@pytest.mark.parametrize("error", [GpuBusy(), ConnectFailed()], ids=lambda error: error.code)
def test_a_refused_run_is_charged_nothing(harness, error):
    """Also if the refusal took its time."""
    hands = by_hand(harness, error)
    job = hands.submit()
    hands.worker.work("m")
    assert hands.gpu.sent == [job.id]
    assert charges(hands) == [0.0]
    assert Attempt.objects.get(job=job).gpu_seconds == 0.0


def test_a_run_that_was_never_sent_is_charged_nothing(harness, monkeypatch):
    """The process stood still just before it looked at its lease."""
    hands = by_hand(harness)
    job = hands.submit()

    def too_old(lease):
        hands.clock.move(7.0)
        return math.inf

    monkeypatch.setattr(hands.worker.completion.keeper, "age_seconds", too_old)
    [report] = hands.worker.work("m")
    assert (report.seconds, hands.gpu.sent) == (7.0, [])
    assert charges(hands) == [0.0]
    assert Attempt.objects.get(job=job).gpu_seconds == 0.0


@pytest.mark.parametrize("answer", [Finished(1), ServerFailed(), BadInput()], ids=str)
def test_a_run_is_charged_its_time(harness, answer):
    """A server that failed had the GPU all the same."""
    hands = by_hand(harness, answer)
    job = hands.submit()
    hands.worker.work("m")
    assert charges(hands) == [5.0]
    assert Attempt.objects.get(job=job).gpu_seconds == 5.0


@pytest.mark.database
def test_an_adopted_run_is_charged_from_its_first_start(harness):
    hands = by_hand(harness, Accepted("r1"))
    job = hands.submit()
    hands.gpu.on_start = lambda run: hands.worker.drain()
    hands.worker.work("m")
    assert Attempt.objects.get(job=job).state == AttemptState.WAITING
    hands.clock.move(20.0)
    heir = by_hand(harness)
    heir.clock.move(hands.clock.elapsed)
    heir.worker.work("m")
    assert heir.gpu.polled == ["r1"]
    [charged] = charges(heir)
    assert charged >= 25.0


@pytest.mark.database
def test_a_thread_whose_hand_back_is_lost_keeps_claiming(harness, settings):
    settings.DISPATCHER = replace(settings.DISPATCHER, hand_back_seconds=0.0)
    hands = by_hand(harness, wake=False)
    jobs = [hands.submit() for _ in range(3)]
    reports = hands.worker.work("m")
    assert [report.job_id for report in reports] == [job.id for job in jobs]


@pytest.mark.database
def test_a_thread_whose_hand_back_was_sent_ends_its_task(harness, settings):
    settings.DISPATCHER = replace(settings.DISPATCHER, hand_back_seconds=0.0)
    hands = by_hand(harness)
    for _ in range(3):
        hands.submit()
    hands.sent_wakes.clear()
    assert len(hands.worker.work("m")) == 1
    assert [(wake.pool, wake.host, wake.count) for wake in hands.sent_wakes[-1:]] == [("m", None, 1)]
    assert hands.waiting() == 2


def test_the_lease_of_a_lost_end_is_not_settled_before_redis_took_its_release(harness):
    """Redis is away at the release, the database is not: the end waits for the release."""

    def away(real, *given, **named):
        raise LeasingUnavailable("Redis is away")

    hands = by_hand(harness)
    hands.submit()
    hands.leases.instead["release"] = away
    hands.worker.work("m")
    assert hands.leases.named("confirm_ends") == []
    del hands.leases.instead["release"]
    hands.worker.watch()
    assert hands.slot() == "free"
