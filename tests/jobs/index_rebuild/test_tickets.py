"""The sweeps `fill`, `due_retries`, `deadlines`, `due_callbacks` and `reconcile`."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from gpus.errors import ServerLost
from gpus.leasing.clock import FRESH_SECONDS, SharedClock
from gpus.models import ModelConfig, Placement, Pool, Server
from gpus.protocol import ReleaseMode
from jobs import transitions
from jobs.domain.retry import Ending, RetryPolicy
from jobs.domain.states import JobState
from jobs.index_rebuild import tickets
from jobs.models import Callback, Event, Job
from jobs.sweeps import deadlines, due_retries, fill, long_waits, reconcile
from jobs.sweeps.base import Sweep
from jobs.transitions import End
from tests.support.by_process import run_sweep
from tests.support.fakes import WrongClocks
from tests.support.laws import assert_laws
from tests.support.queue_harness import QueueHarness, open_index


def state_of(job: Job) -> str:
    return Job.objects.values_list("state", flat=True).get(id=job.id)


def in_line(queue: QueueHarness, job: Job) -> bool:
    return queue.leases.has_tickets("m", [job.ticket])[0]


def retrying(queue: QueueHarness) -> Job:
    """A job whose first attempt failed, with a backoff of 1 s."""
    job = queue.job()
    lease = queue.claim()
    queue.release(lease)
    ending = Ending(ServerLost(), suspect=False)
    policy = RetryPolicy(jitter=0.0)
    transitions.end_attempt(End(job.id, lease.attempt_id, 1, lease.slot, ending, policy, queue.clock.now()))
    queue.leases.confirm_ends([lease.ref])
    job.refresh_from_db()
    assert job.state == JobState.RETRYING
    return job


def test_fill_sends_a_lost_wake(queue: QueueHarness) -> None:
    queue.server(slots=2)
    for _ in range(3):
        queue.job()
    queue.wakes.clear()
    assert fill.sweep(queue.ports).repaired == 2
    assert [(wake.pool, wake.count) for wake in queue.wakes] == [("m", 2)]


def test_fill_sends_no_wake_without_waiting_jobs(queue: QueueHarness) -> None:
    queue.server()
    assert fill.sweep(queue.ports).repaired == 0


def test_a_retry_is_queued_when_its_backoff_is_over(queue: QueueHarness) -> None:
    queue.server()
    job = retrying(queue)
    queue.clock.advance(0.9)
    assert due_retries.sweep(queue.ports).looked == 0
    queue.clock.advance(0.2)
    assert due_retries.sweep(queue.ports).repaired == 1
    assert state_of(job) == JobState.QUEUED
    assert in_line(queue, job)
    assert queue.announced == [job.id]
    assert sum(wake.count for wake in queue.wakes) == 1
    assert due_retries.sweep(queue.ports).repaired == 0
    assert_laws(drained=True, ports=queue.ports, accepted=1)


def test_a_retry_with_a_requested_cancel_ends(queue: QueueHarness) -> None:
    queue.server()
    job = retrying(queue)
    Job.objects.filter(id=job.id).update(cancel_requested_at=queue.clock.now())
    queue.clock.advance(2)
    assert due_retries.sweep(queue.ports).repaired == 1
    assert state_of(job) == JobState.CANCELLED
    assert not in_line(queue, job)


def test_a_retry_is_queued_without_redis_and_pushed_by_reconcile(queue: QueueHarness) -> None:
    queue.server()
    job = retrying(queue)
    queue.clock.advance(2)
    queue.redis_is_gone = True
    assert due_retries.sweep(queue.ports).repaired == 1
    queue.redis_is_gone = False
    assert not in_line(queue, job)
    queue.clock.advance(3)
    assert run_sweep("reconcile", queue.ports).repaired == 1
    assert in_line(queue, job)


def test_a_waiting_job_fails_at_its_deadline_and_leaves_the_queue(queue: QueueHarness) -> None:
    queue.server()
    job = queue.job(deadline_at=queue.clock.now() + timedelta(seconds=5), callback_url="https://x.example/")
    assert deadlines.sweep(queue.ports).looked == 0
    queue.clock.advance(6)
    assert deadlines.sweep(queue.ports).repaired == 1
    job.refresh_from_db()
    assert (job.state, job.error_code) == (JobState.FAILED, "deadline_exceeded")
    assert "never started" in job.error_message
    assert not in_line(queue, job)
    assert queue.callbacks == [Callback.objects.get(job=job).id]
    assert_laws(drained=True, ports=queue.ports, accepted=1)


def test_a_job_that_did_not_start_in_time_fails(queue: QueueHarness) -> None:
    job = queue.job(start_deadline_at=queue.clock.now() + timedelta(seconds=5), push=False)
    queue.clock.advance(6)
    assert deadlines.sweep(queue.ports).repaired == 1
    job.refresh_from_db()
    assert job.error_code == "start_deadline_exceeded", "distinct from the deadline of the whole job"
    assert "start deadline" in job.error_message


@pytest.mark.parametrize("sweep", [deadlines.sweep, long_waits.sweep])
def test_no_job_fails_at_a_deadline_while_clocks_disagree(queue: QueueHarness, sweep: Sweep) -> None:
    queue.server()
    soon = queue.clock.now() + timedelta(seconds=5)
    jobs = [queue.job(**{name: soon}) for name in ("deadline_at", "start_deadline_at", "queue_deadline_at")]
    clocks = WrongClocks()
    ports = replace(queue.ports, clock_watch=clocks)
    queue.clock.advance(6)
    count = sweep(ports)
    assert (count.repaired, count.notes[0]) == (0, "paused: the clock of Redis is 3600 s ahead")
    assert all(in_line(queue, job) for job in jobs)
    assert set(Job.objects.values_list("state", flat=True)) == {"queued"}
    clocks.ahead = 0.0
    assert sweep(ports).repaired > 0


@pytest.mark.parametrize("sweep", [deadlines.sweep, long_waits.sweep])
def test_no_job_fails_early_after_the_time_was_set_back(queue: QueueHarness, sweep: Sweep) -> None:
    """A process that started without Redis and with the database's clock five minutes ahead."""
    queue.server()
    soon = queue.clock.now() + timedelta(seconds=5)
    jobs = [queue.job(**{name: soon}) for name in ("deadline_at", "start_deadline_at", "queue_deadline_at")]
    host, ahead = queue.clock, [300.0]
    clock = SharedClock(host, lambda: None, lambda: host.now().timestamp() + ahead[-1])
    ports = replace(queue.ports, clock=clock, clock_watch=clock)
    clock.compare()
    assert clock.now() > soon
    ahead.append(0.0)
    host.advance(FRESH_SECONDS)
    assert sweep(ports).repaired == 0
    assert all(in_line(queue, job) for job in jobs)
    assert set(Job.objects.values_list("state", flat=True)) == {"queued"}
    host.advance(5)
    assert sweep(ports).repaired > 0


