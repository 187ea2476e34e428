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
from tests.support.queue_harness import QueueHarness, queue

__all__ = ["queue"]


@pytest.fixture
def lease(queue: QueueHarness) -> Lease:
    queue.server()
    queue.job()
    return quarantine_slot(queue, queue.claim())


def free(queue: QueueHarness, slot: str = "gpu-1/0", **how: str) -> list[str]:
    done = free_slot(slot, by="user:ada", leases=queue.ports.leases, at=queue.clock.now(), **how)
    queue.ports.send_wakes(done.wakes)
    return list(done.attempts)


@pytest.mark.database
def test_a_freed_slot_is_free_at_once_and_audited(queue: QueueHarness, lease: Lease) -> None:
    assert [row.attempt_id for row in open_quarantines()] == [lease.attempt_id]
    queue.job()
    queue.wakes.clear()
    assert free(queue, reason="nvidia-smi is empty") == [lease.attempt_id]
    assert queue.slot() == "free"
    assert sum(wake.count for wake in queue.wakes) == 1
    row = QuarantinedSlot.objects.get()
    assert (row.freed_at, row.evidence) == (queue.clock.now(), "freed by user:ada")
    assert Attempt.objects.get(id=lease.attempt_id).evidence == "freed by user:ada"
    entry = AuditEntry.objects.get(action="free_slot")
    assert (entry.actor, entry.target) == ("user:ada", "slot:gpu-1/0")
    assert entry.detail["reason"] == "nvidia-smi is empty"
    assert entry.detail["quarantines"][0]["attempt"] == lease.attempt_id
    assert open_quarantines() == []


def test_a_slot_that_runs_something_is_not_touched(queue: QueueHarness) -> None:
    queue.server()
    queue.job()
    lease = queue.claim()
    with pytest.raises(RegistryRefused, match="not in quarantine") as refused:
        free(queue)
    assert (refused.value.code, refused.value.status) == ("slot_not_quarantined", 409)
    assert queue.leases.is_held(lease.ref)
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize(
    "slot", ["gpu-9/0", "gpu-1/1", "gpu-1/9", "gpu-1", "gpu-1/x", "gpu-1/²", f"gpu-1/{'1' * 30}", "", "/0"]
)
def test_an_unknown_slot_is_refused(queue: QueueHarness, slot: str) -> None:
    queue.server()
    with pytest.raises(RegistryRefused) as refused:
        free(queue, slot)
    assert (refused.value.code, refused.value.status) == ("unknown_slot", 404)


@pytest.mark.parametrize("written", [True, False])
def test_a_quarantined_slot_above_the_count_can_be_freed(queue: QueueHarness, written: bool) -> None:
    queue.server(slots=2)
    for _ in range(2):
        queue.job()
    leases = [queue.claim() for _ in range(2)]
    above = next(lease for lease in leases if lease.slot == "gpu-1/1")
    if written:
        quarantine_slot(queue, above)
    else:
        queue.release(above, ReleaseMode.SUSPECT)
    Server.objects.update(slots=1)
    mirror_fleet(queue.fleet, queue.leases, queue.ports)
    assert free(queue, "gpu-1/1") == ([above.attempt_id] if written else [])
    with pytest.raises(RegistryRefused) as refused:
        free(queue, "gpu-1/1")
    assert refused.value.code == "unknown_slot"


def test_without_redis_a_slot_above_the_count_is_unknown(queue: QueueHarness) -> None:
    queue.server()
    queue.redis_is_gone = True
    with pytest.raises(RegistryRefused) as refused:
        free(queue, "gpu-1/1")
    assert refused.value.status == 404


def test_a_slot_that_only_redis_holds_back_is_freed_too(queue: QueueHarness) -> None:
    queue.server()
    queue.job()
    queue.release(queue.claim(), ReleaseMode.SUSPECT)
    assert (queue.slot(), open_quarantines()) == ("quarantined", [])
    assert free(queue) == []
    assert queue.slot() == "free"


@pytest.mark.database
def test_without_redis_the_row_is_closed_and_a_sweep_updates_redis(queue: QueueHarness, lease: Lease) -> None:
    queue.redis_is_gone = True
    done = free_slot("gpu-1/0", by="cli:ada", leases=queue.ports.leases, at=queue.clock.now())
    assert not done.mirrored
    assert open_quarantines() == []
