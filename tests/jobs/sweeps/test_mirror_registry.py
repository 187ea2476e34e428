"""The sweep `mirror_registry`: pools, servers and rules of tenants in the database are written to Redis."""

from __future__ import annotations

from functools import partial

import pytest

from gpus.errors import Verdict
from gpus.models import Pause, Placement, Pool, QuarantinedSlot, Server
from gpus.protocol import QueueAlgorithm, ReleaseMode
from gpus.registry import controls
from gpus.registry.quarantine import close_quarantine
from gpus.registry.registry import remove_server
from jobs import transitions
from jobs.models import Tenant
from jobs.sweeps import mirror_registry
from jobs.sweeps.mirror_registry import MirrorRegistrySweep
from tests.support.by_process import run_sweep
from tests.support.pool_rules import mirrored_rules
from tests.support.queue_harness import QueueHarness, open_index


def sweep(queue: QueueHarness) -> int:
    return run_sweep("mirror_registry", queue.ports).repaired


@pytest.mark.database
def test_without_changes_the_registry_is_not_written(queue: QueueHarness) -> None:
    queue.server()
    assert sweep(queue) == 1
    assert sweep(queue) == 0


def test_the_registry_is_rewritten_periodically_after_a_database_lost_commits(queue: QueueHarness) -> None:
    """Redis has a pause whose row was lost."""
    queue.server()
    sweep(queue)
    queue.job()
    queue.leases.set_paused_tenants("m", [str(Tenant.objects.get().id)])
    assert sweep(queue) == 0
    assert queue.leases.claim("m", worker="w1", attempt_id="a1") is None
    queue.clock.advance(mirror_registry.REFRESH_SECONDS)
    assert sweep(queue) == 0, "no note"
    assert queue.leases.claim("m", worker="w1", attempt_id="a2") is not None


def test_slots_added_outside_the_api_are_written_with_wakes(queue: QueueHarness) -> None:
    queue.server()
    sweep(queue)
    queue.job()
    queue.job()
    queue.claim()
    queue.wakes.clear()
    Server.objects.update(slots=2)
    assert sweep(queue) == 1
    assert queue.slots() == ["leased", "free"]
    assert sum(wake.count for wake in queue.wakes) == 1


def test_a_server_without_a_row_is_removed_from_the_index(queue: QueueHarness) -> None:
    queue.server()
    sweep(queue)
    Server.objects.all().delete()
    assert sweep(queue) == 1
    assert queue.leases.slots("gpu-1") == []


def test_a_server_removed_before_this_process_started_is_removed_from_the_index(queue: QueueHarness) -> None:
    """Removed without Redis; the sweep process restarted before Redis was back."""
    queue.server()
    queue.server("gpu-2")
    sweep(queue)
    Server.objects.filter(name="gpu-1").delete()
    MirrorRegistrySweep()(queue.ports)
    assert queue.leases.servers() == ["gpu-2"]


