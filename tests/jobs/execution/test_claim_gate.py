"""The reasons for which a worker may not claim: each alone keeps the tickets in the queue."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from django.db import OperationalError

from gpus.errors import LeasingUnavailable
from gpus.leasing.clock import AgreedClocks
from gpus.registry.queries import RegistryCache
from jobs.domain.states import JobState
from jobs.execution import claiming, group_commit
from jobs.execution.gpu_worker import GpuWorker
from jobs.execution.group_commit import GroupCommitWriter
from jobs.execution.worker_state import MAX_BACKLOG
from jobs.models import Attempt, WorkerSign
from tests.jobs.execution.by_hand import by_hand
from tests.support.fakes import make_ports
from tests.support.waiting import wait_for
from tests.support.worker_harness import state

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


def failing(hands):
    hands.writer.failing = True


def behind(hands):
    hands.writer.backlog = MAX_BACKLOG + 1


def paused(hands):
    hands.worker.gate.pause(60.0)


def draining(hands):
    hands.worker.drain()


GATES = pytest.mark.parametrize("shut", [failing, behind, paused, draining])


@GATES
def test_a_worker_that_may_not_claim_leaves_the_ticket_in_the_queue(harness, shut):
    hands = by_hand(harness)
    hands.submit()
    shut(hands)
    assert hands.worker.work("m") == []
    assert hands.leases.named("claim") == []
    assert hands.waiting() == 1


@GATES
def test_a_worker_that_may_not_claim_any_more_leaves_its_slot_free_after_the_run(harness, shut):
    """The slot's next ticket is taken by the release itself, which must ask as well."""
    hands = by_hand(harness)
    first, second = hands.submit(), hands.submit()
    hands.gpu.on_start = lambda run: shut(hands)
    hands.gpu.seconds = 0.1
    hands.worker.work("m")
    assert hands.gpu.sent == [first.id]
    assert [named["next_attempt_id"] for _, named in hands.leases.named("release")] == [None]
    assert (hands.waiting(), state(second), hands.slot()) == (1, JobState.QUEUED, "free")


def test_a_worker_that_may_claim_gets_the_next_ticket_with_the_release(harness):
    hands = by_hand(harness)
    jobs = [hands.submit(), hands.submit()]
    hands.gpu.seconds = 0.1
    hands.worker.work("m")
    assert hands.gpu.sent == [job.id for job in jobs]
    assert hands.leases.named("release")[0][1]["next_attempt_id"] is not None


def test_each_claim_carries_the_models_that_are_loaded_then(harness):
    hands = by_hand(harness)
    hands.process.warm = lambda: [f"after-{len(hands.gpu.sent)}"]
    hands.submit()
    hands.submit()
    hands.gpu.seconds = 0.1
    hands.worker.work("m")
    assert hands.leases.named("claim")[0][1]["warm"] == ["after-0"]
    assert [named["warm"] for _, named in hands.leases.named("release")] == [["after-1"], ["after-2"]]


def test_a_paused_worker_claims_again(harness):
    hands = by_hand(harness)
    hands.submit()
    hands.writer.failing, hands.writer.backlog = False, MAX_BACKLOG
    hands.worker.gate.pause()
    hands.clock.move(0.9)
    assert not hands.worker.gate.may_claim()
    hands.clock.move(0.1)
    assert hands.worker.gate.may_claim()
    assert len(hands.worker.work("m")) == 1


def test_a_worker_compares_clocks_before_it_claims(harness):
    """Its runs' times, and what follows from them, are read by others."""
    asked: list[int] = []

    class Clocks(AgreedClocks):
        def confirm_time(self) -> bool:
            asked.append(len(hands.leases.named("claim")))
            return True

    hands = by_hand(harness, clock_watch=Clocks())
    hands.submit()
    hands.worker.work("m")
    assert asked[0] == 0


def test_a_draining_worker_sends_no_wake(harness):
    """Its slot sends a wake of its own once it is settled, so a hand-back would be one too many."""
    hands = by_hand(harness)
    for _ in range(2):
        hands.submit()
    hands.gpu.on_start = lambda run: hands.worker.drain()
    hands.sent_wakes.clear()
    hands.worker.work("m")
    assert hands.waiting() == 1
    assert len(hands.sent_wakes) == len(hands.leases.named("confirm_ends")) == 1


