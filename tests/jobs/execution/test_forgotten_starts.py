"""A failover to a standby without the last commits loses starts that were confirmed: they are restored."""

from __future__ import annotations

from typing import Any

import pytest

from gpus.errors import ServerLost
from gpus.models import ModelConfig, QuarantinedSlot
from jobs.domain.states import AttemptState, JobState
from jobs.models import Attempt, Event, Job
from tests.jobs.execution.by_hand import Hands, by_hand
from tests.support.by_process import run_sweep
from tests.support.worker_harness import WorkerHarness

pytestmark = pytest.mark.django_db(transaction=True)


def forget_starts(*_: Any) -> None:
    """As the standby has it: accepted, without later changes."""
    Attempt.objects.all().delete()
    Event.objects.filter(seq__gt=1).delete()
    Job.objects.update(
        state=JobState.QUEUED, live_attempt=None, attempts_made=0, started_at=None, event_seq=1
    )


def run_over_a_failover(hands: Hands) -> Job:
    job = hands.submit()
    hands.gpu.on_start = forget_starts
    hands.worker.work("m")
    hands.writer.commit()
    return Job.objects.get(id=job.id)


@pytest.mark.parametrize("at_most_once", [True, False])
def test_the_result_of_a_run_with_a_lost_start_is_stored(harness: WorkerHarness, at_most_once: bool) -> None:
    ModelConfig.objects.update(at_most_once=at_most_once)
    hands = by_hand(harness)
    job = run_over_a_failover(hands)
    assert (job.state, job.result, job.attempts_made) == (JobState.COMPLETED, "done", 1)
    assert list(Event.objects.order_by("seq").values_list("type", flat=True)) == [
        "queued",
        "started",
        "completed",
    ]
    attempt = Attempt.objects.get()
    assert (attempt.state, attempt.worker) == (AttemptState.COMPLETED, "w")
    assert attempt.finished_at is not None
    assert (attempt.finished_at - attempt.started_at).total_seconds() == pytest.approx(hands.gpu.seconds)
    run_sweep("reconcile", hands.worker.ports)
    hands.worker.work("m")
    assert hands.gpu.sent == [job.id], "it ran once"


@pytest.mark.parametrize("state", [JobState.SCHEDULED, JobState.RETRYING])
def test_a_start_whose_job_had_just_been_queued_is_restored(harness: WorkerHarness, state: JobState) -> None:
    hands = by_hand(harness)
    job = hands.submit()

    def forget_that_it_stood_in_line(*_: Any) -> None:
        forget_starts()
        Job.objects.update(state=state, due_at=hands.clock.now())

    hands.gpu.on_start = forget_that_it_stood_in_line
    hands.worker.work("m")
    hands.writer.commit()
    job.refresh_from_db()
    assert (job.state, job.result, job.due_at) == (JobState.COMPLETED, "done", None)
    kinds = Event.objects.order_by("seq").values_list("type", flat=True)
    assert list(kinds) == ["queued", "queued", "started", "completed"]


@pytest.mark.database
def test_a_start_committed_together_with_the_end_before_it_is_restored(harness: WorkerHarness) -> None:
    """On the standby, that run's row is live on the slot again."""
    hands = by_hand(harness)
    first = hands.submit()
    hands.worker.work("m")
    hands.writer.commit()
    second = hands.submit()

    def forget_the_end_before(*_: Any) -> None:
        Attempt.objects.filter(job_id=second.id).delete()
        Attempt.objects.filter(job_id=first.id).update(state=AttemptState.SENT, finished_at=None)
        Job.objects.filter(id=first.id).update(
            state=JobState.RUNNING, live_attempt=Attempt.objects.get().id, result=None, finished_at=None
        )
        Job.objects.filter(id=second.id).update(state=JobState.QUEUED, live_attempt=None, attempts_made=0)

    hands.gpu.on_start = forget_the_end_before
    hands.worker.work("m")
    hands.writer.commit()
    second.refresh_from_db()
    assert (second.state, second.result) == (JobState.COMPLETED, "done")
    states = Attempt.objects.order_by("started_at").values_list("job_id", "state")
    assert list(states) == [(first.id, AttemptState.SENT), (second.id, AttemptState.COMPLETED)]


@pytest.mark.database
def test_the_failure_of_a_run_with_a_lost_start_counts_and_quarantines_its_slot(
    harness: WorkerHarness,
) -> None:
    job = run_over_a_failover(by_hand(harness, ServerLost("gone")))
    assert (job.state, job.tries) == (JobState.RETRYING, 1)
    assert Attempt.objects.get().state == AttemptState.LOST
    assert QuarantinedSlot.objects.filter(freed_at=None).exists()


def test_a_worker_without_a_confirmed_start_can_not_store_its_end(harness: WorkerHarness) -> None:
    """It was refused, because the job had been cancelled; by its end the job waits for a second round."""
    hands = by_hand(harness)
    hands.writer.at_once = False
    job = hands.submit()
    hands.worker.work("m")
    start, *later = hands.writer._queue
    Job.objects.filter(id=job.id).update(state=JobState.CANCELLED, finished_at=hands.clock.now())
    hands.writer._queue = [start]
    hands.writer.commit()
    Job.objects.filter(id=job.id).update(state=JobState.QUEUED, finished_at=None)
    hands.writer._queue = later
    hands.writer.commit()
    job.refresh_from_db()
    assert (job.state, Attempt.objects.count()) == (JobState.QUEUED, 0)


def test_a_job_that_runs_elsewhere_by_now_keeps_its_run(harness: WorkerHarness) -> None:
    hands = by_hand(harness)
    job = hands.submit()

    def runs_elsewhere(*_: Any) -> None:
        forget_starts()
        Job.objects.filter(id=job.id).update(state=JobState.RUNNING, live_attempt="another")

    hands.gpu.on_start = runs_elsewhere
    hands.worker.work("m")
    hands.writer.commit()
    job.refresh_from_db()
    assert (job.state, job.live_attempt, Attempt.objects.count()) == (JobState.RUNNING, "another", 0)
