"""`index`: the key layout in use, processes with another one, the switch by hand; also `top` and `doctor`."""

from __future__ import annotations

from dataclasses import replace

import pytest

import jobs.ports
from dispatcher_project.management.commands import index
from gpus.leasing.keys import LAYOUT
from gpus.models import AuditEntry, FleetIndex, Process
from gpus.registry import processes
from gpus.registry.audit import cli_actor
from gpus.registry.processes import IndexGate
from jobs.operations.index_switch import begin_switch
from tests.dispatcher_project.cli.doctor.patient import Patient, patient
from tests.support.queue_harness import QueueHarness, queue
from tests.support.terminal import Terminal, terminal, while_waiting

__all__ = ["patient", "queue", "terminal"]
pytestmark = pytest.mark.django_db

OTHER = LAYOUT + 1
GPU, SWEEPS, WEB = Process.Kind.GPU, Process.Kind.SWEEPS, Process.Kind.WEB


@pytest.fixture(autouse=True)
def gates(queue: QueueHarness, monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> None:
    def gate(fleet: str, layout: int) -> IndexGate:
        return IndexGate(queue.client, fleet, layout, now_ms=queue.clock.now_ms)

    ports = replace(queue.ports, index_gate=gate)
    monkeypatch.setattr(jobs.ports, "production_ports", lambda: ports)


def beat(name: str, kind: str, layout: int = LAYOUT) -> None:
    processes.record_heartbeat(name, kind, layout, {})


def test_it_shows_layouts_and_processes(queue: QueueHarness, terminal: Terminal) -> None:
    queue.server()
    beat("host-a:1", GPU)
    beat("host-b:1", GPU, OTHER)
    said = terminal("index").said
    assert said.startswith(f"this code: layout {LAYOUT}\n")
    assert f"{queue.fleet}: layout {LAYOUT}\n" in said
    assert f"gpu      host-b:1       {OTHER}\n" in said
    output = terminal("index", "--json").json
    assert output["fleets"][queue.fleet] == {"layout": LAYOUT, "next_layout": None}
    assert {one["name"] for one in output["processes"]} == {"host-a:1", "host-b:1"}


def test_a_switch_to_a_layout_without_processes_is_refused(queue: QueueHarness, terminal: Terminal) -> None:
    queue.server()
    beat("host-b:1", GPU, OTHER)
    refused = terminal("index", "switch", "--to", str(OTHER))
    assert refused.status == 2
    assert f"no GPU worker and sweeps worker with layout {OTHER} are running" in refused.said
    assert not FleetIndex.objects.exists()


def test_a_switch_shows_what_it_waits_for_until_it_is_done(
    queue: QueueHarness, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.server()
    beat("old", GPU)
    beat("new", GPU, OTHER)
    beat("new-sweeps", SWEEPS, OTHER)

    def the_old_one_is_ready() -> None:
        switches = {row.fleet: row.switch for row in FleetIndex.objects.all()}
        processes.record_heartbeat("old", GPU, LAYOUT, switches)

    while_waiting(monkeypatch, index, the_old_one_is_ready)
    run = terminal("index", "switch", "--to", str(OTHER))
    assert run.status == 0
    assert "waits for old: its starts are not all committed yet" in run.said
    assert f"{queue.fleet}: layout {OTHER}" in run.said
    assert set(FleetIndex.objects.values_list("layout", flat=True)) == {OTHER}


def test_a_slow_switch_is_left_to_the_sweeps_or_cancelled(
    queue: QueueHarness, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.server()
    beat("old", GPU)
    while_waiting(monkeypatch, index, lambda: None)
    run = terminal("index", "switch", "--to", str(OTHER), "--force", "--wait", "0.01", "--fleet", queue.fleet)
    assert run.status == 1
    assert FleetIndex.objects.get().next_layout == OTHER
    assert "is cancelled" in terminal("index", "cancel", "--fleet", queue.fleet).said
    assert FleetIndex.objects.get().next_layout is None
    begun, cancelled = AuditEntry.objects.order_by("pk")
    assert (begun.action, begun.target, begun.actor) == (
        "begin_index_switch",
        f"fleet:{queue.fleet}",
        cli_actor(),
    )
    assert (cancelled.action, cancelled.detail) == ("cancel_index_switch", {"to": OTHER})


def test_the_json_of_a_switch_is_one_document(
    queue: QueueHarness, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.server()
    beat("old", GPU)
    while_waiting(monkeypatch, index, lambda: None)
    words = ("index", "switch", "--to", str(OTHER), "--force", "--wait", "0.01", "--fleet", queue.fleet)
    run = terminal(*words, "--json")
    assert run.status == 1
    assert (run.json["layout"], run.json["switched"], run.json["left"]) == (OTHER, [], [queue.fleet])
    assert run.json["waits_for"]
    cancelled = terminal("index", "cancel", "--fleet", queue.fleet, "--json").json
    assert cancelled == {"cancelled": {queue.fleet: True}}


def test_doctor_and_top_name_processes_with_another_layout(
    patient: Patient, terminal: Terminal, queue: QueueHarness
) -> None:
    beat("host-a:1", GPU)
    assert not [check for check in patient.ill() if check.startswith("layout")]
    beat("host-b:1", WEB, OTHER)
    finding = patient.ill()[f"layout {queue.fleet}"]
    assert f"web host-b:1 ({OTHER})" in finding.summary
    assert "restart the hosts of the other version" in finding.advice
    assert f"layout {LAYOUT}; on other layouts: 1 web of layout {OTHER}" in terminal("top").said
    assert begin_switch(queue.fleet, OTHER)
    assert f"being switched from {LAYOUT} to {OTHER}" in patient.ill()[f"layout {queue.fleet}"].summary
