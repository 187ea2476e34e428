"""Starts, takeovers and ends by compare-and-set; those of an old epoch change nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest

from foundation.ids import new_id
from gpus import errors
from gpus.errors import BadInput, ConnectFailed, GpuBusy, LeaseLost, ProcessDied, ServerFailed, ServerLost
from gpus.models import QuarantinedSlot
from gpus.protocol import LeaseRef
from jobs import transitions
from jobs.domain.errors import Refused
from jobs.domain.retry import Ending, RetryPolicy
from jobs.domain.states import AttemptState, IllegalMove, JobState
from jobs.models import Attempt, Callback, Event, Job
from jobs.operations.jobs import retry_dead_letter
from jobs.transitions import End, Start, StartOutcome
from jobs.transitions.unit_of_work import move_attempt, move_job
from tests.support.factories import make_job, make_model, make_running, make_server
from tests.support.fake_leases import FakeLeases
from tests.support.fakes import START, make_ports

pytestmark = pytest.mark.django_db


def start(job: Job, slot: str = "gpu-1/0") -> tuple[StartOutcome, str]:
    attempt_id = new_id()
    return transitions.start_attempt(Start(job.id, attempt_id, slot, job.model, "w", START)), attempt_id


def end(job: Job, attempt_id: str, ending: Ending | None = None, *, epoch: int = 1, **values) -> End:
    return End(
        job.id,
        attempt_id,
        epoch,
        "gpu-1/0",
        ending or Ending(),
        values.pop("policy", RetryPolicy()),
        START + timedelta(seconds=5),
        **values,
    )


def types(job: Job) -> list[str]:
    return list(Event.objects.filter(job=job).order_by("seq").values_list("type", flat=True))


@pytest.mark.database
def test_a_start_moves_the_job_and_numbers_the_attempt():
    job = make_job()
    outcome, attempt_id = start(job)
    job.refresh_from_db()
    assert outcome is StartOutcome.STARTED
    assert (job.state, job.live_attempt, job.attempts_made) == (JobState.RUNNING, attempt_id, 1)
    assert types(job) == ["queued", "started"]


@pytest.mark.database
@pytest.mark.parametrize(("made", "state"), [(100, JobState.QUEUED), (101, JobState.RETRYING)])
def test_a_job_that_was_refused_a_hundred_times_pauses(made: int, state: JobState) -> None:
    job = make_job()
    Job.objects.filter(id=job.id).update(attempts_made=made - 1)
    _, attempt_id = start(job)
    transitions.end_attempt(end(job, attempt_id, Ending(GpuBusy())))
    job.refresh_from_db()
    assert (job.state, job.tries) == (state, 0)


@pytest.mark.database
def test_a_repeated_start_changes_nothing():
    job = make_job()
    _, attempt_id = start(job)
    again = transitions.start_attempt(Start(job.id, attempt_id, "gpu-1/0", job.model, "w", START))
    assert again is StartOutcome.STARTED
    assert types(job) == ["queued", "started"]


@pytest.mark.database
def test_a_second_start_of_the_same_job_loses():
    job = make_job()
    start(job)
    assert start(job, "gpu-1/1")[0] is StartOutcome.JOB_MOVED


@pytest.mark.database
def test_the_unique_index_refuses_a_second_live_attempt_on_a_slot():
    first, second = make_job(), make_job()
    start(first)
    assert start(second)[0] is StartOutcome.SLOT_TAKEN
    second.refresh_from_db()
    assert second.state == JobState.QUEUED


@pytest.mark.database
def test_a_job_whose_row_is_older_than_its_attempts_counts_on_from_them():
    job = make_job()
    _, first = start(job)
    Attempt.objects.filter(id=first).update(state=AttemptState.LOST, finished_at=START)
    Job.objects.filter(id=job.id).update(state=JobState.QUEUED, attempts_made=0, live_attempt=None)
    outcome, second = start(job, "gpu-2/0")
    job.refresh_from_db()
    assert outcome is StartOutcome.STARTED
    assert (job.live_attempt, job.attempts_made, Attempt.objects.get(id=second).number) == (second, 2, 2)


@pytest.mark.database
def test_a_cancelled_job_is_not_started():
    job = make_job()
    transitions.end_waiting(job.id, JobState.CANCELLED, START, code="cancelled", message="")
    assert start(job)[0] is StartOutcome.JOB_MOVED
    assert Attempt.objects.count() == 0


@pytest.mark.database
def test_a_success_is_stored_with_result_event_and_callback():
    job = make_job(callback_url="http://example.com/hook")
    attempt_id = make_running(job)
    ended = transitions.end_attempt(end(job, attempt_id, result={"url": "x"}, gpu_seconds=4.0))
    job.refresh_from_db()
    assert ended.won
    assert (job.state, job.result, job.live_attempt) == (JobState.COMPLETED, {"url": "x"}, None)
    assert job.finished_at == START + timedelta(seconds=5)
    assert types(job) == ["queued", "started", "completed"]
    assert Callback.objects.get(job=job).id == ended.callback_id
    attempt = Attempt.objects.get(id=attempt_id)
    assert (attempt.state, attempt.slot_freed, attempt.gpu_seconds) == (AttemptState.COMPLETED, True, 4.0)


@pytest.mark.database
def test_an_end_counts_once():
    job = make_job(callback_url="http://example.com/hook")
    attempt_id = make_running(job)
    assert transitions.end_attempt(end(job, attempt_id, result=1)).won
    assert not transitions.end_attempt(end(job, attempt_id, result=2)).won
    job.refresh_from_db()
    assert job.result == 1
    assert Callback.objects.count() == 1


@pytest.mark.database
def test_an_end_of_an_old_epoch_is_refused():
    job = make_job()
    attempt_id = make_running(job, remote_id="r1")
    assert transitions.take_over(job.id, attempt_id, 1, "other", START)
    assert not transitions.end_attempt(end(job, attempt_id, epoch=1, result="zombie")).won
    assert transitions.end_attempt(end(job, attempt_id, epoch=2, result="mine")).won
    job.refresh_from_db()
    assert job.result == "mine"


@pytest.mark.database
def test_only_one_takes_an_attempt_over():
    job = make_job()
    attempt_id = make_running(job, remote_id="r1")
    assert transitions.take_over(job.id, attempt_id, 1, "a", START)
    assert not transitions.take_over(job.id, attempt_id, 1, "b", START)
    assert transitions.take_over(job.id, attempt_id, 1, "a", START), "its own, asked again"
    assert Attempt.objects.get(id=attempt_id).epoch == 2


@pytest.mark.database
def test_an_attempt_without_a_remote_id_is_not_taken_over():
    job = make_job()
    attempt_id = make_running(job)
    assert not transitions.take_over(job.id, attempt_id, 1, "a", START)


@pytest.mark.database
def test_a_refused_attempt_puts_its_job_back_at_its_place():
    job = make_job(place_us=7)
    attempt_id = make_running(job)
    transitions.end_attempt(end(job, attempt_id, Ending(GpuBusy())))
    job.refresh_from_db()
    assert (job.state, job.place_us, job.tries) == (JobState.QUEUED, 7, 0)
    assert Attempt.objects.get(id=attempt_id).state == AttemptState.REFUSED


@pytest.mark.database
def test_a_failed_attempt_waits_for_its_retry():
    job = make_job()
    attempt_id = make_running(job)
    transitions.end_attempt(end(job, attempt_id, Ending(ServerFailed("boom"))))
    job.refresh_from_db()
    assert job.state == JobState.RETRYING
    assert job.due_at is not None
    assert job.tries == 1
    assert Attempt.objects.get(id=attempt_id).error_message == "boom"


@pytest.mark.database
def test_bad_input_ends_the_job_with_the_servers_message():
    job = make_job()
    attempt_id = make_running(job)
    transitions.end_attempt(end(job, attempt_id, Ending(BadInput("no such style"))))
    job.refresh_from_db()
    assert (job.state, job.error_code, job.error_message) == (JobState.FAILED, "bad_input", "no such style")


@pytest.mark.database
def test_an_uncertain_end_quarantines_the_slot_in_the_same_transaction():
    make_server(model=make_model())
    job = make_job()
    attempt_id = make_running(job)
    transitions.end_attempt(end(job, attempt_id, Ending(ServerLost(), suspect=True), run_limit_seconds=60))
    row = QuarantinedSlot.objects.get()
    assert (row.server_id, row.slot, row.attempt_id) == ("gpu-1", 0, attempt_id)
    assert row.until - row.since == timedelta(seconds=60)
    assert not Attempt.objects.get(id=attempt_id).slot_freed


@pytest.mark.database
def test_a_refused_starts_uncertain_run_still_quarantines_its_slot():
    make_server(model=make_model())
    job = make_job()
    assert not transitions.end_attempt(end(job, new_id(), Ending(ServerLost(), suspect=True))).won
    assert QuarantinedSlot.objects.filter(freed_at=None).count() == 1


@pytest.mark.database
def test_a_job_that_lost_its_server_avoids_it_next_time():
    job = make_job()
    attempt_id = make_running(job)
    transitions.end_attempt(end(job, attempt_id, Ending(ServerLost())))
    job.refresh_from_db()
    assert job.ticket.avoid_server == "gpu-1"


@pytest.mark.database
@pytest.mark.parametrize(("ending", "evidence"), [
    (Ending(ServerFailed()), "the server reported: server_error"),
    (Ending(GpuBusy()), "the server reported: busy"),
    (Ending(ConnectFailed()), "never sent"),
    (Ending(LeaseLost(), sent=False), "never sent"),
    (Ending(ProcessDied(), process_died=True), "its process ended"),
])  # fmt: skip
def test_a_failure_after_a_requested_cancel_ends_cancelled_and_proves_the_slot_free(ending, evidence):
    job = make_job()
    attempt_id = make_running(job)
    assert transitions.request_cancel(job.id, START)
    transitions.end_attempt(end(job, attempt_id, ending))
    job.refresh_from_db()
    attempt = job.attempts.get()
    assert (job.state, attempt.slot_freed, attempt.evidence) == (JobState.CANCELLED, True, evidence)
    assert Event.objects.order_by("-seq")[0].data["evidence"] == evidence


@pytest.mark.database
def test_a_failure_without_a_cancel_needs_no_proof():
    job = make_job()
    attempt_id = make_running(job)
    transitions.end_attempt(end(job, attempt_id, Ending(ServerFailed())))
    assert job.attempts.get().evidence == ""


@pytest.mark.database
def test_a_new_round_has_its_own_budget_and_keeps_the_history():
    job = make_job()
    attempt_id = make_running(job)
    transitions.end_attempt(end(job, attempt_id, Ending(BadInput())))
    assert transitions.requeue_failed(job.id, START) is not None
    job.refresh_from_db()
    assert (job.state, job.round, job.tries, job.finished_at) == (JobState.QUEUED, 2, 0, None)
    second = make_running(job)
    assert Attempt.objects.get(id=second).number == 2
    assert Attempt.objects.get(id=second).round == 2


@pytest.mark.database
def test_events_are_numbered_without_gaps():
    job = make_job()
    attempt_id = make_running(job, remote_id="r")
    transitions.end_attempt(end(job, attempt_id))
    assert list(Event.objects.filter(job=job).values_list("seq", flat=True)) == [1, 2, 3, 4]


@pytest.mark.database
def test_the_remote_id_of_an_old_epoch_is_not_written():
    job = make_job()
    attempt_id = make_running(job, remote_id="r1")
    assert transitions.note_remote_id(job.id, attempt_id, 1, "r1", START), "its own, asked again"
    assert not transitions.note_remote_id(job.id, attempt_id, 1, "r2", START)


@pytest.mark.database
def test_progress_events_belong_to_the_live_attempt_only():
    job = make_job()
    _, attempt_id = start(job)
    ref = LeaseRef("gpu-1/0", job.id, attempt_id, 1)
    note = transitions.note_progress
    assert note(ref, "partial", {"part": 1, "output": ["a"]}, START)
    assert note(ref, "progress", {"part": 2, "progress": 0.5}, START)
    assert types(job) == ["queued", "started", "partial", "progress"]
    assert not note(ref._replace(epoch=2), "partial", {"part": 3, "output": ["b"]}, START)
    assert not note(ref._replace(attempt_id="another"), "partial", {"part": 3, "output": ["b"]}, START)
    assert transitions.end_attempt(end(job, attempt_id, result=1)).won
    assert not note(ref, "partial", {"part": 3, "output": ["late"]}, START)
    assert types(job) == ["queued", "started", "partial", "progress", "completed"]


@pytest.mark.database
def test_progress_whose_commit_was_not_confirmed_is_not_written_twice():
    job = make_job()
    _, attempt_id = start(job)
    ref = LeaseRef("gpu-1/0", job.id, attempt_id, 1)
    batch = [
        ("partial", {"part": 1, "output": ["a"]}, START),
        ("progress", {"part": 2, "progress": 0.5}, START),
        ("partial", {"part": 3, "output": ["a"]}, START),  # by a clock that stood still
        ("partial", {"part": 4, "output": ["b"]}, START + timedelta(seconds=1)),
        ("progress", {"part": 5, "progress": 0.6}, START + timedelta(seconds=1)),
    ]
    for _ in range(2):
        assert all(transitions.note_progress(ref, kind, data, at) for kind, data, at in batch)
    assert types(job) == ["queued", "started", "partial", "progress", "partial", "partial", "progress"]
    again = START + timedelta(seconds=2)
    assert transitions.note_progress(ref, "partial", {"part": 4, "output": ["b"]}, again)
    assert types(job)[-1] == "partial", "the adopting worker counts its parts from 1"


@pytest.mark.database
def test_an_illegal_move_of_a_job_is_refused_and_writes_nothing() -> None:
    job = make_job()
    with pytest.raises(IllegalMove, match="from queued to completed"):
        move_job(job, JobState.COMPLETED, START, {})
    job.refresh_from_db()
    assert (job.state, types(job)) == ("queued", ["queued"])


@pytest.mark.database
def test_an_illegal_move_of_an_attempt_is_refused_and_writes_nothing() -> None:
    _, attempt_id = start(make_job())
    attempt = Attempt.objects.get(id=attempt_id)
    move_attempt(attempt, AttemptState.LOST)
    with pytest.raises(IllegalMove, match="from lost to completed"):
        move_attempt(attempt, AttemptState.COMPLETED)
    assert (attempt.state, Attempt.objects.get(id=attempt_id).state) == ("lost", "lost")


_ERRORS = sorted(
    (one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.GpuError)),
    key=lambda one: one.__name__,
)


@pytest.mark.parametrize("error", _ERRORS)
@pytest.mark.parametrize("live", [AttemptState.SENT, AttemptState.WAITING])
@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("suspect", [False, True])
def test_no_end_of_a_run_is_an_illegal_move(
    error: type[errors.GpuError], live: AttemptState, cancelled: bool, suspect: bool
) -> None:
    job = make_job()
    _, attempt_id = start(job)
    if live is AttemptState.WAITING:
        assert transitions.note_remote_id(job.id, attempt_id, 1, "r1", START)
    if cancelled:
        Job.objects.filter(id=job.id).update(cancel_requested_at=START)
    ended = transitions.end_attempt(end(job, attempt_id, Ending(error("it broke"), suspect=suspect)))
    assert ended.won
    assert Attempt.objects.get(id=attempt_id).state not in Attempt.LIVE


@pytest.mark.database
def test_a_late_end_of_a_round_that_an_operator_reopened_changes_nothing() -> None:
    """Its slot is still in quarantine; the new round runs elsewhere."""
    model = make_model("m")
    make_server("gpu-1", model=model, slots=2)
    job = make_job("m", max_retries=0)
    _, first = start(job)
    late = end(job, first, Ending(BadInput("no"), suspect=True))
    assert transitions.end_attempt(late).won
    retry_dead_letter(job.id, ports=make_ports(FakeLeases()))
    outcome, second = start(job, "gpu-1/1")
    assert outcome is StartOutcome.STARTED
    for write in (transitions.end_attempt, transitions.restore_end):
        assert not write(late).won
    job.refresh_from_db()
    assert (job.state, job.live_attempt, job.round) == (JobState.RUNNING, second, 2)
    assert QuarantinedSlot.objects.filter(freed_at=None).count() == 1
    assert transitions.end_attempt(end(job, second)._replace(slot="gpu-1/1")).won
    assert Callback.objects.filter(job=job).count() == 0


@pytest.mark.database
def test_two_concurrent_reruns_of_a_job_open_one_round() -> None:
    job = make_job(max_retries=0)
    _, attempt_id = start(job)
    transitions.end_attempt(end(job, attempt_id, Ending(BadInput("no"))))
    ports = make_ports(FakeLeases())
    retry_dead_letter(job.id, ports=ports)
    with pytest.raises(Refused):
        retry_dead_letter(job.id, ports=ports)
    job.refresh_from_db()
    assert (job.state, job.round) == (JobState.QUEUED, 2)
