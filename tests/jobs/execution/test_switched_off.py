"""A server is switched off during a run: the run is stopped at the GPU, its job queued again at no cost."""

from __future__ import annotations

import threading
from unittest.mock import Mock, call

import pytest

from foundation.ids import new_id
from gpus.models import QuarantinedSlot, Server
from gpus.protocol import DesiredState
from gpus.registry import controls
from jobs.domain.states import AttemptState, JobState
from jobs.execution import gpu_worker as workers
from jobs.execution.attempt_run import Order
from jobs.execution.external_changes import changes_for, interrupt_switched_off
from jobs.models import Attempt, Job
from tests.support.factories import make_model, make_server
from tests.support.system.gates import open_gate
from tests.support.waiting import wait_for
from tests.support.worker_harness import WorkerHarness, state

pytestmark = pytest.mark.django_db(transaction=True)
ASYNC = pytest.mark.parametrize("harness", [{"mode": "async"}], indirect=True)
BOTH = pytest.mark.parametrize("harness", [{"mode": "sync"}, {"mode": "async"}], indirect=True)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "WATCH_SECONDS", 0.05)


def switch(harness: WorkerHarness, desired: DesiredState) -> None:
    done = controls.switch_server("gpu-1", desired, by="user:ada", leases=harness.ports.leases)
    assert done is not None
    assert done.mirrored, "Redis did not answer in time"
    harness.ports.send_wakes(done.wakes)


def running(harness: WorkerHarness, **payload: object) -> tuple[Job, threading.Thread]:
    """A job that its GPU has begun."""
    job = harness.submit({"seconds": 30, **payload})
    thread = harness.work(harness.worker())
    wait_for(lambda: harness.node.health()["active_jobs"] == 1)
    return job, thread


def back_in_line(harness: WorkerHarness, job: Job, *, waiting: int = 1) -> Attempt:
    """Its only attempt, at no cost."""
    place = job.place_us
    wait_for(lambda: state(job) == JobState.QUEUED and Attempt.objects.filter(finished_at=None).count() == 0)
    job.refresh_from_db()
    assert (job.tries, job.deaths, job.place_us) == (0, 0, place)
    wait_for(lambda: harness.leases.depth("m").waiting == {"m": waiting})
    attempt = Attempt.objects.get(job=job)
    assert (attempt.state, attempt.error_code, attempt.counted) == (AttemptState.LOST, "interrupted", False)
    return attempt


@BOTH
def test_switching_off_stops_the_runs_and_their_jobs_run_again_when_the_server_is_on(
    harness: WorkerHarness,
) -> None:
    job, thread = running(harness)
    if harness.node.config.mode == "async":
        wait_for(lambda: Attempt.objects.filter(job=job, state=AttemptState.WAITING).exists())
    switch(harness, DesiredState.OFF)
    attempt = back_in_line(harness, job)
    thread.join(10)
    assert harness.node.health()["active_jobs"] == 0
    assert (attempt.slot_freed, attempt.evidence) == (True, "server confirmed the cancel")
    wait_for(lambda: harness.leases.slots("gpu-1")[0].state == "off")
    harness.work(harness.workers[0]).join(10)  # uses up the wake of the requeued job, if there was one
    harness.calls.wakes.clear()
    switch(harness, DesiredState.ON)
    assert sum(wake.count for wake in harness.calls.wakes) == 1, "at once, not with the next fill"
    harness.work(harness.workers[0])
    wait_for(lambda: state(job) == JobState.RUNNING)


def test_a_run_that_can_not_be_proven_over_leaves_its_slot_in_quarantine(harness: WorkerHarness) -> None:
    """And on again is not free again: the probe decides."""
    harness.node.faults.add({"fault": 500, "on": "cancel", "seconds": 60})
    job, _ = running(harness)
    switch(harness, DesiredState.OFF)
    assert not back_in_line(harness, job).slot_freed
    assert QuarantinedSlot.objects.filter(server="gpu-1", slot=0, freed_at=None).exists()
    switch(harness, DesiredState.ON)
    wait_for(lambda: harness.leases.slots("gpu-1")[0].state == "quarantined")


@ASYNC
def test_a_run_without_a_worker_is_adopted_once_and_stopped(harness: WorkerHarness) -> None:
    job, thread = running(harness)
    wait_for(lambda: Attempt.objects.filter(job=job, state=AttemptState.WAITING).exists())
    harness.workers[0].drain()
    thread.join(10)
    wait_for(lambda: harness.leases.slots("gpu-1")[0].state == "adoptable")
    switch(harness, DesiredState.OFF)
    harness.worker().work("m")
    assert back_in_line(harness, job).epoch == 2
    assert harness.node.health()["active_jobs"] == 0
    wait_for(lambda: harness.leases.slots("gpu-1")[0].state == "off")
    assert harness.worker().work("m") == []


def test_a_server_that_is_off_only_in_the_database_starts_no_run_and_loses_no_job(
    harness: WorkerHarness,
) -> None:
    """Redis did not answer when it was switched off: what waits must not be begun and stopped in turns."""
    job, thread = running(harness)
    waiting = harness.submit({"seconds": 30})
    Server.objects.filter(name="gpu-1").update(desired=DesiredState.OFF)
    thread.join(10)
    back_in_line(harness, job, waiting=2)
    assert harness.worker().work("m") == []
    assert Attempt.objects.count() == 1
    assert (harness.leases.depth("m").waiting, harness.leases.slots("gpu-1")[0].resting) == ({"m": 2}, True)
    assert state(waiting) == JobState.QUEUED


@pytest.mark.parametrize("harness", [{"handler": "tests.support.system.gates:run"}], indirect=True)
def test_a_draining_server_finishes_what_runs(harness: WorkerHarness) -> None:
    job, thread = running(harness, seconds=0, gate="draining")
    switch(harness, DesiredState.DRAINING)
    open_gate("draining")
    thread.join(30)
    wait_for(lambda: state(job) == JobState.COMPLETED)
    wait_for(lambda: harness.leases.slots("gpu-1")[0].state == "off")


def test_of_many_runs_only_those_on_such_a_server_are_stopped() -> None:
    model = make_model("m")
    for name, desired in (("gpu-1", "on"), ("gpu-2", "off"), ("gpu-3", "draining"), ("gpu-4", "off")):
        make_server(name, model=model, desired=desired)
    runs = {name: Mock() for name in ("gpu-1", "gpu-2", "gpu-3", "gpu-4", "gone")}
    held = [(Mock(server=name, job_id=new_id(), attempt_id=new_id()), run) for name, run in runs.items()]
    interrupt_switched_off(held, changes_for(lease for lease, _ in held).off)
    stopped = [name for name, run in runs.items() if run.order.call_args_list == [call(Order.INTERRUPT)]]
    assert stopped == ["gpu-2", "gpu-4"]
    assert not any(runs[name].order.called for name in ("gpu-1", "gpu-3", "gone"))
