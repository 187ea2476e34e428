"""A moved ticket, when another process acts or dies in the middle of the move."""

from __future__ import annotations

import pytest
from django.db import OperationalError, transaction

from gpus.errors import LeasingUnavailable
from gpus.models import AuditEntry, Server
from jobs import transitions
from jobs.domain.errors import NotWaiting
from jobs.domain.states import JobState
from jobs.execution.follow_ups import push_tickets
from jobs.models import Event, Job
from jobs.operations import queue_position
from jobs.operations.jobs import CancelOutcome, cancel_job
from jobs.operations.queue_position import change_priority
from jobs.sweeps import reconcile
from tests.jobs.execution.by_hand import by_hand, order_of
from tests.support.by_process import run_sweep
from tests.support.factories import make_job
from tests.support.worker_harness import state

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


BY = "user:boss"


def test_a_claim_that_comes_while_the_row_is_written_finds_no_ticket(harness, monkeypatch):
    hands = by_hand(harness)
    job = hands.submit()
    claims = []
    real = transitions.change_place

    def slowly(*given):
        claims.append(harness.leases.claim("m", worker="other", attempt_id="a" * 26))
        return real(*given)

    monkeypatch.setattr(queue_position.transitions, "change_place", slowly)
    change_priority(job.id, 1, by=BY, ports=hands.worker.ports)
    assert claims == [None]
    assert order_of(hands) == [job.id]


def test_a_row_that_changed_meanwhile_is_read_again(harness, monkeypatch):
    """Two operators at once: each change is atomic, and the later one wins."""
    hands = by_hand(harness)
    job = hands.submit()
    real, meanwhile = transitions.change_place, []

    def late(*given):
        if not meanwhile:
            meanwhile.append(True)
            Job.objects.filter(id=job.id).update(priority=9)
            push_tickets("main", "m", [Job.objects.get(id=job.id).ticket], hands.worker.ports)
        return real(*given)

    monkeypatch.setattr(queue_position.transitions, "change_place", late)
    change_priority(job.id, 1, by=BY, ports=hands.worker.ports)
    assert Job.objects.get(id=job.id).priority == 1
    assert hands.waiting() == 1
    assert AuditEntry.objects.get().detail == {"priority": 1, "before": 9}


def test_a_job_that_is_cancelled_meanwhile_gets_no_ticket_back(harness, monkeypatch):
    hands = by_hand(harness)
    job = hands.submit()
    real = transitions.change_place

    def late(*given):
        cancel_job(job.id, ports=hands.worker.ports)
        return real(*given)

    monkeypatch.setattr(queue_position.transitions, "change_place", late)
    with pytest.raises(NotWaiting):
        change_priority(job.id, 1, by=BY, ports=hands.worker.ports)
    assert (state(job), hands.waiting()) == (JobState.CANCELLED, 0)


def test_a_move_that_the_database_refuses_leaves_the_ticket_at_its_place(harness, monkeypatch):
    hands = by_hand(harness)
    job = hands.submit()

    def fail(*given):
        raise OperationalError("no")

    monkeypatch.setattr(queue_position.transitions, "change_place", fail)
    with pytest.raises(OperationalError):
        change_priority(job.id, 1, by=BY, ports=hands.worker.ports)
    assert harness.leases.has_tickets("m", [job.ticket]) == [True]


@pytest.mark.parametrize("after", ["remove", "commit"])
def test_the_reconciler_repairs_a_move_whose_process_died_in_between(harness, monkeypatch, after):
    hands = by_hand(harness)
    job = hands.submit()

    class Died(BaseException):
        pass

    def die(*given, **named):
        raise Died

    if after == "remove":
        monkeypatch.setattr(queue_position.transitions, "change_place", die)
    monkeypatch.setattr(queue_position.follow_ups, "push_waiting", die)
    with pytest.raises(Died):
        change_priority(job.id, 1, by=BY, ports=hands.worker.ports)
    assert hands.waiting() == 0
    hands.clock.move(reconcile.YOUNG_SECONDS + 1)
    run_sweep("reconcile", hands.worker.ports)
    assert (hands.waiting(), Job.objects.get(id=job.id).priority) == (1, 5 if after == "remove" else 1)
    assert order_of(hands) == [job.id]


def test_an_old_ticket_that_is_pushed_late_starts_nothing_twice(harness):
    """The reconciler, or a process that has kept the ticket, may push it under the old priority."""
    hands = by_hand(harness)
    job, other = hands.submit(), hands.submit()
    change_priority(job.id, 1, by=BY, ports=hands.worker.ports)
    push_tickets("main", "m", [job.ticket], hands.worker.ports)
    assert hands.waiting() == 3
    assert order_of(hands) == [job.id, other.id]
    assert hands.waiting() == 0


def test_a_change_applied_twice_changes_nothing_the_second_time():
    """A COMMIT whose reply was lost."""
    job = make_job()
    with transaction.atomic():
        assert transitions.change_place(job, 1, 7, job.created_at) is not None
        assert transitions.change_place(job, 1, 7, job.created_at) is None
    assert Event.objects.filter(job=job, type="moved_in_line").count() == 1


def test_of_two_tickets_of_a_job_the_claimed_one_counts(harness):
    """Its old ticket was leased, and the new one is still queued: the job counts as held."""
    hands = by_hand(harness)
    job = hands.submit()
    hands.writer.at_once = False
    asked = []

    def ask(_):
        push_late(hands, job)
        asked.append(cancel_job(job.id, ports=hands.worker.ports))

    hands.gpu.on_start = ask
    hands.worker.work("m")
    assert asked == [CancelOutcome.REQUESTED]


def push_late(hands, job) -> None:
    """A second ticket, as if the row had been moved and the lease were of the first."""
    Job.objects.filter(id=job.id).update(priority=1)
    hands.leases.instead["remove"] = lambda real, *given: True


def test_a_lost_answer_of_redis_costs_no_ticket(harness):
    hands = by_hand(harness)
    job = hands.submit()

    def refuse(real, *given):
        raise LeasingUnavailable("the reply was lost")

    hands.leases.instead["has_tickets"] = refuse
    with pytest.raises(LeasingUnavailable):
        change_priority(job.id, 1, by=BY, ports=hands.worker.ports)
    del hands.leases.instead["has_tickets"]
    assert hands.waiting() == 1
    assert order_of(hands) == [job.id]


def test_a_lease_without_a_server_gives_the_ticket_back_at_once(harness):
    hands = by_hand(harness)
    job = hands.submit()
    Server.objects.all().delete()
    hands.worker.work("m")
    assert (hands.waiting(), state(job), hands.gpu.sent) == (1, JobState.QUEUED, [])
