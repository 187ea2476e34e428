"""A run that ended without a proof while its server was unregistered: the slot is quarantined when the server
is registered again."""

from __future__ import annotations

import pytest

from gpus.models import Pool, QuarantinedSlot, Server
from gpus.protocol import Lease, ReleaseMode
from gpus.registry.registry import remove_server
from jobs.domain.states import LIVE_ATTEMPT_STATES, AttemptState
from jobs.execution import orphaned_runs
from jobs.models import Attempt
from jobs.sweeps import expired_leases, quarantine
from tests.support.by_process import run_sweep
from tests.support.queue_harness import LEASE_SECONDS, QueueHarness
from tests.support.servers.health_server import HealthServer


@pytest.fixture
def lease(queue: QueueHarness) -> Lease:
    queue.server()
    queue.job()
    return queue.claim()


def remove(queue: QueueHarness) -> None:
    assert remove_server("gpu-1", by="user:ada", leases=lambda fleet: queue.leases)


def lose(queue: QueueHarness) -> None:
    queue.clock.advance(LEASE_SECONDS + 1)
    assert expired_leases.sweep(queue.ports).repaired == 1
    assert Attempt.objects.get().state == AttemptState.LOST


def suspects() -> list[str]:
    return list(QuarantinedSlot.objects.filter(freed_at=None).values_list("attempt_id", flat=True))


def test_a_quarantine_row_is_written_when_the_server_is_registered_again(
    queue: QueueHarness, lease: Lease
) -> None:
    remove(queue)
    lose(queue)
    assert not suspects(), "no server exists for the row"
    queue.server()
    row = QuarantinedSlot.objects.get()
    assert (row.server_id, row.slot, row.attempt_id, row.reason) == (
        "gpu-1", 0, lease.attempt_id, "server_lost",
    )  # fmt: skip
    assert row.since == Attempt.objects.get().finished_at, "the run limit counts from then"
    assert queue.slot() == "quarantined"


def test_an_unproven_slot_is_proven_free_like_any_other(
    queue: QueueHarness, gpu: HealthServer, lease: Lease
) -> None:
    remove(queue)
    lose(queue)
    queue.server(url=f"{gpu.url}/run")
    gpu.runs()
    queue.clock.advance(2)  # a request may still have been in progress
    assert quarantine.sweep(queue.ports).repaired == 1
    assert (suspects(), queue.slot()) == ([], "free")


def test_a_rebuilt_index_does_not_lease_an_unproven_slot(queue: QueueHarness, lease: Lease) -> None:
    remove(queue)
    lose(queue)
    queue.flush()
    for _ in range(12):
        run_sweep("generation", queue.ports)
        queue.clock.advance(1)
    assert queue.leases.slots("gpu-1") == []
    queue.server()
    queue.job()
    assert queue.leases.claim("m", worker="w2", attempt_id="next") is None
    assert (suspects(), queue.slot()) == ([lease.attempt_id], "quarantined")
    states = {key: queue.client.hgetall(key) for key in queue.client.keys(f"{queue.keys()}states:*")}
    assert states == {f"{queue.keys()}states:m": {"quarantined": "1"}}


def test_an_unreachable_run_keeps_its_slot(queue: QueueHarness, lease: Lease) -> None:
    queue.accept(lease)
    queue.release(lease, ReleaseMode.ADOPT)
    remove(queue)
    assert orphaned_runs.end_unreachable(
        Attempt.objects.get(), "the server is gone", queue.leases, queue.ports
    )
    assert queue.leases.slots("gpu-1") == []
    queue.server()
    assert (suspects(), queue.slot()) == ([lease.attempt_id], "quarantined")


def test_a_live_run_gets_no_quarantine_row(queue: QueueHarness, lease: Lease) -> None:
    remove(queue)
    queue.server()
    assert (suspects(), queue.slot()) == ([], "leased")
    lose(queue)
    assert (suspects(), queue.slot()) == ([lease.attempt_id], "quarantined")


def test_a_live_run_keeps_its_slot_from_another_fleet(queue: QueueHarness, lease: Lease) -> None:
    """An index contains only its own fleet's leases."""
    remove(queue)
    elsewhere = Pool.objects.create(name="elsewhere", fleet=f"{queue.fleet}-b")
    Server.objects.create(name="gpu-1", pool=elsewhere, slots=1)
    assert suspects() == [lease.attempt_id]
    assert Attempt.objects.get().state in LIVE_ATTEMPT_STATES


def test_a_run_proven_over_before_the_removal_gets_no_quarantine(queue: QueueHarness, lease: Lease) -> None:
    """The quarantine row was deleted with the server."""
    lose(queue)
    QuarantinedSlot.objects.update(freed_at=queue.clock.now())
    for _ in range(2):
        remove(queue)
        assert not QuarantinedSlot.objects.exists()
        assert Server.objects.count() == 0
        queue.server()
        assert (suspects(), queue.slot()) == ([], "free")
