"""Writes of one transaction have the same result together as one by one."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from foundation.ids import new_id
from gpus.errors import GpuBusy, ServerLost
from gpus.models import QuarantinedSlot
from gpus.protocol import LeaseRef
from jobs import transitions
from jobs.domain.retry import Ending, RetryPolicy
from jobs.domain.states import AttemptState, JobState
from jobs.execution.group_commit import Write, write_batch
from jobs.models import Attempt, Callback, Event, Job
from jobs.transitions import End, Start, StartOutcome, Touched
from jobs.transitions.unit_of_work import read_attempt
from tests.support.factories import make_job, make_model, make_server
from tests.support.fakes import START

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

FIELDS = [field.attname for field in Job._meta.concrete_fields if field.attname not in ("id", "place_us")]


def start_of(job: Job, slot: str = "gpu-1/0") -> Start:
    return Start(job.id, new_id(), slot, job.model, "w", START)


def end_of(start: Start, ending: Ending | None = None, **values) -> End:
    at = START + timedelta(seconds=5)
    return End(
        start.job_id,
        start.attempt_id,
        1,
        start.slot,
        ending or Ending(),
        RetryPolicy(jitter=0.0),
        at,
        **values,
    )


def started(start: Start) -> Write:
    return Write(lambda: transitions.start_attempt(start), Touched(start.job_id, start.attempt_id))


def ended(end: End) -> Write:
    return Write(lambda: transitions.end_attempt(end), Touched(end.job_id, end.attempt_id))


def accepted(start: Start, remote_id: str) -> Write:
    return Write(
        lambda: transitions.note_remote_id(start.job_id, start.attempt_id, 1, remote_id, START),
        Touched(start.job_id, start.attempt_id),
    )


def events(job: Job) -> list[tuple[int, str]]:
    return list(Event.objects.filter(job=job).order_by("id").values_list("seq", "type"))


def test_a_job_may_start_be_accepted_and_end_in_one_batch():
    job, other = make_job(), make_job()
    first, second = start_of(job), start_of(other, "gpu-1/1")
    outcomes = write_batch(
        [started(first), started(second), accepted(first, "r1"), ended(end_of(first, result={"a": 1}))]
    )

    assert outcomes[:3] == [StartOutcome.STARTED, StartOutcome.STARTED, True]
    assert outcomes[3].won
    job.refresh_from_db()
    assert (job.state, job.result, job.event_seq, job.live_attempt) == (JobState.COMPLETED, {"a": 1}, 4, None)
    assert events(job) == [(1, "queued"), (2, "started"), (3, "accepted"), (4, "completed")]
    attempt = Attempt.objects.get(id=first.attempt_id)
    assert (attempt.state, attempt.remote_id) == (AttemptState.COMPLETED, "r1")
    assert Attempt.objects.get(id=second.attempt_id).state == AttemptState.SENT


def test_the_slot_may_be_handed_on_in_one_batch():
    before, after = make_job(), make_job()
    first, second = start_of(before), start_of(after)
    outcomes = write_batch([started(first), ended(end_of(first)), started(second)])
    assert (outcomes[0], outcomes[2]) == (StartOutcome.STARTED, StartOutcome.STARTED)
    after.refresh_from_db()
    assert after.live_attempt == second.attempt_id


def test_a_taken_slot_refuses_the_start_and_quarantines_its_run():
    make_server(model=make_model())
    holder, late = make_job(), make_job()
    first, second = start_of(holder), start_of(late)
    outcomes = write_batch([started(first), started(second), ended(end_of(second))])
    assert outcomes[1] is StartOutcome.SLOT_TAKEN
    assert not outcomes[2].won
    assert outcomes[2].quarantined
    assert QuarantinedSlot.objects.filter(server="gpu-1", slot=0).exists()
    late.refresh_from_db()
    assert (late.state, late.attempts_made) == (JobState.QUEUED, 0)


def test_a_slot_taken_by_another_process_refuses_its_start_and_no_other():
    before, late, other = make_job(), make_job(), make_job()
    write_batch([started(start_of(before))])
    outcomes = write_batch([started(start_of(late)), started(start_of(other, "gpu-1/1"))])
    assert outcomes == [StartOutcome.SLOT_TAKEN, StartOutcome.STARTED]


def test_a_start_on_a_slot_that_is_taken_is_refused_also_if_it_ends_at_once():
    write_batch([started(start_of(make_job()))])
    late, other = start_of(make_job()), start_of(make_job(), "gpu-1/1")
    outcomes = write_batch([started(late), started(other), ended(end_of(late)), ended(end_of(other))])
    assert outcomes[:2] == [StartOutcome.SLOT_TAKEN, StartOutcome.STARTED]
    assert [outcome.won for outcome in outcomes[2:]] == [False, True]


def test_a_start_that_comes_before_the_end_on_its_slot_is_refused_as_if_alone():
    before, late = make_job(), make_job()
    first = start_of(before)
    write_batch([started(first)])
    outcomes = write_batch([started(start_of(late)), ended(end_of(first))])
    assert outcomes[0] is StartOutcome.SLOT_TAKEN
    assert outcomes[1].won
    late.refresh_from_db()
    assert late.state == JobState.QUEUED


def test_of_two_starts_on_a_slot_the_second_is_refused_although_the_first_ends():
    before, late = make_job(), make_job()
    first, second = start_of(before), start_of(late)
    outcomes = write_batch([started(first), started(second), ended(end_of(first))])
    assert outcomes[:2] == [StartOutcome.STARTED, StartOutcome.SLOT_TAKEN]
    assert outcomes[2].won


def test_a_start_whose_reply_was_lost_is_written_once_also_when_its_attempt_is_over():
    job, other = make_job(), make_job()
    first, second = start_of(job), start_of(other, "gpu-1/1")
    refused = end_of(first, Ending(GpuBusy()))
    write_batch([started(first), started(second), ended(refused)])
    outcomes = write_batch([started(first), started(second), ended(refused)])
    assert outcomes[:2] == [StartOutcome.STARTED, StartOutcome.STARTED]
    assert not outcomes[2].won
    assert events(job) == [(1, "queued"), (2, "started"), (3, "requeued")]
    assert Attempt.objects.count() == 2


def test_a_query_sees_the_changes_before_it():
    first, second = start_of(make_job()), start_of(make_job(), "gpu-1/1")
    outcomes = write_batch(
        [
            started(first),
            started(second),
            Write(lambda: set(Attempt.objects.values_list("id", flat=True))),
            ended(end_of(first)),
            Write(lambda: Job.objects.get(id=first.job_id).state),
        ]
    )
    assert outcomes[2] == {first.attempt_id, second.attempt_id}
    assert outcomes[4] == JobState.COMPLETED


def test_the_end_of_a_refused_start_finds_its_slot_taken_by_one_that_begins_before_it():
    make_server(model=make_model())
    holder, refused = start_of(make_job()), start_of(make_job())
    outcomes = write_batch([started(holder), ended(end_of(refused))])
    assert not outcomes[1].won
    assert outcomes[1].quarantined


def test_a_progress_event_is_written_once_however_often_its_write_is_repeated():
    first, second = start_of(make_job()), start_of(make_job(), "gpu-1/1")
    ref = LeaseRef(first.slot, first.job_id, first.attempt_id, 1)
    said = Write(
        lambda: transitions.note_progress(ref, "progress", {"part": 1, "progress": 0.5}, START),
        Touched(first.job_id, first.attempt_id),
    )
    assert write_batch([started(first), started(second), said, said])[2:] == [True, True]
    assert [kind for _, kind in events(Job.objects.get(id=first.job_id))] == ["queued", "started", "progress"]


def test_each_end_has_its_callback():
    jobs = [make_job(callback_url="https://client.example/hook") for _ in range(2)]
    starts = [start_of(job, f"gpu-1/{slot}") for slot, job in enumerate(jobs)]
    ends = write_batch([*map(started, starts), *(ended(end_of(start)) for start in starts)])[2:]
    assert sorted(ended.callback_id for ended in ends) == list(
        Callback.objects.order_by("id").values_list("id", flat=True)
    )
    assert {callback.job_id for callback in Callback.objects.all()} == {job.id for job in jobs}


def test_of_two_starts_of_a_job_one_wins_and_of_two_ends_one():
    job = make_job()
    first, second = start_of(job), start_of(job, "gpu-1/1")
    outcomes = write_batch(
        [started(first), started(second), ended(end_of(first, result=1)), ended(end_of(first, result=2))]
    )
    assert outcomes[:2] == [StartOutcome.STARTED, StartOutcome.JOB_MOVED]
    assert [outcome.won for outcome in outcomes[2:]] == [True, False]
    job.refresh_from_db()
    assert job.result == 1


def test_a_batch_has_the_same_result_as_its_writes_one_by_one():
    lost = Ending(ServerLost(), suspect=True)
    alone, together, other = make_job(), make_job(), make_job()
    one, two, three = start_of(alone, "gpu-2/0"), start_of(together, "gpu-2/1"), start_of(other, "gpu-2/2")
    for write in (started(one), ended(end_of(one, lost))):
        write_batch([write])
    write_batch([started(two), started(three)])
    write_batch([ended(end_of(two, lost)), ended(end_of(three))])

    rows = Job.objects.in_bulk([alone.id, together.id])
    assert {name: getattr(rows[alone.id], name) for name in FIELDS} == {
        name: getattr(rows[together.id], name) for name in FIELDS
    }
    assert events(alone) == events(together)


def test_a_row_that_the_database_refuses_leaves_the_others_whole():
    jobs = [make_job(), make_job(), make_job()]
    starts = [start_of(job, f"gpu-1/{slot}") for slot, job in enumerate(jobs)]
    write_batch([started(start) for start in starts])
    endings = [ended(end_of(start, result={"n": 1})) for start in starts]
    endings[1] = ended(end_of(starts[1], evidence="x" * 1000 + "\0"))  # no column takes it on PostgreSQL
    outcomes = write_batch(endings)
    for place in (0, 2):
        assert outcomes[place].won
        assert events(jobs[place]) == [(1, "queued"), (2, "started"), (3, "completed")]


def test_a_batch_that_was_rolled_back_reads_its_rows_again():
    job, other = make_job(), make_job()
    first, second = start_of(job), start_of(other, "gpu-1/1")
    tries: list[int] = []

    def refused_once() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("not now")
        return "written"

    outcomes = write_batch([started(first), started(second), Write(refused_once)])
    assert outcomes == [StartOutcome.STARTED, StartOutcome.STARTED, "written"]
    assert events(job) == [(1, "queued"), (2, "started")]


def test_a_longer_batch_takes_no_more_statements():
    def statements(count: int) -> int:
        starts = [start_of(make_job(), f"gpu-{count}/{slot}") for slot in range(count)]
        with CaptureQueriesContext(connection) as asked:
            write_batch([started(start) for start in starts])
        return len(asked)

    assert statements(4) == statements(8)


def test_rows_are_dropped_with_their_transaction():
    job, other = make_job(), make_job()
    with transaction.atomic(), transitions.unit_of_work([Touched(job.id, "a"), Touched(other.id, "b")]):
        pass
    Job.objects.filter(id=job.id).update(state=JobState.RETRYING)
    with transaction.atomic():
        assert transitions.start_attempt(start_of(job)) is StartOutcome.JOB_MOVED


def test_a_row_that_was_changed_is_read_again():
    start = start_of(make_job())
    both = [Touched(start.job_id, start.attempt_id), Touched(make_job().id, new_id())]
    with transaction.atomic(), transitions.unit_of_work(both):
        transitions.start_attempt(start)
        assert read_attempt(start.attempt_id).state == AttemptState.SENT
        assert transitions.note_remote_id(start.job_id, start.attempt_id, 1, "r1", START)
        assert read_attempt(start.attempt_id).remote_id == "r1"
