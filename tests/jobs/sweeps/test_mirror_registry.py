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
from tests.support.queue_world import QueueWorld, open_index


def sweep(world: QueueWorld) -> int:
    return run_sweep("mirror_registry", world.ports).repaired


@pytest.mark.database
def test_without_changes_the_registry_is_not_written(world: QueueWorld) -> None:
    world.server()
    assert sweep(world) == 1
    assert sweep(world) == 0


def test_the_registry_is_rewritten_periodically_after_a_database_lost_commits(world: QueueWorld) -> None:
    """Redis has a pause whose row was lost."""
    world.server()
    sweep(world)
    world.job()
    world.leases.set_paused_tenants("m", [str(Tenant.objects.get().id)])
    assert sweep(world) == 0
    assert world.leases.claim("m", worker="w1", attempt_id="a1") is None
    world.clock.advance(mirror_registry.REFRESH_SECONDS)
    assert sweep(world) == 0, "no note"
    assert world.leases.claim("m", worker="w1", attempt_id="a2") is not None


def test_slots_added_outside_the_api_are_written_with_wakes(world: QueueWorld) -> None:
    world.server()
    sweep(world)
    world.job()
    world.job()
    world.claim()
    world.wakes.clear()
    Server.objects.update(slots=2)
    assert sweep(world) == 1
    assert world.slots() == ["leased", "free"]
    assert sum(wake.count for wake in world.wakes) == 1


def test_a_server_without_a_row_is_removed_from_the_index(world: QueueWorld) -> None:
    world.server()
    sweep(world)
    Server.objects.all().delete()
    assert sweep(world) == 1
    assert world.leases.slots("gpu-1") == []


def test_a_server_removed_before_this_process_started_is_removed_from_the_index(world: QueueWorld) -> None:
    """Removed without Redis; the sweep process restarted before Redis was back."""
    world.server()
    world.server("gpu-2")
    sweep(world)
    Server.objects.filter(name="gpu-1").delete()
    MirrorRegistrySweep()(world.ports)
    assert world.leases.servers() == ["gpu-2"]


