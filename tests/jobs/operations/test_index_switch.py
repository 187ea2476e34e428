"""A switch of the key layout loses no job, starts no job twice, and can be interrupted at any step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.db.models import F
from django.db.models.functions import Now

from dispatcher_project.supervisor.embedded import EmbeddedValkey
from foundation.ids import new_id
from gpus.errors import LayoutNotInUse, LeasingUnavailable
from gpus.leasing.connect import connect
from gpus.leasing.store import RedisLeases
from gpus.models import FleetIndex, Process
from gpus.protocol import FIRST_LAYOUT, Lease, ReleaseMode
from gpus.registry import processes
from gpus.registry.layouts import Layouts, read_index_states
from gpus.registry.processes import IndexGate
from jobs.execution.presence import Presence
from jobs.execution.switch_readiness import SwitchReadiness
from jobs.execution.worker_state import ClaimsUnderWay
from jobs.models import Attempt, Job
from jobs.operations import index_switch
from jobs.operations.index_switch import begin_switch, cancel_switch, continue_switch
from jobs.ports import Ports
from jobs.sweeps import expired_leases
from jobs.sweeps import index_switch as sweep
from tests.support.by_process import run_sweep
from tests.support.fakes import WrongClocks
from tests.support.queue_harness import LEASE_SECONDS, QueueHarness, VirtualClock, open_index

OLD, NEW = FIRST_LAYOUT, FIRST_LAYOUT + 1
GPU, SWEEPS = Process.Kind.GPU, Process.Kind.SWEEPS


@dataclass
class Version:
    """The view of one version's processes: its layout's index, and the row as last read."""

    layout: int
    ports: Ports
    leases: RedisLeases

    def beat(self, name: str, kind: str = GPU, ready: dict[str, str] | None = None) -> None:
        processes.record_heartbeat(name, kind, self.layout, ready or {})


@dataclass
class Upgrade:
    """Two versions. queue: of the old one. unaware: processes of a version without `FleetIndex`, on the old
    index."""

    queue: QueueHarness
    old: Version
    new: Version
    unaware: RedisLeases

    @property
    def fleet(self) -> str:
        return self.queue.fleet

    @property
    def row(self) -> FleetIndex:
        return FleetIndex.objects.get(fleet=self.fleet)

    def begin(self) -> str:
        assert begin_switch(self.fleet, NEW)
        self.new.ports.layouts.refresh()
        return str(self.row.switch)

    def rebuild(self) -> None:
        """Run the sweeps until the new index is open."""
        for _ in range(15):
            run_sweep("generation", self.new.ports)
            if self.new.leases.generation() is not None:
                return
            self.queue.clock.advance(1)
        raise AssertionError("not rebuilt")

    def dies(self, name: str) -> None:
        Process.objects.filter(name=name).update(beat_at=Now() - timedelta(seconds=60))


@pytest.fixture
def upgrade(queue: QueueHarness, valkey: EmbeddedValkey) -> Iterator[Upgrade]:
    client, clock = connect(valkey.url), queue.clock

    def gate(fleet: str, layout: int) -> IndexGate:
        if fleet != queue.fleet:
            raise LeasingUnavailable("no Redis of this test's")
        return IndexGate(client, fleet, layout, now_ms=clock.now_ms)

    def version(layout: int) -> Version:
        layouts = Layouts(read_index_states, layout=layout, monotonic=lambda: 0.0)
        leases = store(clock, client, queue.fleet, layout, lambda: layouts.refusal(queue.fleet))
        layouts.refresh()
        ports = replace(
            queue.ports,
            leases=lambda fleet: leases if fleet == queue.fleet else queue.ports.leases(fleet),
            layouts=layouts,
            index_gate=gate,
        )
        return Version(layout, ports, leases)

    old, new = version(OLD), version(NEW)
    queue.leases = old.leases
    yield Upgrade(queue, old, new, store(clock, client, queue.fleet, OLD, lambda: ""))
    client.close()


def store(
    clock: VirtualClock, client: Any, fleet: str, layout: int, refusal: Callable[[], str]
) -> RedisLeases:
    return RedisLeases(
        client,
        fleet,
        lease_seconds=LEASE_SECONDS,
        sweep_seconds=100.0,
        now_ms=clock.now_ms,
        refusal=refusal,
        layout=layout,
    )


def claim(leases: RedisLeases, worker: str = "w") -> Lease | None:
    return leases.claim("m", worker=worker, attempt_id=new_id())


def test_without_a_row_the_first_layout_is_in_use(upgrade: Upgrade) -> None:
    assert upgrade.old.ports.layouts.is_layout_in_use()
    assert not upgrade.old.ports.layouts.refusal(upgrade.fleet)
    assert not upgrade.new.ports.layouts.is_layout_in_use()


def test_a_process_of_another_layout_uses_no_index(upgrade: Upgrade) -> None:
    upgrade.queue.server()
    job = upgrade.queue.job()
    with pytest.raises(LayoutNotInUse, match="has layout 6, this process has layout 7"):
        claim(upgrade.new.leases)
    with pytest.raises(LayoutNotInUse):
        upgrade.new.leases.push("m", [job.ticket])
    assert run_sweep("generation", upgrade.new.ports).notes
    assert not upgrade.queue.client.exists(f"gpuq:{{{upgrade.fleet}}}:v7:rebuild")


def test_workers_keep_their_leases_in_an_index_that_is_no_longer_in_use(upgrade: Upgrade) -> None:
    upgrade.queue.server()
    upgrade.queue.job()
    lease = upgrade.queue.claim(worker="old")
    FleetIndex.objects.create(fleet=upgrade.fleet, layout=NEW)
    upgrade.old.ports.layouts.refresh()
    upgrade.old.ports.index_gate(upgrade.fleet, OLD).close("test")
    assert upgrade.old.leases.renew("old", [lease], []) == []
    upgrade.old.leases.release(lease.ref, ReleaseMode.ENDED, worker="old")
    assert upgrade.old.leases.confirm_ends([lease.ref]) == ()
    with pytest.raises(LayoutNotInUse):
        claim(upgrade.old.leases)


def test_a_closed_index_leases_no_slot_to_processes_that_did_not_read_the_row(upgrade: Upgrade) -> None:
    upgrade.queue.server(slots=2)
    for _ in range(2):
        upgrade.queue.job()
    lease = upgrade.queue.claim(worker="old")
    upgrade.old.ports.index_gate(upgrade.fleet, OLD).close("test")
    for late in (upgrade.old.leases, upgrade.unaware):
        with pytest.raises(LeasingUnavailable, match="being rebuilt"):
            claim(late)
        assert late.begin_rebuild("another") == ""
        assert late.renew("old", [lease], []) == []
        assert late.release(lease.ref, ReleaseMode.ENDED, worker="old", next_attempt_id=new_id()) is None
    assert upgrade.old.ports.index_gate(upgrade.fleet, OLD).activity().closed_by == "test"


@pytest.mark.database
def test_a_switch_waits_until_every_start_is_committed_and_reported(upgrade: Upgrade) -> None:
    upgrade.queue.server(slots=2)
    for _ in range(2):
        upgrade.queue.job()
    lease = upgrade.queue.claim(written=False, worker="w1")
    upgrade.old.beat("w1")
    switch = upgrade.begin()
    assert continue_switch(upgrade.fleet, upgrade.new.ports).waits_for == (
        "w1: its starts are not all committed yet",
    )
    upgrade.old.beat("w1", ready={upgrade.fleet: "another switch"})
    assert not continue_switch(upgrade.fleet, upgrade.new.ports).done
    upgrade.old.beat("w1", ready={upgrade.fleet: switch})
    assert "its start is not committed" in continue_switch(upgrade.fleet, upgrade.new.ports).waits_for[0]
    upgrade.queue.start(lease)
    assert continue_switch(upgrade.fleet, upgrade.new.ports).done
    assert (upgrade.row.layout, upgrade.row.next_layout) == (NEW, None)


@pytest.mark.parametrize("said", [["main"], "all", 7, True, {"main": {"switch": "x"}}])
def test_a_switch_waits_for_a_process_with_another_format_of_readiness(upgrade: Upgrade, said: Any) -> None:
    upgrade.queue.server()
    upgrade.old.beat("w1")
    upgrade.begin()
    Process.objects.filter(name="w1").update(ready=said)
    assert continue_switch(upgrade.fleet, upgrade.new.ports).waits_for == (
        "w1: its starts are not all committed yet",
    )


def test_a_switch_waits_for_runs_of_workers_without_switch_support(upgrade: Upgrade) -> None:
    upgrade.queue.server()
    upgrade.queue.job()
    lease = upgrade.queue.claim(worker="w1")
    upgrade.begin()
    assert "its runs must end first" in continue_switch(upgrade.fleet, upgrade.new.ports).waits_for[0]
    upgrade.unaware.release(lease.ref, ReleaseMode.FREE, worker="w1")
    assert continue_switch(upgrade.fleet, upgrade.new.ports).done


def test_a_switch_waits_for_a_dead_worker_no_longer_than_its_lease(upgrade: Upgrade) -> None:
    upgrade.queue.server()
    upgrade.queue.job()
    upgrade.queue.claim(worker="w1")
    upgrade.old.beat("w1")
    upgrade.dies("w1")
    upgrade.begin()
    assert not continue_switch(upgrade.fleet, upgrade.new.ports).done
    upgrade.queue.clock.advance(LEASE_SECONDS + 1)
    assert continue_switch(upgrade.fleet, upgrade.new.ports).done


def test_a_run_continues_under_its_old_worker_and_keeps_its_slot(upgrade: Upgrade) -> None:
    queue = upgrade.queue
    queue.server(slots=2)
    running = queue.job()
    lease = queue.claim(worker="w1")
    waiting = queue.job(), queue.job()
    switched(upgrade, "w1")
    second = claim(upgrade.new.leases, "new")
    assert second is not None
    assert second.slot != lease.slot
    for _ in range(5):
        queue.clock.advance(LEASE_SECONDS + 1)
        upgrade.new.leases.renew("new", [second], [])
        expired_leases.sweep(upgrade.new.ports)
        assert claim(upgrade.new.leases, "new") is None
    assert Attempt.objects.get(id=lease.attempt_id).state == "sent"
    assert Job.objects.get(id=running.id).state == "running"
    assert len(waiting) == 2


def test_the_end_of_a_run_of_the_old_layout_frees_its_slot(upgrade: Upgrade) -> None:
    queue = upgrade.queue
    queue.server()
    queue.job()
    lease = queue.claim(worker="w1")
    queue.job()
    switched(upgrade, "w1")
    Attempt.objects.filter(id=lease.attempt_id).update(state="completed", slot_freed=True)
    queue.clock.advance(LEASE_SECONDS + 1)
    expired_leases.sweep(upgrade.new.ports)
    assert claim(upgrade.new.leases, "new") is not None


def test_a_worker_that_dies_after_the_switch_loses_its_runs(upgrade: Upgrade) -> None:
    queue = upgrade.queue
    queue.server()
    job = queue.job()
    lease = queue.claim(worker="w1")
    switched(upgrade, "w1")
    upgrade.dies("w1")
    queue.clock.advance(LEASE_SECONDS + 1)
    expired_leases.sweep(upgrade.new.ports)
    assert Attempt.objects.get(id=lease.attempt_id).state == "lost"
    assert Job.objects.get(id=job.id).deaths == 1


@pytest.mark.database
def test_no_worker_is_declared_dead_while_clocks_disagree(upgrade: Upgrade) -> None:
    """With the clock ahead, all live workers look silent until their next heartbeat."""
    queue = upgrade.queue
    queue.server()
    queue.job()
    lease = queue.claim(worker="w1")
    switched(upgrade, "w1")
    Process.objects.update(beat_at=Now() - timedelta(seconds=300))
    queue.clock.advance(LEASE_SECONDS + 1)
    expired_leases.sweep(replace(upgrade.new.ports, clock_watch=WrongClocks()))
    assert Attempt.objects.get(id=lease.attempt_id).state == "sent"
    queue.clock.advance(LEASE_SECONDS + 1)
    expired_leases.sweep(upgrade.new.ports)
    assert Attempt.objects.get(id=lease.attempt_id).state == "lost"


def test_old_leases_of_the_new_layout_are_discarded(upgrade: Upgrade) -> None:
    queue = upgrade.queue
    queue.server()
    gate = upgrade.new.ports.index_gate(upgrade.fleet, NEW)
    open_index(store(queue.clock, queue.client, upgrade.fleet, NEW, lambda: ""))
    upgrade.begin()
    assert continue_switch(upgrade.fleet, upgrade.new.ports).done
    assert upgrade.new.leases.generation() is None
    upgrade.rebuild()
    assert gate.activity().closed_by == ""


def test_an_index_can_be_switched_back_and_forth(upgrade: Upgrade) -> None:
    queue = upgrade.queue
    queue.server()
    job = queue.job()
    switched(upgrade)
    assert begin_switch(upgrade.fleet, OLD)
    for version in (upgrade.old, upgrade.new):
        version.ports.layouts.refresh()
    assert continue_switch(upgrade.fleet, upgrade.old.ports).done
    upgrade.new.ports.layouts.refresh()
    for _ in range(15):
        run_sweep("generation", upgrade.old.ports)
        queue.clock.advance(1)
    lease = claim(upgrade.old.leases)
    assert lease is not None
    assert lease.job_id == job.id
    with pytest.raises(LayoutNotInUse):
        claim(upgrade.new.leases)


@pytest.mark.parametrize("call", range(4))
def test_an_interrupted_switch_is_continued(upgrade: Upgrade, call: int) -> None:
    """Interrupt the switch at each call to Redis and before each write; another process continues it."""
    queue = upgrade.queue
    queue.server(slots=2)
    queue.job()
    lease = queue.claim(worker="w1")
    upgrade.old.beat("w1")
    switch = upgrade.begin()
    upgrade.old.beat("w1", ready={upgrade.fleet: switch})
    calls = 0

    def breaks(then: Any) -> Any:
        def maybe(*args: Any, **values: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == call + 1:
                raise LeasingUnavailable("broke off")
            return then(*args, **values)

        return maybe

    gates = IndexGate.close, IndexGate.activity, IndexGate.discard
    with (
        patch.object(IndexGate, "close", breaks(gates[0])),
        patch.object(IndexGate, "activity", breaks(gates[1])),
        patch.object(IndexGate, "discard", breaks(gates[2])),
        patch.object(index_switch, "Now", breaks(Now)),
    ):
        for _ in range(3):
            try:
                if continue_switch(upgrade.fleet, upgrade.new.ports).done:
                    break
            except LeasingUnavailable:
                if call > 0:  # the older index is closed first
                    with pytest.raises(LeasingUnavailable):
                        claim(upgrade.unaware)
    assert calls == call + 1 + 4
    assert upgrade.row.layout == NEW
    upgrade.rebuild()
    assert upgrade.new.leases.is_held(lease.ref)
    with pytest.raises(LeasingUnavailable):
        claim(upgrade.unaware)


def test_a_cancelled_switch_leaves_an_index_that_can_be_rebuilt(upgrade: Upgrade) -> None:
    upgrade.queue.server()
    upgrade.queue.job()
    upgrade.old.beat("w1")
    upgrade.begin()
    continue_switch(upgrade.fleet, upgrade.new.ports)
    assert cancel_switch(upgrade.fleet, upgrade.old.ports)
    upgrade.old.ports.index_gate(upgrade.fleet, OLD).close("a step that came late")
    for _ in range(15):
        run_sweep("generation", upgrade.old.ports)
        upgrade.queue.clock.advance(1)
    assert claim(upgrade.old.leases) is not None


@pytest.mark.parametrize("opened_first", [False, True])
def test_an_empty_redis_opens_no_older_index(upgrade: Upgrade, opened_first: bool) -> None:
    """A process of a version without `FleetIndex` finds no index and rebuilds that of its own layout."""
    queue = upgrade.queue
    queue.server()
    queue.job()
    switched(upgrade)
    queue.client.flushdb()
    if opened_first:
        open_index(upgrade.unaware)
    run_sweep("generation", upgrade.new.ports)
    assert upgrade.unaware.begin_rebuild("unaware") == ""
    upgrade.rebuild()
    assert upgrade.unaware.generation() is None
    assert claim(upgrade.new.leases) is not None


def test_an_open_index_of_an_older_layout_is_closed(upgrade: Upgrade) -> None:
    upgrade.queue.server()
    switched(upgrade)
    upgrade.old.ports.index_gate(upgrade.fleet, OLD).discard()
    open_index(upgrade.unaware)
    upgrade.new.ports.layouts.refresh()
    assert sweep.is_needed(upgrade.new.ports)
    assert sweep.sweep(upgrade.new.ports).repaired == 1
    assert upgrade.unaware.generation() is None
    assert sweep.sweep(upgrade.new.ports).repaired == 0
    assert upgrade.new.leases.generation() is not None


# -- automatic begin of a switch
# ------------------------------------------------------------------------------


def test_a_switch_begins_once_no_process_uses_the_old_index(upgrade: Upgrade) -> None:
    upgrade.queue.server()
    upgrade.old.beat("old-gpu")
    upgrade.old.beat("old-sweeps", SWEEPS)
    upgrade.new.beat("new-gpu")
    look(upgrade, seconds=60)
    assert not FleetIndex.objects.exists()
    processes.sign_off("old-gpu")
    look(upgrade, seconds=14)
    assert not FleetIndex.objects.exists()
    look(upgrade, seconds=5)
    assert upgrade.row.layout == NEW


def test_a_switch_does_not_begin_while_the_old_worker_restarts(upgrade: Upgrade) -> None:
    upgrade.queue.server()
    upgrade.old.beat("old-sweeps", SWEEPS)
    upgrade.new.beat("new-gpu")
    for _ in range(3):
        look(upgrade, seconds=10)
        upgrade.old.beat("old-gpu")
        look(upgrade, seconds=10)
        processes.sign_off("old-gpu")
    assert not FleetIndex.objects.exists()


def test_a_switch_does_not_begin_without_a_worker_of_the_new_layout(upgrade: Upgrade) -> None:
    upgrade.queue.server()
    look(upgrade, seconds=60)
    assert not FleetIndex.objects.exists()
    upgrade.new.beat("new-gpu")
    look(upgrade, seconds=1)
    assert upgrade.row.layout == NEW


def test_processes_without_heartbeats_are_detected_by_their_traces_in_redis(upgrade: Upgrade) -> None:
    queue = upgrade.queue
    queue.server()
    queue.job()
    lease = queue.claim(worker="w1")
    upgrade.new.beat("new-gpu")
    for _ in range(30):
        upgrade.unaware.expired()
        upgrade.unaware.renew("w1", [lease], [])
        look(upgrade, seconds=2)
    assert not FleetIndex.objects.exists()
    queue.clock.advance(LEASE_SECONDS + 1)
    look(upgrade, seconds=1)
    assert upgrade.row.layout == NEW


def test_a_switch_to_an_unsupported_layout_is_cancelled(upgrade: Upgrade) -> None:
    upgrade.queue.server()
    upgrade.begin()
    go_on_until_closed(upgrade)
    upgrade.new.beat("new-sweeps", SWEEPS)
    upgrade.old.ports.layouts.refresh()
    sweep.sweep(upgrade.old.ports)
    assert upgrade.row.next_layout == NEW
    processes.sign_off("new-sweeps")
    sweep.sweep(upgrade.old.ports)
    assert upgrade.row.next_layout is None
    assert upgrade.row.layout == OLD


def test_a_switch_of_a_removed_version_is_cancelled(upgrade: Upgrade) -> None:
    """Both versions were rolled back during their switch."""
    upgrade.queue.server()
    upgrade.queue.job()
    FleetIndex.objects.create(fleet=upgrade.fleet, layout=NEW, next_layout=NEW + 1, switch="a switch")
    upgrade.old.ports.layouts.refresh()
    for _ in range(40):
        upgrade.old.beat("old-gpu")
        upgrade.old.beat("old-sweeps", SWEEPS)
        sweep.sweep(upgrade.old.ports)
        run_sweep("generation", upgrade.old.ports)
        upgrade.queue.clock.advance(1)
    assert (upgrade.row.layout, upgrade.row.next_layout) == (OLD, None)
    assert claim(upgrade.old.leases) is not None


# -- a worker's reports ------------------------------------------------------------------------------------


def test_a_worker_is_ready_once_the_index_is_closed_and_its_starts_are_committed(upgrade: Upgrade) -> None:
    queue = upgrade.queue
    queue.server()
    queue.job()
    lease = queue.claim(written=False)
    claims = ClaimsUnderWay()
    readiness = SwitchReadiness(upgrade.old.ports, lambda fleet: [lease.ref], claims)
    assert readiness.ready_switches() == {}
    switch = upgrade.begin()
    upgrade.old.ports.layouts.refresh()
    assert readiness.ready_switches() == {}  # the index is not closed
    upgrade.old.ports.index_gate(upgrade.fleet, OLD).close("test")
    assert readiness.ready_switches() == {}  # a start is not committed
    queue.start(lease)
    with claims:
        assert readiness.ready_switches() == {}
    assert readiness.ready_switches() == {upgrade.fleet: switch}


def test_presence_reports_changes_at_once(upgrade: Upgrade) -> None:
    result: dict[str, str] = {}
    presence = Presence(upgrade.old.ports, GPU, name="w1", ready=lambda: dict(result))
    presence.step()
    result["main"] = "s1"
    presence.step()
    row = Process.objects.get(name="w1")
    assert (row.layout, row.ready) == (OLD, {"main": "s1"})
    assert processes.is_live_in_other_layout("w1", NEW)
    assert not processes.is_live_in_other_layout("w1", OLD)


@pytest.mark.database
def test_a_worker_that_died_while_the_database_clock_was_ahead_expires_in_time(upgrade: Upgrade) -> None:
    upgrade.old.beat("dead")
    upgrade.old.beat("alive")
    Process.objects.update(beat_at=Now() + timedelta(seconds=300))
    upgrade.old.beat("alive")
    assert processes.is_live_in_other_layout("dead", NEW), "until the worker was silent for long enough"
    Process.objects.update(beat_at=F("beat_at") - processes.silent_after())
    assert not processes.is_live_in_other_layout("dead", NEW)
    upgrade.old.beat("alive")
    assert processes.is_live_in_other_layout("alive", NEW)


def switched(upgrade: Upgrade, *workers: str) -> None:
    """Switch to the new layout and open its index."""
    switch = upgrade.begin()
    for worker in workers:
        upgrade.old.beat(worker, ready={upgrade.fleet: switch})
    assert continue_switch(upgrade.fleet, upgrade.new.ports).done
    upgrade.old.ports.layouts.refresh()
    upgrade.rebuild()


def go_on_until_closed(upgrade: Upgrade) -> None:
    upgrade.old.beat("w1")
    continue_switch(upgrade.fleet, upgrade.new.ports)
    assert upgrade.old.ports.index_gate(upgrade.fleet, OLD).activity().closed_by


def look(upgrade: Upgrade, *, seconds: int) -> None:
    """The new version's sweep process runs once per second."""
    for _ in range(seconds):
        sweep.sweep(upgrade.new.ports)
        upgrade.queue.clock.advance(1)
