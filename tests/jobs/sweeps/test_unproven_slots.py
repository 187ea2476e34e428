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
from tests.support.queue_world import LEASE_SECONDS, QueueWorld
from tests.support.servers.health_server import HealthServer


@pytest.fixture
def lease(world: QueueWorld) -> Lease:
    world.server()
    world.job()
    return world.claim()


def remove(world: QueueWorld) -> None:
    assert remove_server("gpu-1", by="user:ada", leases=lambda fleet: world.leases)


def lose(world: QueueWorld) -> None:
    world.clock.advance(LEASE_SECONDS + 1)
    assert expired_leases.sweep(world.ports).repaired == 1
    assert Attempt.objects.get().state == AttemptState.LOST


def suspects() -> list[str]:
    return list(QuarantinedSlot.objects.filter(freed_at=None).values_list("attempt_id", flat=True))


def test_a_quarantine_row_is_written_when_the_server_is_registered_again(
    world: QueueWorld, lease: Lease
) -> None:
    remove(world)
    lose(world)
    assert not suspects(), "no server exists for the row"
    world.server()
    row = QuarantinedSlot.objects.get()
    assert (row.server_id, row.slot, row.attempt_id, row.reason) == (
        "gpu-1", 0, lease.attempt_id, "server_lost",
    )  # fmt: skip
    assert row.since == Attempt.objects.get().finished_at, "the run limit counts from then"
    assert world.slot() == "quarantined"


def test_an_unproven_slot_is_proven_free_like_any_other(
    world: QueueWorld, gpu: HealthServer, lease: Lease
) -> None:
    remove(world)
    lose(world)
    world.server(url=f"{gpu.url}/run")
    gpu.runs()
    world.clock.advance(2)  # a request may still have been in progress
    assert quarantine.sweep(world.ports).repaired == 1
    assert (suspects(), world.slot()) == ([], "free")


def test_a_rebuilt_index_does_not_lease_an_unproven_slot(world: QueueWorld, lease: Lease) -> None:
    remove(world)
    lose(world)
    world.flush()
    for _ in range(12):
        run_sweep("generation", world.ports)
        world.clock.advance(1)
    assert world.leases.slots("gpu-1") == []
    world.server()
    world.job()
    assert world.leases.claim("m", worker="w2", attempt_id="next") is None
    assert (suspects(), world.slot()) == ([lease.attempt_id], "quarantined")
    states = {key: world.client.hgetall(key) for key in world.client.keys(f"{world.keys()}states:*")}
    assert states == {f"{world.keys()}states:m": {"quarantined": "1"}}


def test_an_unreachable_run_keeps_its_slot(world: QueueWorld, lease: Lease) -> None:
    world.accept(lease)
    world.release(lease, ReleaseMode.ADOPT)
    remove(world)
    assert orphaned_runs.end_unreachable(
        Attempt.objects.get(), "the server is gone", world.leases, world.ports
    )
    assert world.leases.slots("gpu-1") == []
    world.server()
    assert (suspects(), world.slot()) == ([lease.attempt_id], "quarantined")


def test_a_live_run_gets_no_quarantine_row(world: QueueWorld, lease: Lease) -> None:
    remove(world)
    world.server()
    assert (suspects(), world.slot()) == ([], "leased")
    lose(world)
    assert (suspects(), world.slot()) == ([lease.attempt_id], "quarantined")


def test_a_live_run_keeps_its_slot_from_another_fleet(world: QueueWorld, lease: Lease) -> None:
    """An index contains only its own fleet's leases."""
    remove(world)
    elsewhere = Pool.objects.create(name="elsewhere", fleet=f"{world.fleet}-b")
    Server.objects.create(name="gpu-1", pool=elsewhere, slots=1)
    assert suspects() == [lease.attempt_id]
    assert Attempt.objects.get().state in LIVE_ATTEMPT_STATES


def test_a_run_proven_over_before_the_removal_gets_no_quarantine(world: QueueWorld, lease: Lease) -> None:
    """The quarantine row was deleted with the server."""
    lose(world)
    QuarantinedSlot.objects.update(freed_at=world.clock.now())
    for _ in range(2):
        remove(world)
        assert not QuarantinedSlot.objects.exists()
        assert Server.objects.count() == 0
        world.server()
        assert (suspects(), world.slot()) == ([], "free")
