"""A failover to a standby without the last commits loses ends that were confirmed: they are restored."""

from __future__ import annotations

import pytest
from django.db import transaction

from foundation.json_text import JsonText
from gpus.errors import GpuBusy, GpuError, Interrupted, ServerFailed, ServerLost
from gpus.models import QuarantinedSlot
from jobs import transitions
from jobs.domain.states import AttemptState, JobState
from jobs.execution.follow_ups import push_tickets
from jobs.execution.group_commit import KEPT_BYTES, KEPT_SECONDS, LARGE_BYTES, LatestEnds, estimate_bytes
from jobs.models import Attempt, Callback, Event, Job
from jobs.operations.jobs import cancel_job
from tests.jobs.execution.by_hand import Hands, by_hand
from tests.support.worker_harness import WorkerHarness
from verification.laws import replayed

pytestmark = pytest.mark.django_db(transaction=True)


def run(hands: Hands) -> Job:
    job = hands.submit()
    hands.worker.work("m")
    hands.writer.commit()
    return Job.objects.get(id=job.id)


def forget_end(job: Job) -> None:
    """As the copy has it: the run goes on."""
    Attempt.objects.filter(job=job).update(state=AttemptState.SENT, finished_at=None)
    Event.objects.filter(job=job, seq__gt=2).delete()
    Job.objects.filter(id=job.id).update(
        state=JobState.RUNNING,
        live_attempt=Attempt.objects.get(job=job).id,
        result=None,
        finished_at=None,
        event_seq=2,
    )


def forget_start() -> None:
    Attempt.objects.all().delete()
    Event.objects.filter(seq__gt=1).delete()
    as_accepted = {"live_attempt": None, "attempts_made": 0, "started_at": None, "event_seq": 1}
    Job.objects.update(state=JobState.QUEUED, finished_at=None, result=None, **as_accepted)


def fail_over(hands: Hands) -> None:
    """A commit fails and is tried again."""
    hands.writer.commit(after_failure=True)


@pytest.mark.parametrize("knows_start", [True, False])
def test_an_end_that_a_failover_lost_is_restored(harness: WorkerHarness, knows_start: bool) -> None:
    hands = by_hand(harness)
    job = run(hands)
    if knows_start:
        forget_end(job)
    else:
        forget_start()
    fail_over(hands)
    job.refresh_from_db()
    assert (job.state, job.result, job.live_attempt, job.attempts_made) == ("completed", "done", None, 1)
    kinds = Event.objects.order_by("seq").values_list("type", flat=True)
    assert list(kinds) == ["queued", "started", "completed"]
    assert Attempt.objects.get().state == AttemptState.COMPLETED
    hands.worker.work("m")
    assert hands.gpu.sent == [job.id], "it ran once"


def test_ends_stay_kept_over_a_connection_that_breaks_before_the_failover(harness: WorkerHarness) -> None:
    hands = by_hand(harness)
    job = run(hands)
    fail_over(hands)  # it comes back to the database that has it all
    forget_end(job)
    fail_over(hands)
    job.refresh_from_db()
    assert (job.state, job.result) == ("completed", "done")


def test_a_restored_end_comes_before_the_next_start_on_its_slot(harness: WorkerHarness) -> None:
    hands = by_hand(harness)
    first = run(hands)
    hands.writer.at_once = False
    second = hands.submit()
    hands.worker.work("m")
    forget_end(first)
    fail_over(hands)
    states = dict(Job.objects.values_list("id", "state"))
    assert states == {first.id: "completed", second.id: "completed"}
    assert hands.slot() == "free"


@pytest.mark.database
@pytest.mark.parametrize("in_order", [True, False])
def test_the_ends_of_two_workers_may_come_in_any_order(harness: WorkerHarness, in_order: bool) -> None:
    first, second = by_hand(harness, ServerFailed("answered 500")), by_hand(harness)
    job = run(first)
    first_attempt = job.attempts.get()
    second.clock.move(60.0)
    with transaction.atomic():
        transitions.queue_retry(job.id, second.clock.now())
    push_tickets("main", "m", [job.ticket], second.worker.ports)
    second.worker.work("m")
    assert Job.objects.get().state == JobState.COMPLETED
    Attempt.objects.exclude(id=first_attempt.id).delete()
    forget_end(job)
    Job.objects.update(attempts_made=1, tries=0)
    for hands in (first, second) if in_order else (second, first):
        fail_over(hands)
    job.refresh_from_db()
    assert (job.state, job.result, job.attempts_made) == (JobState.COMPLETED, "done", 2)
    last = Attempt.objects.get(number=2)
    assert (last.state, last.worker) == (AttemptState.COMPLETED, "w")
    assert not list(replayed())


