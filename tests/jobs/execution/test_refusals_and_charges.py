"""Refused starts, lost replies and charges: their effect on slots and budgets."""

from __future__ import annotations

import threading

import pytest
from django.db import connection

from gpus.models import QuarantinedSlot
from jobs.domain.states import JobState
from jobs.models import Attempt
from jobs.operations.jobs import CancelOutcome, cancel_job
from tests.support.factories import make_job, make_running
from tests.support.lossy_leases import LossyLeases
from tests.support.waiting import wait_for
from tests.support.worker_harness import state

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_slot_taken_that_is_known_after_the_run_is_quarantined_too(harness, monkeypatch):
    other = make_job("m", at=harness.ports.clock.now())
    make_running(other, at=harness.ports.clock.now())
    harness.submit({"seconds": 0.01})
    worker = harness.worker()
    gate = threading.Event()
    worker.completion.writer.submit(lambda: gate.wait(30))  # the database is slow
    monkeypatch.setattr(worker.claims, "must_await_starts", lambda *_: False)
    worker.work("m")  # the run ends before its start is refused
    gate.set()
    wait_for(lambda: worker.completion.keeper.held() == 0)
    assert QuarantinedSlot.objects.filter(server="gpu-1", slot=0, freed_at=None).exists()


def test_a_release_whose_reply_was_lost_costs_the_next_job_nothing(harness):
    first, second = harness.submit({"seconds": 0.05}), harness.submit({"seconds": 0.05})
    lossy = LossyLeases(harness.leases, "release")
    worker = harness.worker(leases=lambda _f: lossy)
    worker.work("m")
    assert lossy.lost == 1
    wait_for(lambda: state(first) == JobState.COMPLETED)
    for _ in range(3):
        worker.watch()
        worker.work("m")
    view = harness.leases.slots("gpu-1")[0]
    assert (view.state, view.job_id) != ("leased", second.id), "no worker runs it: it would expire as a death"


def test_no_connection_is_held_while_a_sync_run_is_at_its_gpu(harness, monkeypatch):
    harness.submit({"seconds": 0.05})
    worker = harness.worker()
    seen = []
    real = worker.loop_parts.process.runner_for

    def spy(spec):
        runner = real(spec)
        start = runner.start

        def starting(run, *, abort):
            seen.append(connection.connection)
            return start(run, abort=abort)

        runner.start = starting
        return runner

    worker.loop_parts.process.runner_for = spy
    thread = threading.Thread(target=worker.work, args=("m",))
    thread.start()
    thread.join(60)
    assert seen == [None]


def test_a_cancel_of_a_leased_job_waits_for_the_gpu(harness):
    """Its ticket is not in the line, so it is running: the state comes when the GPU is proven free."""
    job = harness.submit({"seconds": 30})
    lease = harness.leases.claim("m", worker="w", attempt_id="A" * 26)  # sent; its start is being committed
    assert lease.job_id == job.id
    assert cancel_job(job.id, ports=harness.ports) is CancelOutcome.REQUESTED


def test_a_refused_connection_is_charged_nothing(harness, monkeypatch):
    from gpus.models import Placement

    Placement.objects.update(endpoint="http://127.0.0.1:9/generate")
    job = harness.submit({})
    worker = harness.worker()
    worker.work("m")
    wait_for(lambda: Attempt.objects.filter(job=job).exclude(finished_at=None).exists())
    assert Attempt.objects.get(job=job).gpu_seconds == 0.0
