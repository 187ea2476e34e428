"""An attempt that a sweep ended while its worker ran it: the worker stops it, whatever other orders it
has."""

from __future__ import annotations

import pytest

from gpus.errors import LeaseLost
from gpus.models import QuarantinedSlot
from gpus.runners.base import Accepted, RunRequest
from jobs.domain.states import AttemptState
from jobs.execution.attempt_run import Order, RunOutcome
from jobs.models import Attempt
from jobs.operations.end_lost_attempt import Loss, lose_attempt
from tests.jobs.execution.by_hand import Hands
from tests.jobs.execution.prefetch_by_hand import hands, run_first, tries
from tests.jobs.execution.run_bench import Bench, ScriptedRunner
from tests.support.worker_harness import state

__all__ = ["hands"]


def end_elsewhere(hands: Hands, run: RunRequest) -> None:
    """As `expired_leases` does, and the worker reads it a moment later."""
    attempt = Attempt.objects.get(id=run.attempt_id)
    loss = Loss(
        job_id=run.job_id, attempt_id=run.attempt_id, slot=run.slot, model="m", pool="m", why="gone",
        suspect=True, process_died=True,
    )  # fmt: skip
    assert lose_attempt(loss, hands.worker.ports).won
    hands.leases.real.quarantine(run.slot, attempt.id)
    hands.worker.watch()


def test_a_run_whose_attempt_was_ended_is_stopped_and_not_handed_over() -> None:
    bench = Bench(ScriptedRunner(starts=[Accepted("r1")])).accept()
    bench.run.order(Order.HAND_OVER)
    bench.run.order(Order.ENDED_ELSEWHERE)
    step = bench.run.step()
    assert isinstance(step, RunOutcome)
    assert isinstance(step.ending.error, LeaseLost)
    assert bench.runner.calls == ["start", "cancel r1"]


def test_a_result_pushed_for_an_ended_attempt_does_not_count() -> None:
    bench = Bench(ScriptedRunner(starts=[Accepted("r1")])).accept()
    bench.push = {"result": "late"}
    bench.run.order(Order.ENDED_ELSEWHERE)
    step = bench.run.step()
    assert isinstance(step, RunOutcome)
    assert isinstance(step.ending.error, LeaseLost)
    assert step.result is None


def test_a_run_whose_attempt_ended_before_it_was_sent_is_never_sent() -> None:
    bench = Bench(ScriptedRunner(starts=[Accepted("r1")]))
    bench.run.order(Order.ENDED_ELSEWHERE)
    step = bench.run.step()
    assert isinstance(step, RunOutcome)
    assert not step.ending.sent
    assert bench.runner.calls == []


@pytest.mark.django_db(transaction=True)
def test_the_job_prefetched_behind_an_ended_attempt_is_queued_again_and_the_slot_stays_in_quarantine(
    hands: Hands,
) -> None:
    first, second, _ = (hands.submit() for _ in range(3))
    hands.gpu.on_start = lambda run: end_elsewhere(hands, run)
    assert run_first(hands) is None
    assert hands.gpu.sent == [first.id]
    assert hands.slot() == "quarantined"
    assert (state(second), tries(second)) == ("queued", 0)
    assert hands.waiting() == 2, "the sweep pushes the first one"
    assert hands.worker.completion.keeper.held() == 0


@pytest.mark.django_db(transaction=True)
def test_an_answer_for_an_ended_attempt_does_not_count(hands: Hands) -> None:
    job = hands.submit()
    hands.gpu.on_start = lambda run: end_elsewhere(hands, run)
    run_first(hands)
    attempt = Attempt.objects.get(job=job)
    assert attempt.state == AttemptState.LOST
    assert state(job) in ("queued", "retrying")
    assert QuarantinedSlot.objects.filter(freed_at=None, attempt_id=attempt.id).count() == 1