@pytest.mark.database
@pytest.mark.parametrize("error", [Interrupted("stopped"), ServerLost("gone")])
@pytest.mark.parametrize("knows_start", [True, False])
def test_a_restored_end_keeps_its_jobs_cancel(
    harness: WorkerHarness, knows_start: bool, error: GpuError
) -> None:
    hands = by_hand(harness, error)
    job = hands.submit()
    hands.gpu.on_start = lambda request: cancel_job(job.id, ports=hands.worker.ports, by="ada") and None
    hands.worker.work("m")
    hands.writer.commit()
    stored = Job.objects.values_list("state", "error_code").get()
    assert stored in [("cancelled", "cancelled_by_operator"), ("cancelling", "")]
    if knows_start:
        forget_end(job)
    else:
        forget_start()
    Job.objects.update(cancel_requested_at=None, cancelled_by_operator=False, error_code="")
    fail_over(hands)
    assert Job.objects.values_list("state", "error_code").get() == stored
    job.refresh_from_db()
    assert job.cancel_requested_at is not None
    assert job.cancelled_by_operator
    assert not list(replayed())


def test_an_end_that_was_not_lost_is_not_written_again(harness: WorkerHarness) -> None:
    hands = by_hand(harness)
    job = run(hands)
    before = list(Event.objects.values()), list(Attempt.objects.values()), Callback.objects.count()
    for _ in range(2):
        fail_over(hands)
    assert before == (list(Event.objects.values()), list(Attempt.objects.values()), Callback.objects.count())
    assert Job.objects.get() == job


def test_a_job_that_went_on_without_the_lost_end_is_not_changed(harness: WorkerHarness) -> None:
    hands = by_hand(harness)
    job = run(hands)
    forget_start()
    another = Attempt.objects.create(
        id="another", job=job, number=1, state=AttemptState.SENT, server="gpu-1", slot=0, model="m",
        worker="x", started_at=hands.clock.now(),
    )  # fmt: skip
    Job.objects.update(state=JobState.RUNNING, live_attempt=another.id)
    fail_over(hands)
    job.refresh_from_db()
    assert (job.state, job.live_attempt, Attempt.objects.count()) == ("running", "another", 1)
    assert hands.slot() == "free"
    assert not QuarantinedSlot.objects.exists()


def test_a_refusal_that_was_counted_and_removed_is_not_restored(harness: WorkerHarness) -> None:
    """By the `refusals` sweep; its worker has written no row since."""
    hands = by_hand(harness, GpuBusy("answered 503"))
    job = run(hands)
    assert job.state == JobState.QUEUED
    Attempt.objects.all().delete()
    Event.objects.filter(job=job, seq__gt=1).delete()
    fail_over(hands)
    assert not Attempt.objects.exists()
    assert Job.objects.get() == job
    assert Job.objects.get().attempts_made == 1


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_only_the_latest_ends_are_kept() -> None:
    clock = Clock()
    ends = LatestEnds(clock)
    for clock.now in (0.0, 1.0, KEPT_SECONDS + 0.5):
        ends.add(0, clock.now)
        ends.drop_old()
    assert ends.all() == [1.0, KEPT_SECONDS + 0.5]
    clock.now += KEPT_SECONDS + 0.1
    assert ends.all() == [1.0, KEPT_SECONDS + 0.5], "however long no commit was confirmed"
    ends.drop_old()
    assert ends.all() == []


def test_kept_ends_take_little_memory() -> None:
    ends = LatestEnds(Clock())
    ends.add(2 * LARGE_BYTES, "large")
    for number in range(2 * KEPT_BYTES // LARGE_BYTES):
        ends.add(LARGE_BYTES - 100, number)
        ends.drop_old()
    found = ends.all()
    assert "large" not in found
    assert 0.8 * KEPT_BYTES < len(found) * LARGE_BYTES < KEPT_BYTES
    assert found[-1] == 2 * KEPT_BYTES // LARGE_BYTES - 1


def test_a_large_result_is_not_counted_to_its_end() -> None:
    assert estimate_bytes([[1.0] * 10] * 1_000_000, 1000) < 1200
    assert estimate_bytes(JsonText("1" * 2000), 1000) > 2000
    assert estimate_bytes({"text": "abc", "more": [1, None, True]}, 1000) < 150