def test_a_job_between_two_attempts_fails_at_its_deadline(queue: QueueHarness) -> None:
    queue.server()
    job = retrying(queue)
    Job.objects.filter(id=job.id).update(deadline_at=queue.clock.now())
    assert deadlines.sweep(queue.ports).repaired == 1
    assert "another attempt" in Job.objects.get(id=job.id).error_message


def test_a_starting_job_is_left_to_its_worker(queue: QueueHarness) -> None:
    queue.server()
    job = queue.job(deadline_at=queue.clock.now())
    queue.claim(written=False)
    assert deadlines.sweep(queue.ports).repaired == 0
    assert state_of(job) == JobState.QUEUED


def test_a_running_jobs_deadline_is_left_to_its_worker(queue: QueueHarness) -> None:
    queue.server()
    job = queue.job(deadline_at=queue.clock.now())
    queue.claim()
    assert deadlines.sweep(queue.ports).looked == 0
    assert state_of(job) == JobState.RUNNING


def test_deadlines_are_enforced_without_redis(queue: QueueHarness) -> None:
    queue.server()
    job = queue.job(deadline_at=queue.clock.now())
    queue.redis_is_gone = True
    assert deadlines.sweep(queue.ports).repaired == 1
    assert state_of(job) == JobState.FAILED


def test_a_job_without_a_ticket_gets_one(queue: QueueHarness) -> None:
    queue.server()
    job = queue.job(push=False)
    assert run_sweep("reconcile", queue.ports).looked == 0, "a submit's own push has two seconds"
    queue.clock.advance(3)
    assert run_sweep("reconcile", queue.ports).repaired == 1
    assert in_line(queue, job)
    assert sum(wake.count for wake in queue.wakes) == 1
    assert run_sweep("reconcile", queue.ports).repaired == 0


