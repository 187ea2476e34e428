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
from tests.support.shop import Shop, state
from tests.support.system.gates import open_gate
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)
ASYNC = pytest.mark.parametrize("shop", [{"mode": "async"}], indirect=True)
BOTH = pytest.mark.parametrize("shop", [{"mode": "sync"}, {"mode": "async"}], indirect=True)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "WATCH_SECONDS", 0.05)


def switch(shop: Shop, desired: DesiredState) -> None:
    done = controls.switch_server("gpu-1", desired, by="user:ada", leases=shop.ports.leases)
    assert done is not None
    assert done.mirrored, "Redis did not answer in time"
    shop.ports.send_wakes(done.wakes)


def running(shop: Shop, **payload: object) -> tuple[Job, threading.Thread]:
    """A job that its GPU has begun."""
    job = shop.submit({"seconds": 30, **payload})
    thread = shop.work(shop.worker())
    wait_for(lambda: shop.node.health()["active_jobs"] == 1)
    return job, thread


def back_in_line(shop: Shop, job: Job, *, waiting: int = 1) -> Attempt:
    """Its only attempt, at no cost."""
    place = job.place_us
    wait_for(lambda: state(job) == JobState.QUEUED and Attempt.objects.filter(finished_at=None).count() == 0)
    job.refresh_from_db()
    assert (job.tries, job.deaths, job.place_us) == (0, 0, place)
    wait_for(lambda: shop.leases.depth("m").waiting == {"m": waiting})
    attempt = Attempt.objects.get(job=job)
    assert (attempt.state, attempt.error_code, attempt.counted) == (AttemptState.LOST, "interrupted", False)
    return attempt


@BOTH
def test_switching_off_stops_the_runs_and_their_jobs_run_again_when_the_server_is_on(shop: Shop) -> None:
    job, thread = running(shop)
    if shop.node.config.mode == "async":
        wait_for(lambda: Attempt.objects.filter(job=job, state=AttemptState.WAITING).exists())
    switch(shop, DesiredState.OFF)
    attempt = back_in_line(shop, job)
    thread.join(10)
    assert shop.node.health()["active_jobs"] == 0
    assert (attempt.slot_freed, attempt.evidence) == (True, "server confirmed the cancel")
    wait_for(lambda: shop.leases.slots("gpu-1")[0].state == "off")
    shop.work(shop.workers[0]).join(10)  # uses up the wake of the requeued job, if there was one
    shop.told.wakes.clear()
    switch(shop, DesiredState.ON)
    assert sum(wake.count for wake in shop.told.wakes) == 1, "at once, not with the next fill"
    shop.work(shop.workers[0])
    wait_for(lambda: state(job) == JobState.RUNNING)


def test_a_run_that_can_not_be_proven_over_leaves_its_slot_in_quarantine(shop: Shop) -> None:
    """And on again is not free again: the probe decides."""
    shop.node.faults.add({"fault": 500, "on": "cancel", "seconds": 60})
    job, _ = running(shop)
    switch(shop, DesiredState.OFF)
    assert not back_in_line(shop, job).slot_freed
    assert QuarantinedSlot.objects.filter(server="gpu-1", slot=0, freed_at=None).exists()
    switch(shop, DesiredState.ON)
    wait_for(lambda: shop.leases.slots("gpu-1")[0].state == "quarantined")


@ASYNC
def test_a_run_without_a_worker_is_adopted_once_and_stopped(shop: Shop) -> None:
    job, thread = running(shop)
    wait_for(lambda: Attempt.objects.filter(job=job, state=AttemptState.WAITING).exists())
    shop.workers[0].drain()
    thread.join(10)
    wait_for(lambda: shop.leases.slots("gpu-1")[0].state == "adoptable")
    switch(shop, DesiredState.OFF)
    shop.worker().work("m")
    assert back_in_line(shop, job).epoch == 2
    assert shop.node.health()["active_jobs"] == 0
    wait_for(lambda: shop.leases.slots("gpu-1")[0].state == "off")
    assert shop.worker().work("m") == []


def test_a_server_that_is_off_only_in_the_database_starts_no_run_and_loses_no_job(shop: Shop) -> None:
    """Redis did not answer when it was switched off: what waits must not be begun and stopped in turns."""
    job, thread = running(shop)
    waiting = shop.submit({"seconds": 30})
    Server.objects.filter(name="gpu-1").update(desired=DesiredState.OFF)
    thread.join(10)
    back_in_line(shop, job, waiting=2)
    assert shop.worker().work("m") == []
    assert Attempt.objects.count() == 1
    assert (shop.leases.depth("m").waiting, shop.leases.slots("gpu-1")[0].resting) == ({"m": 2}, True)
    assert state(waiting) == JobState.QUEUED


@pytest.mark.parametrize("shop", [{"handler": "tests.support.system.gates:run"}], indirect=True)
def test_a_draining_server_finishes_what_runs(shop: Shop) -> None:
    job, thread = running(shop, seconds=0, gate="draining")
    switch(shop, DesiredState.DRAINING)
    open_gate("draining")
    thread.join(30)
    wait_for(lambda: state(job) == JobState.COMPLETED)
    wait_for(lambda: shop.leases.slots("gpu-1")[0].state == "off")


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