def test_a_server_registered_during_its_removal_is_written_again(
    queue: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.server()
    sweep(queue)
    Server.objects.all().delete()
    forget = queue.leases.forget_server

    def register_first(name: str) -> None:
        queue.server(name)
        forget(name)

    monkeypatch.setattr(queue.leases, "forget_server", register_first)
    sweep(queue)
    assert queue.slot() == "free"


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_server_registered_again_without_redis_has_no_strikes(
    queue: QueueHarness, is_restarted: bool
) -> None:
    """The server had failures before, and an operator freed its slot while Redis was unavailable.

    is_restarted: the sweeper was restarted meanwhile, and remembers nothing.
    """
    queue.server()
    sweep(queue)
    queue.job()
    lease = queue.claim()
    queue.leases.release(lease.ref, ReleaseMode.ENDED, worker="w1", gpu_seconds=1.0, verdict=Verdict.SERVER)
    queue.leases.confirm_ends([lease.ref])
    queue.leases.quarantine("gpu-1/0", lease.attempt_id)
    assert queue.leases.circuits("m", ["gpu-1"]).servers["gpu-1"].strikes == 1
    queue.redis_is_gone = True
    assert remove_server("gpu-1", by="user:ada", leases=queue.ports.leases)
    queue.server()
    queue.redis_is_gone = False
    run = MirrorRegistrySweep() if is_restarted else partial(run_sweep, "mirror_registry")
    assert run(queue.ports).repaired == 1
    assert queue.leases.circuits("m", ["gpu-1"]).servers == {}
    assert queue.slot() == "free"
    assert run(queue.ports).repaired == 0


def test_runs_on_a_removed_server_continue(queue: QueueHarness) -> None:
    queue.server()
    queue.job()
    lease = queue.claim()
    Server.objects.all().delete()
    MirrorRegistrySweep()(queue.ports)
    MirrorRegistrySweep()(queue.ports)
    assert queue.leases.is_held(lease.ref)
    assert queue.leases.servers() == ["gpu-1"]


def test_a_slot_proven_free_before_its_quarantine_is_written_to_redis_stays_free(
    queue: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.server()
    transitions.quarantine_slot(
        "gpu-1/0",
        attempt_id="a",
        job_id="j",
        model="m",
        reason="lost",
        at=queue.clock.now(),
        run_limit_seconds=60,
    )
    quarantine = queue.leases.quarantine

    def prove_first(slot: str, attempt_id: str, *, pool: str = "") -> bool:
        if row := QuarantinedSlot.objects.filter(freed_at=None).first():
            close_quarantine(row, at=queue.clock.now(), evidence="the server does not run it")
            queue.leases.free_slot(slot)
        return quarantine(slot, attempt_id, pool=pool)

    monkeypatch.setattr(queue.leases, "quarantine", prove_first)
    sweep(queue)
    assert queue.slot() == "free"


def test_rules_swapped_between_tenants_are_written(queue: QueueHarness) -> None:
    """The number and the sums of the rules are unchanged, also weighted by tenant id."""
    queue.server()
    queue.tenant.delete()
    for pk, weight in ((1, 2.0), (2, 1.5), (3, 2.0)):
        Tenant.objects.create(pk=pk, name=f"tenant-{pk}", weight=weight)
    sweep(queue)
    for pk, weight in ((1, 1.75), (2, 2.0), (3, 1.75)):
        Tenant.objects.filter(pk=pk).update(weight=weight)
    assert sweep(queue) == 1
    assert mirrored_rules(queue, 2) == (2.0, 1, None)


def test_rules_reset_to_the_defaults_are_written(queue: QueueHarness) -> None:
    queue.server()
    Tenant.objects.update(max_running=2)
    sweep(queue)
    Tenant.objects.update(max_running=None)
    assert sweep(queue) == 1
    assert mirrored_rules(queue) == (1.0, 1, None)


def test_a_removed_placement_and_a_changed_algorithm_are_written(queue: QueueHarness) -> None:
    queue.server()
    sweep(queue)
    Placement.objects.all().delete()
    assert sweep(queue) == 1
    Pool.objects.update(algorithm=QueueAlgorithm.FIFO.value)
    assert sweep(queue) == 1


def test_an_unhealthy_pinned_server_is_written_as_no_capacity(queue: QueueHarness) -> None:
    queue.server()
    Server.objects.update(host="box.1", healthy=True)
    sweep(queue)
    Server.objects.update(healthy=False)
    assert sweep(queue) == 1
    assert queue.slots() == ["off"]
    Server.objects.update(healthy=True)
    assert sweep(queue) == 1
    assert queue.slots() == ["free"]


def test_a_tenants_new_weight_is_written(queue: QueueHarness) -> None:
    queue.server()
    sweep(queue)
    queue.tenant.weight = 3.0
    queue.tenant.save()
    assert sweep(queue) == 1
    assert mirrored_rules(queue) == (3.0, 1, None)


@pytest.mark.parametrize(
    ("rule", "value", "expected"),
    [
        ("highest_band", "urgent", (1.0, 0, None)),
        ("highest_band", "bulk", (1.0, 2, None)),
        ("max_running", 2, (1.0, 1, 2)),
    ],
)
def test_a_tenants_new_band_or_limit_is_written(
    queue: QueueHarness, rule: str, value: object, expected: object
) -> None:
    queue.server()
    sweep(queue)
    type(queue.tenant).objects.filter(pk=queue.tenant.pk).update(**{rule: value})
    assert sweep(queue) == 1
    assert mirrored_rules(queue) == expected
    assert sweep(queue) == 0


def test_a_new_index_gets_the_whole_registry(queue: QueueHarness) -> None:
    queue.server()
    sweep(queue)
    queue.flush()
    assert sweep(queue) == 0, "the index is being rebuilt"
    open_index(queue.leases, "careless")
    assert sweep(queue) == 1
    assert queue.slot() == "free"


@pytest.mark.parametrize(
    ("kind", "name"), [(Pause.Kind.SYSTEM, ""), (Pause.Kind.MODEL, "m"), (Pause.Kind.TENANT, None)]
)
def test_a_pause_outside_the_api_and_its_end_are_written(
    queue: QueueHarness, kind: Pause.Kind, name: str
) -> None:
    queue.server()
    queue.job()
    sweep(queue)
    name = str(queue.tenant.pk) if name is None else name
    pause = Pause.objects.create(kind=kind, name=name, since=queue.clock.now(), actor="cli:shell")
    assert sweep(queue) == 1
    assert queue.leases.claim("m", worker="w1", attempt_id="a1") is None
    pause.delete()
    assert sweep(queue) == 1
    assert queue.leases.claim("m", worker="w1", attempt_id="a2") is not None


def test_a_resume_missed_by_redis_is_written_although_the_rows_are_unchanged(queue: QueueHarness) -> None:
    """Paused and resumed between two runs of the sweep: only the pause has reached Redis."""
    queue.server()
    queue.job()
    sweep(queue)
    controls.pause(Pause.Kind.SYSTEM, by="user:ada", leases=queue.ports.leases)
    queue.redis_is_gone = True
    assert not controls.resume(Pause.Kind.SYSTEM, by="user:ada", leases=queue.ports.leases).mirrored
    queue.redis_is_gone = False
    assert sweep(queue) == 1
    assert queue.leases.claim("m", worker="w1", attempt_id="a1") is not None


def test_without_redis_the_write_is_repeated(queue: QueueHarness) -> None:
    queue.server()
    sweep(queue)
    Server.objects.update(slots=5)
    queue.redis_is_gone = True
    assert sweep(queue) == 0
    queue.redis_is_gone = False
    assert sweep(queue) == 1
    assert len(queue.leases.slots("gpu-1")) == 5