def test_a_job_on_a_slot_or_settling_is_not_pushed_again(queue: QueueHarness) -> None:
    queue.server(slots=2)
    queue.job()
    queue.job()
    first, _second = queue.claim(written=False), queue.claim(written=False)
    queue.release(first, ReleaseMode.ENDED)
    queue.clock.advance(3)
    count = run_sweep("reconcile", queue.ports)
    assert (count.looked, count.repaired) == (2, 0)


def unregister(queue: QueueHarness) -> None:
    """Servers, models and the pool are deleted in the admin; the jobs stay."""
    for model in (Placement, Server, ModelConfig, Pool):
        model.objects.all().delete()


@pytest.mark.parametrize("other_pools", [True, False])
def test_jobs_of_an_unregistered_pool_keep_waiting_in_its_queue(
    queue: QueueHarness, other_pools: bool
) -> None:
    queue.server()
    job = queue.job()
    unregister(queue)
    if other_pools:
        Pool.objects.create(name="other", fleet=queue.fleet)
    queue.flush()
    open_index(queue.leases)
    queue.clock.advance(3)
    count = run_sweep("reconcile", queue.ports)
    assert (count.looked, count.repaired) == (1, 1)
    assert any("m: not registered any more" in note for note in count.notes)
    assert in_line(queue, job)
    assert_laws(drained=True, ports=queue.ports, accepted=1)

    queue.server()  # registered again
    lease = queue.claim()
    assert lease.job_id == job.id
    assert run_sweep("reconcile", queue.ports).notes == ()


def test_a_fleet_without_redis_is_noted(queue: QueueHarness) -> None:
    queue.server()
    queue.job(push=False)
    unregister(queue)
    queue.clock.advance(3)
    queue.redis_is_gone = True
    assert any(note.startswith(queue.fleet) for note in run_sweep("reconcile", queue.ports).notes)


@pytest.mark.database
def test_a_long_queue_is_read_over_several_runs(queue: QueueHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tickets, "PAGE", 2)
    monkeypatch.setattr(tickets._page, "_compiled", {})  # with that many rows
    sweep = reconcile.ReconcileSweep(pages_per_run=2)
    queue.server()
    place = int(queue.clock.now().timestamp() * 1_000_000)
    for n in range(7):  # some jobs have the same place
        queue.job(push=False, place_us=place + n // 3)
    queue.clock.advance(3)
    runs = [sweep(queue.ports).looked for _ in range(3)]
    assert runs == [4, 3, 4]
    assert_laws(drained=True, ports=queue.ports, accepted=7)


@pytest.mark.database
def test_a_callback_with_a_lost_wake_is_woken_once(queue: QueueHarness) -> None:
    job = queue.job(push=False, callback_url="https://x.example/")
    transitions.end_waiting(job.id, JobState.CANCELLED, queue.clock.now(), code="c", message="m")
    assert run_sweep("due_callbacks", queue.ports).looked == 0, "the wake after the commit has a second"
    queue.clock.advance(2)
    assert run_sweep("due_callbacks", queue.ports).repaired == 1
    assert queue.callbacks == [Callback.objects.get().id]
    queue.clock.advance(1)
    assert run_sweep("due_callbacks", queue.ports).repaired == 0, "the message still waits for its worker"
    queue.clock.advance(10)
    assert run_sweep("due_callbacks", queue.ports).repaired == 1


@pytest.mark.database
def test_a_callback_written_by_a_clock_ahead_is_due_at_once(queue: QueueHarness) -> None:
    new, tried = (queue.job(push=False, callback_url="https://x.example/") for _ in range(2))
    for job in (new, tried):
        transitions.end_waiting(job.id, JobState.CANCELLED, queue.clock.now(), code="c", message="m")
    ahead = queue.clock.now() + timedelta(hours=1)
    Callback.objects.update(next_at=ahead)
    Callback.objects.filter(job=tried).update(tries=3)
    run_sweep("due_callbacks", replace(queue.ports, clock_watch=WrongClocks()))
    assert Callback.objects.get(job=new).next_at == queue.clock.now()
    assert Callback.objects.get(job=tried).next_at == ahead, "that is the retry schedule"


def test_every_end_has_its_event(queue: QueueHarness) -> None:
    job = queue.job(push=False, deadline_at=queue.clock.now())
    deadlines.sweep(queue.ports)
    assert list(Event.objects.filter(job=job).values_list("type", flat=True)) == ["queued", "failed"]
