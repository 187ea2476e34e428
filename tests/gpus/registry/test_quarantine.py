"""An operator frees a quarantined slot: it is free at once, with an audit entry."""

from __future__ import annotations

import pytest

from gpus.models import AuditEntry, QuarantinedSlot, Server
from gpus.protocol import Lease, ReleaseMode
from gpus.registry.model_fields import RegistryRefused
from gpus.registry.quarantine import free_slot, open_quarantines
from jobs.index_rebuild.rebuild import mirror_fleet
from jobs.models import Attempt
from tests.support.quarantines import quarantine_slot
from tests.support.queue_world import QueueWorld, world

__all__ = ["world"]


@pytest.fixture
def lease(world: QueueWorld) -> Lease:
    world.server()
    world.job()
    return quarantine_slot(world, world.claim())


def free(world: QueueWorld, slot: str = "gpu-1/0", **how: str) -> list[str]:
    done = free_slot(slot, by="user:ada", leases=world.ports.leases, at=world.clock.now(), **how)
    world.ports.send_wakes(done.wakes)
    return list(done.attempts)


@pytest.mark.database
def test_a_freed_slot_is_free_at_once_and_audited(world: QueueWorld, lease: Lease) -> None:
    assert [row.attempt_id for row in open_quarantines()] == [lease.attempt_id]
    world.job()
    world.wakes.clear()
    assert free(world, reason="nvidia-smi is empty") == [lease.attempt_id]
    assert world.slot() == "free"
    assert sum(wake.count for wake in world.wakes) == 1
    row = QuarantinedSlot.objects.get()
    assert (row.freed_at, row.evidence) == (world.clock.now(), "freed by user:ada")
    assert Attempt.objects.get(id=lease.attempt_id).evidence == "freed by user:ada"
    entry = AuditEntry.objects.get(action="free_slot")
    assert (entry.actor, entry.target) == ("user:ada", "slot:gpu-1/0")
    assert entry.detail["reason"] == "nvidia-smi is empty"
    assert entry.detail["quarantines"][0]["attempt"] == lease.attempt_id
    assert open_quarantines() == []


def test_a_slot_that_runs_something_is_not_touched(world: QueueWorld) -> None:
    world.server()
    world.job()
    lease = world.claim()
    with pytest.raises(RegistryRefused, match="not in quarantine") as refused:
        free(world)
    assert (refused.value.code, refused.value.status) == ("slot_not_quarantined", 409)
    assert world.leases.is_held(lease.ref)
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize(
    "slot", ["gpu-9/0", "gpu-1/1", "gpu-1/9", "gpu-1", "gpu-1/x", "gpu-1/²", f"gpu-1/{'1' * 30}", "", "/0"]
)
def test_an_unknown_slot_is_refused(world: QueueWorld, slot: str) -> None:
    world.server()
    with pytest.raises(RegistryRefused) as refused:
        free(world, slot)
    assert (refused.value.code, refused.value.status) == ("unknown_slot", 404)


@pytest.mark.parametrize("written", [True, False])
def test_a_quarantined_slot_above_the_count_can_be_freed(world: QueueWorld, written: bool) -> None:
    world.server(slots=2)
    for _ in range(2):
        world.job()
    leases = [world.claim() for _ in range(2)]
    above = next(lease for lease in leases if lease.slot == "gpu-1/1")
    if written:
        quarantine_slot(world, above)
    else:
        world.release(above, ReleaseMode.SUSPECT)
    Server.objects.update(slots=1)
    mirror_fleet(world.fleet, world.leases, world.ports)
    assert free(world, "gpu-1/1") == ([above.attempt_id] if written else [])
    with pytest.raises(RegistryRefused) as refused:
        free(world, "gpu-1/1")
    assert refused.value.code == "unknown_slot"


def test_without_redis_a_slot_above_the_count_is_unknown(world: QueueWorld) -> None:
    world.server()
    world.redis_is_gone = True
    with pytest.raises(RegistryRefused) as refused:
        free(world, "gpu-1/1")
    assert refused.value.status == 404


def test_a_slot_that_only_redis_holds_back_is_freed_too(world: QueueWorld) -> None:
    world.server()
    world.job()
    world.release(world.claim(), ReleaseMode.SUSPECT)
    assert (world.slot(), open_quarantines()) == ("quarantined", [])
    assert free(world) == []
    assert world.slot() == "free"


@pytest.mark.database
def test_without_redis_the_row_is_closed_and_a_sweep_updates_redis(world: QueueWorld, lease: Lease) -> None:
    world.redis_is_gone = True
    done = free_slot("gpu-1/0", by="cli:ada", leases=world.ports.leases, at=world.clock.now())
    assert not done.mirrored
    assert open_quarantines() == []