def test_a_server_registered_during_its_removal_is_written_again(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.server()
    sweep(world)
    Server.objects.all().delete()
    forget = world.leases.forget_server

    def register_first(name: str) -> None:
        world.server(name)
        forget(name)

    monkeypatch.setattr(world.leases, "forget_server", register_first)
    sweep(world)
    assert world.slot() == "free"


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_server_registered_again_without_redis_has_no_strikes(
    world: QueueWorld, is_restarted: bool
) -> None:
    """The server had failures before, and an operator freed its slot while Redis was unavailable.

    is_restarted: the sweeper was restarted meanwhile, and remembers nothing.
    """
    world.server()
    sweep(world)
    world.job()
    lease = world.claim()
    world.leases.release(lease.ref, ReleaseMode.ENDED, worker="w1", gpu_seconds=1.0, verdict=Verdict.SERVER)
    world.leases.confirm_ends([lease.ref])
    world.leases.quarantine("gpu-1/0", lease.attempt_id)
    assert world.leases.circuits("m", ["gpu-1"]).servers["gpu-1"].strikes == 1
    world.redis_is_gone = True
    assert remove_server("gpu-1", by="user:ada", leases=world.ports.leases)
    world.server()
    world.redis_is_gone = False
    run = MirrorRegistrySweep() if is_restarted else partial(run_sweep, "mirror_registry")
    assert run(world.ports).repaired == 1
    assert world.leases.circuits("m", ["gpu-1"]).servers == {}
    assert world.slot() == "free"
    assert run(world.ports).repaired == 0


def test_runs_on_a_removed_server_continue(world: QueueWorld) -> None:
    world.server()
    world.job()
    lease = world.claim()
    Server.objects.all().delete()
    MirrorRegistrySweep()(world.ports)
    MirrorRegistrySweep()(world.ports)
    assert world.leases.is_held(lease.ref)
    assert world.leases.servers() == ["gpu-1"]


def test_a_slot_proven_free_before_its_quarantine_is_written_to_redis_stays_free(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.server()
    transitions.quarantine_slot(
        "gpu-1/0",
        attempt_id="a",
        job_id="j",
        model="m",
        reason="lost",
        at=world.clock.now(),
        run_limit_seconds=60,
    )
    quarantine = world.leases.quarantine

    def prove_first(slot: str, attempt_id: str, *, pool: str = "") -> bool:
        if row := QuarantinedSlot.objects.filter(freed_at=None).first():
            close_quarantine(row, at=world.clock.now(), evidence="the server does not run it")
            world.leases.free_slot(slot)
        return quarantine(slot, attempt_id, pool=pool)

    monkeypatch.setattr(world.leases, "quarantine", prove_first)
    sweep(world)
    assert world.slot() == "free"


def test_rules_swapped_between_tenants_are_written(world: QueueWorld) -> None:
    """The number and the sums of the rules are unchanged, also weighted by tenant id."""
    world.server()
    world.tenant.delete()
    for pk, weight in ((1, 2.0), (2, 1.5), (3, 2.0)):
        Tenant.objects.create(pk=pk, name=f"tenant-{pk}", weight=weight)
    sweep(world)
    for pk, weight in ((1, 1.75), (2, 2.0), (3, 1.75)):
        Tenant.objects.filter(pk=pk).update(weight=weight)
    assert sweep(world) == 1
    assert mirrored_rules(world, 2) == (2.0, 1, None)


def test_rules_reset_to_the_defaults_are_written(world: QueueWorld) -> None:
    world.server()
    Tenant.objects.update(max_running=2)
    sweep(world)
    Tenant.objects.update(max_running=None)
    assert sweep(world) == 1
    assert mirrored_rules(world) == (1.0, 1, None)


def test_a_removed_placement_and_a_changed_algorithm_are_written(world: QueueWorld) -> None:
    world.server()
    sweep(world)
    Placement.objects.all().delete()
    assert sweep(world) == 1
    Pool.objects.update(algorithm=QueueAlgorithm.FIFO.value)
    assert sweep(world) == 1


def test_an_unhealthy_pinned_server_is_written_as_no_capacity(world: QueueWorld) -> None:
    world.server()
    Server.objects.update(host="box.1", healthy=True)
    sweep(world)
    Server.objects.update(healthy=False)
    assert sweep(world) == 1
    assert world.slots() == ["off"]
    Server.objects.update(healthy=True)
    assert sweep(world) == 1
    assert world.slots() == ["free"]


def test_a_tenants_new_weight_is_written(world: QueueWorld) -> None:
    world.server()
    sweep(world)
    world.tenant.weight = 3.0
    world.tenant.save()
    assert sweep(world) == 1
    assert mirrored_rules(world) == (3.0, 1, None)


@pytest.mark.parametrize(
    ("rule", "value", "expected"),
    [
        ("highest_band", "urgent", (1.0, 0, None)),
        ("highest_band", "bulk", (1.0, 2, None)),
        ("max_running", 2, (1.0, 1, 2)),
    ],
)
def test_a_tenants_new_band_or_limit_is_written(
    world: QueueWorld, rule: str, value: object, expected: object
) -> None:
    world.server()
    sweep(world)
    type(world.tenant).objects.filter(pk=world.tenant.pk).update(**{rule: value})
    assert sweep(world) == 1
    assert mirrored_rules(world) == expected
    assert sweep(world) == 0


def test_a_new_index_gets_the_whole_registry(world: QueueWorld) -> None:
    world.server()
    sweep(world)
    world.flush()
    assert sweep(world) == 0, "the index is being rebuilt"
    open_index(world.leases, "careless")
    assert sweep(world) == 1
    assert world.slot() == "free"


@pytest.mark.parametrize(
    ("kind", "name"), [(Pause.Kind.SYSTEM, ""), (Pause.Kind.MODEL, "m"), (Pause.Kind.TENANT, None)]
)
def test_a_pause_outside_the_api_and_its_end_are_written(
    world: QueueWorld, kind: Pause.Kind, name: str
) -> None:
    world.server()
    world.job()
    sweep(world)
    name = str(world.tenant.pk) if name is None else name
    pause = Pause.objects.create(kind=kind, name=name, since=world.clock.now(), actor="cli:shell")
    assert sweep(world) == 1
    assert world.leases.claim("m", worker="w1", attempt_id="a1") is None
    pause.delete()
    assert sweep(world) == 1
    assert world.leases.claim("m", worker="w1", attempt_id="a2") is not None


def test_a_resume_missed_by_redis_is_written_although_the_rows_are_unchanged(world: QueueWorld) -> None:
    """Paused and resumed between two runs of the sweep: only the pause has reached Redis."""
    world.server()
    world.job()
    sweep(world)
    controls.pause(Pause.Kind.SYSTEM, by="user:ada", leases=world.ports.leases)
    world.redis_is_gone = True
    assert not controls.resume(Pause.Kind.SYSTEM, by="user:ada", leases=world.ports.leases).mirrored
    world.redis_is_gone = False
    assert sweep(world) == 1
    assert world.leases.claim("m", worker="w1", attempt_id="a1") is not None


def test_without_redis_the_write_is_repeated(world: QueueWorld) -> None:
    world.server()
    sweep(world)
    Server.objects.update(slots=5)
    world.redis_is_gone = True
    assert sweep(world) == 0
    world.redis_is_gone = False
    assert sweep(world) == 1
    assert len(world.leases.slots("gpu-1")) == 5