def test_a_database_outage_does_not_empty_the_queue(harness, monkeypatch):
    """Each claim would remove a ticket in vain: one is enough, then a pause."""

    class Gone:
        def filter(self, *given, **named):
            raise OperationalError("server closed the connection unexpectedly")

    hands = by_hand(harness)
    for _ in range(3):
        hands.submit()
    monkeypatch.setattr(claiming, "Job", type("Job", (), {"objects": Gone()}))
    hands.worker.work("m")
    assert len(hands.leases.named("claim")) == 1
    assert hands.waiting() == 2


def test_a_lease_that_could_not_be_returned_in_an_outage_is_returned_after_it(harness, monkeypatch):
    """Database and Redis are away together, as behind a broken network: no run began, and none is lost."""

    class Gone:
        def first(self, **named):
            raise OperationalError("server closed the connection unexpectedly")

    def away(real, *given, **named):
        raise LeasingUnavailable("Redis does not answer")

    hands = by_hand(harness)
    job = hands.submit()
    with monkeypatch.context() as outage:
        outage.setattr(claiming, "_to_run", Gone())
        hands.leases.instead["release"] = away
        hands.worker.work("m")
    assert (hands.slot(), hands.waiting()) == ("leased", 0)
    hands.worker.heartbeats.write_if_due()
    [cut_off] = WorkerSign.objects.values_list("cut_off", flat=True)
    assert cut_off == [hands.leases.real.slots("gpu-1")[0].attempt_id], "the sweep keeps the lease"

    del hands.leases.instead["release"]
    hands.worker.watch()
    assert (hands.slot(), hands.waiting()) == ("free", 1)
    hands.clock.move(60.0)
    hands.worker.work("m")
    assert (state(job), Attempt.objects.count()) == (JobState.COMPLETED, 1)


def test_a_server_that_broke_a_claim_rests_after_an_outage_of_redis_too(harness, monkeypatch):
    def away(real, *given, **named):
        raise LeasingUnavailable("Redis does not answer")

    def broken(*_):
        opened.append(1)
        raise ZeroDivisionError

    opened: list[int] = []
    hands = by_hand(harness)
    hands.submit()
    monkeypatch.setattr(RegistryCache, "endpoint_for", broken)
    hands.leases.instead["release"] = away
    hands.worker.work("m")
    del hands.leases.instead["release"]
    hands.worker.watch()
    assert hands.waiting() == 1
    hands.worker.work("m")
    assert len(opened) == 1, "the server is claimable at once"


def test_a_claim_that_raises_does_not_empty_the_queue(harness, monkeypatch):
    """Another server of the pool would break the next one: a secret that no key opens is seldom alone."""
    hands = by_hand(harness)
    for _ in range(3):
        hands.submit()
    monkeypatch.setattr(RegistryCache, "endpoint_for", lambda *_: 1 / 0)
    hands.leases.instead["release"] = without_rest
    hands.worker.work("m")
    assert len(hands.leases.named("claim")) == 1
    assert hands.waiting() == 2


def without_rest(real, *given, rest_seconds=None, **named):
    """As if the next claim found another server."""
    return real(*given, **named)


def test_a_writer_is_failing_until_its_database_is_back(monkeypatch):
    back, tried = threading.Event(), threading.Event()

    def write_batch(batch):
        if not back.is_set():
            tried.set()
            raise OperationalError("gone")
        return [write.apply() for write in batch]

    monkeypatch.setattr(group_commit, "write_batch", write_batch)
    worker = GpuWorker(make_ports(), writer=partial(GroupCommitWriter, retry_seconds=(0.001,)))
    writer = worker.completion.writer
    assert worker.gate.may_claim()
    writer.start()
    future = writer.submit(lambda: "late")
    assert tried.wait(10)
    wait_for(lambda: not worker.gate.may_claim())
    back.set()
    assert future.result(10) == "late"
    assert worker.gate.may_claim()
    assert writer.stop()


def test_the_backlog_counts_queued_writes():
    worker = GpuWorker(make_ports())
    writer = worker.completion.writer
    assert isinstance(writer, GroupCommitWriter)
    for _ in range(MAX_BACKLOG):
        writer.submit(lambda: None)
    assert worker.gate.may_claim()
    writer.submit(lambda: None)
    assert not worker.gate.may_claim()
