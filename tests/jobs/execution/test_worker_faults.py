"""A worker whose database, Redis or secrets fail at the worst moment: no lease stays, no try is lost."""

from __future__ import annotations

import time
from dataclasses import replace as dc_replace

import pytest
from django.db import DataError, OperationalError, connection

from gpus.errors import LeasingUnavailable
from gpus.models import ModelConfig, QuarantinedSlot
from jobs import transitions
from jobs.domain.states import AttemptState, JobState
from jobs.execution import claiming, run_factory
from jobs.execution.completion import Completion
from jobs.index_rebuild.rebuild import Progress, Rebuild
from jobs.models import Attempt, Job
from tests.jobs.execution.by_hand import OVER, run_claimed
from tests.support.lossy_leases import LossyLeases
from tests.support.waiting import wait_for
from tests.support.worker_harness import state

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


def away(*_a, **_k):
    raise OperationalError("server closed the connection unexpectedly")


def hidden(call):
    """Runs in this thread; whatever escapes is kept (Celery would log it and go on)."""
    try:
        call()
    except Exception as error:
        return error
    return None


def test_server_lost_while_the_database_is_away_leaves_no_lease_behind(harness, monkeypatch):
    job = harness.submit({"fault": "drop_reply", "seconds": 0.05})
    worker = harness.worker()

    class Gone:
        def first(self, **k):
            away()

    monkeypatch.setattr(run_factory, "pushed_body", Gone())
    escaped = hidden(lambda: worker.work("m"))
    monkeypatch.undo()  # the database is back
    wait_for(lambda: state(job) != JobState.RUNNING)
    assert escaped is None
    wait_for(lambda: worker.completion.keeper.held() == 0)


@pytest.mark.parametrize("harness", [{"mode": "async"}], indirect=True)
def test_an_adoption_that_loses_the_database_half_way_is_adoptable_again(harness, monkeypatch):
    job = harness.submit({"seconds": 600})
    first, second = harness.worker(), harness.worker()
    thread = harness.work(first)
    wait_for(lambda: Attempt.objects.filter(job=job, state=AttemptState.WAITING).exists())
    first.drain()
    thread.join(5)

    class Gone:
        def filter(self, *a, **k):
            away()

    monkeypatch.setattr(claiming, "Job", type("J", (), {"objects": Gone()}))
    hidden(lambda: second.work("m"))
    monkeypatch.undo()
    wait_for(
        lambda: second.completion.keeper.held() == 0
    )  # else it would be renewed for ever and never polled


def _refused(harness, monkeypatch):
    job = harness.submit({"seconds": 30})
    worker = harness.worker()
    # the client cancels after the claim has read the row and before the start is committed
    real = Completion.write_start

    def late(self, start, future):
        Job.objects.filter(id=job.id).update(state=JobState.CANCELLED, finished_at=harness.ports.clock.now())
        return real(self, start, future)

    monkeypatch.setattr(Completion, "write_start", late)
    worker.work("m")
    monkeypatch.undo()
    wait_for(lambda: harness.leases.slots("gpu-1")[0].state == "free")
    return worker


def test_a_refused_start_is_forgotten_by_the_keeper(harness, monkeypatch):
    worker = _refused(harness, monkeypatch)
    wait_for(lambda: worker.completion.keeper.held() == 0)


def test_a_refused_start_does_not_block_its_slot_after_the_next_flush(harness, monkeypatch, valkey):
    import redis

    from gpus.leasing.keys import prefix

    worker = _refused(harness, monkeypatch)
    harness.submit({"seconds": 0.01})  # a waiting job, so that the rebuild waits for the keepers
    client = redis.Redis.from_url(valkey.url)
    client.delete(*client.keys(prefix(harness.leases.fleet) + "*"))
    rebuild = Rebuild("main", harness.leases, harness.ports, "r")
    while (progress := rebuild.step()) is not Progress.OPEN:
        assert progress is not Progress.BUSY_ELSEWHERE
        if progress is Progress.LISTENING:
            worker.completion.keeper.step(harness.ports.clock.monotonic() + 100)
            rebuild.listening_since -= 100
    worker.watch()
    wait_for(lambda: harness.leases.slots("gpu-1")[0].state == "free")


@pytest.mark.parametrize("at_most_once", [False, True])
def test_an_end_whose_result_can_not_be_stored_ends_the_job_as_failed(harness, monkeypatch, at_most_once):
    ModelConfig.objects.filter(name="m").update(at_most_once=at_most_once)
    job = harness.submit({"seconds": 0.01})
    worker = harness.worker()
    real = transitions.end_attempt

    def refuse(end):
        if end.ending.error is None:
            raise DataError("unsupported Unicode escape sequence")
        return real(end)

    monkeypatch.setattr(transitions, "end_attempt", refuse)
    worker.work("m")
    wait_for(lambda: state(job) != JobState.RUNNING)
    wait_for(lambda: worker.completion.keeper.held() == 0)
    if at_most_once:  # it ran
        job.refresh_from_db()
        assert (job.state, job.error_code) == (JobState.FAILED, "lost_at_most_once")


