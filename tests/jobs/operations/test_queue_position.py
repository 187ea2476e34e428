"""An operator moves a waiting job in its queue: with a real index, and with what may happen in between."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gpus.errors import LeasingUnavailable
from gpus.models import AuditEntry, Server
from gpus.protocol import PoolSpec, QueueAlgorithm
from jobs.domain.errors import NotWaiting
from jobs.domain.states import JobState
from jobs.index_rebuild.tickets import waiting_tickets
from jobs.models import Event, Job
from jobs.operations.jobs import cancel_job
from jobs.operations.queue_position import change_priority, run_next
from tests.jobs.execution.by_hand import by_hand, order_of
from tests.support.factories import make_job, make_running
from tests.support.fakes import AbsentLeases, PortCalls, make_ports
from tests.support.worker_harness import state

pytestmark = pytest.mark.django_db(transaction=True)

BY = "user:boss"


def test_a_job_with_a_new_priority_goes_before_lower_ones(harness):
    hands = by_hand(harness)
    first, second = hands.submit(), hands.submit()
    moved = change_priority(second.id, 1, by=BY, ports=hands.worker.ports)
    assert (moved.priority, moved.place_us) == (1, second.place_us)
    assert hands.waiting() == 2
    assert order_of(hands) == [second.id, first.id]
    assert [state(job) for job in (first, second)] == [JobState.COMPLETED] * 2


def test_a_move_is_in_the_row_the_events_and_the_audit(harness):
    hands = by_hand(harness)
    job = hands.submit()
    change_priority(job.id, 9, by=BY, ports=hands.worker.ports)
    assert Job.objects.get(id=job.id).priority == 9
    event = Event.objects.filter(job=job).latest("seq")
    assert (event.type, event.data) == ("moved_in_line", {"priority": 9, "before": 5})
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.action, entry.target) == (BY, "change_priority", f"job:{job.id}")
    assert entry.detail == {"priority": 9, "before": 5}


def test_the_same_priority_again_changes_nothing(harness):
    hands = by_hand(harness)
    job = hands.submit()
    change_priority(job.id, 5, by=BY, ports=hands.worker.ports)
    assert hands.leases.named("remove") == []
    assert (Event.objects.filter(job=job).count(), AuditEntry.objects.count()) == (1, 0)


@pytest.mark.parametrize("priority", [0, 10])
def test_a_priority_is_one_to_nine(priority):
    with pytest.raises(ValueError, match="1 to 9"):
        change_priority(make_job().id, priority, by=BY, ports=make_ports())


def test_run_next_goes_before_all_others_of_its_pool(harness):
    hands = by_hand(harness)
    urgent, normal, chosen = hands.submit(), hands.submit(), hands.submit()
    change_priority(urgent.id, 1, by=BY, ports=hands.worker.ports)
    moved = run_next(chosen.id, by=BY, ports=hands.worker.ports)
    assert (moved.priority, moved.place_us) == (1, urgent.place_us - 1)
    assert order_of(hands) == [chosen.id, urgent.id, normal.id]


def test_of_two_run_next_jobs_the_later_request_goes_first(harness):
    hands = by_hand(harness)
    jobs = [hands.submit() for _ in range(3)]
    for job in jobs[1:]:
        run_next(job.id, by=BY, ports=hands.worker.ports)
    assert order_of(hands) == [jobs[2].id, jobs[1].id, jobs[0].id]


def test_run_next_goes_before_a_job_between_two_attempts_too(harness):
    hands = by_hand(harness)
    retrying = make_retrying(hands)
    chosen = hands.submit()
    assert run_next(chosen.id, by=BY, ports=hands.worker.ports).place_us == retrying.place_us - 1


def test_run_next_twice_moves_once(harness):
    hands = by_hand(harness)
    hands.submit()
    job = hands.submit()
    run_next(job.id, by=BY, ports=hands.worker.ports)
    run_next(job.id, by=BY, ports=hands.worker.ports)
    assert AuditEntry.objects.filter(action="run_next").count() == 1


@pytest.mark.parametrize("algorithm", list(QueueAlgorithm))
def test_the_place_is_kept_over_a_rebuild_of_the_index(harness, algorithm):
    """It is the row's; and in a FIFO pool it is the first of all."""
    hands = by_hand(harness)
    jobs = [hands.submit() for _ in range(3)]
    run_next(jobs[2].id, by=BY, ports=hands.worker.ports)
    assert harness.leases.begin_rebuild("test")
    assert harness.leases.wipe("test")
    harness.leases.configure_pool(PoolSpec("m", algorithm))
    harness.leases.configure_server(Server.objects.get().spec())
    harness.leases.push("m", waiting_tickets("m")[0])
    harness.leases.open_generation("test")
    assert order_of(hands) == [jobs[2].id, jobs[0].id, jobs[1].id]


# -- refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [lambda *a, **k: change_priority(*a, 1, **k), run_next])
def test_a_job_that_runs_or_is_over_is_refused(change):
    running, over = make_job(), make_job()
    make_running(running)
    cancel_job(over.id, ports=make_ports())
    for job in (running, over):
        with pytest.raises(NotWaiting):
            change(job.id, by=BY, ports=make_ports())


@pytest.mark.parametrize("has_ended", [False, True], ids=["leased", "settling"])
def test_a_job_that_a_worker_holds_is_refused_whatever_its_row_says(harness, has_ended):
    """The claim came first: its start, or its start and end, are on their way to the database."""
    hands = by_hand(harness)
    job = hands.submit()
    hands.writer.at_once = False
    refused = []

    def ask(_=None):
        with pytest.raises(NotWaiting, match="is starting it"):
            change_priority(job.id, 1, by=BY, ports=hands.worker.ports)
        refused.append(job.id)

    if not has_ended:
        hands.gpu.on_start = ask
    hands.worker.work("m")
    if has_ended:
        ask()
    assert refused == [job.id]
    assert state(job) == JobState.QUEUED
    hands.writer.commit()
    assert (state(job), Job.objects.get(id=job.id).priority) == (JobState.COMPLETED, 5)
    assert hands.waiting() == 0


def test_while_redis_is_away_a_queued_job_is_left_alone():
    job = make_job()
    with pytest.raises(LeasingUnavailable):
        change_priority(job.id, 1, by=BY, ports=make_ports(AbsentLeases()))
    assert Job.objects.get(id=job.id).priority == 5
    assert AuditEntry.objects.count() == 0


def make_retrying(hands) -> Job:
    job = make_job("m", at=hands.clock.now())
    Job.objects.filter(id=job.id).update(
        state=JobState.RETRYING, due_at=hands.clock.now() + timedelta(hours=1)
    )
    job.refresh_from_db()
    return job


def test_a_retrying_job_is_moved_without_redis_and_has_its_new_place_when_it_is_due():
    calls = PortCalls()
    job = make_job()
    Job.objects.filter(id=job.id).update(state=JobState.RETRYING)
    change_priority(job.id, 2, by=BY, ports=make_ports(AbsentLeases(), calls=calls))
    assert Job.objects.get(id=job.id).ticket.priority == 2
    assert calls.announced == [job.id]


# -- races and crashes -------------------------------------------------------------------------------------