@pytest.mark.parametrize("harness", [{"mode": "async"}], indirect=True)
def test_a_pushed_failure_that_can_not_be_stored(harness):
    if connection.vendor == "postgresql":
        pytest.skip("jsonb refuses such a text at the submit")
    import json

    from jobs.execution.pushed_results import accept_push

    job = harness.submit({"seconds": 30})
    worker = harness.worker()
    harness.work(worker)
    wait_for(lambda: Attempt.objects.filter(job=job, state=AttemptState.WAITING).exists())
    attempt = Attempt.objects.get(job=job)
    body = json.loads('{"status": "failed", "error": "\\ud800"}')
    accept_push(job.id, attempt.id, body, 40, ports=harness.ports)
    worker.nudge([job.id])
    wait_for(lambda: state(job) != JobState.RUNNING)


def test_a_claim_whose_reply_was_lost_costs_no_try(harness):
    job = harness.submit({"seconds": 0.01})
    lossy = LossyLeases(harness.leases, "claim")
    worker = harness.worker(leases=lambda _fleet: lossy)
    worker.work("m")
    assert lossy.lost == 1
    assert harness.leases.slots("gpu-1")[0].state == "leased"

    worker.watch()
    worker.work("m")  # repeats the claim under the attempt id whose answer was lost
    wait_for(lambda: state(job) == JobState.COMPLETED)
    job.refresh_from_db()
    assert (job.tries, job.deaths) == (0, 0)
    assert not QuarantinedSlot.objects.filter(freed_at=None).exists()


@pytest.mark.parametrize("harness", [{"slots": 2}], indirect=True)
def test_every_claim_whose_reply_was_lost_is_given_back(harness):
    """Several threads claim while Redis is stopped; it executes all their requests when it continues."""
    jobs = [harness.submit({"seconds": 0.01}) for _ in range(2)]

    class AllLost(LossyLeases):
        def claim(self, *a, **k):
            self._leases.claim(*a, **k)
            raise LeasingUnavailable("Redis does not answer: timeout")

    lost = AllLost(harness.leases, "claim")
    worker = harness.worker(leases=lambda _fleet: lost)
    for _ in jobs:
        worker.work("m")
    assert [slot.state for slot in harness.leases.slots("gpu-1")] == ["leased", "leased"]
    worker.watch()
    assert {slot.state for slot in harness.leases.slots("gpu-1")} == {"free"}


def test_a_claim_that_is_carried_out_late_is_given_back_too(harness):
    job = harness.submit({"seconds": 0.01})
    held_back = []

    class HeldBack(LossyLeases):
        def claim(self, *a, **k):
            held_back.append((a, k))
            raise LeasingUnavailable("Redis does not answer: timeout")

    worker = harness.worker(leases=lambda _fleet: HeldBack(harness.leases, "claim"))
    worker.work("m")
    worker.watch()  # no lease is granted yet
    (a, k) = held_back[0]
    assert harness.leases.claim(*a, **k).job_id == job.id
    worker.watch()
    assert harness.leases.slots("gpu-1")[0].state == "free"
    assert harness.leases.has_tickets("m", [job.ticket]) == [True]


def test_an_unreadable_secret_is_the_server_s_fault_and_not_the_jobs(harness):
    from gpus.models import Server

    Server.objects.filter(name="gpu-1").update(headers_encrypted="garbage")
    harness.submit({"seconds": 0.01})
    worker = harness.worker()
    escaped = hidden(lambda: worker.work("m"))
    assert escaped is None
    assert harness.leases.slots("gpu-1")[0].state == "free"


def test_a_real_gpu_job_is_one_task(harness, settings):
    settings.DISPATCHER = dc_replace(settings.DISPATCHER, hand_back_seconds=0.2)
    [harness.submit({"seconds": 0.5}) for _ in range(3)]
    worker = harness.worker()
    assert len(worker.work("m")) == 1


def test_a_run_that_begins_after_the_interrupt_is_interrupted(harness):
    harness.submit({"seconds": 600})
    worker = harness.worker()
    claimed = worker.claims.claim_next("main", "m", None)
    worker.interrupt()
    began = time.monotonic()
    run_claimed(worker, OVER, claimed)
    assert time.monotonic() - began < 4
