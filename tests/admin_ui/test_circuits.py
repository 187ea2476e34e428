"""Circuit breakers on the pages of servers and models, and on the dashboard."""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.test import Client
from django.urls import reverse

from gpus.leasing.values import Circuit, Circuits, PoolDepth, SlotView
from gpus.models import AuditEntry
from gpus.protocol import CircuitState
from tests.admin_ui.rows import fill
from tests.support.admin_ports import FakePorts

SERVER, MODEL = "flux-server-1", "flux"
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def broken(db: None, fake_ports: FakePorts) -> FakePorts:
    fill(jobs=6)
    fake_ports.leases.broken = Circuits(
        {MODEL: Circuit(CircuitState.HALF_OPEN, 0, 1, 0.0)},
        {SERVER: Circuit(CircuitState.OPEN, 0, 3, 90.0)},
    )
    fake_ports.leases.depths[MODEL] = PoolDepth(
        MODEL, {MODEL: 3}, 0, {"free": 1}, circuits={MODEL: CircuitState.OPEN}
    )
    cell = SlotView(f"{SERVER}/0", MODEL, "free", True, None, None, None, 0, None, 0.0, None)
    fake_ports.leases.views = [replace(cell, circuit=CircuitState.OPEN)]
    return fake_ports


def text(client: Client, name: str, *args: str) -> str:
    return client.get(reverse(name, args=args)).content.decode()


def test_pages_of_servers_and_models_describe_their_circuits(boss: Client) -> None:
    assert "open: one job tries in 1 m (opened 3 times" in text(boss, "admin:gpus_server_change", SERVER)
    assert "half open: one job tries" in text(boss, "admin:gpus_modelconfig_change", MODEL)


def test_without_redis_the_circuit_is_unknown(boss: Client, broken: FakePorts) -> None:
    broken.leases.away = True
    assert "unknown: Redis does not answer" in text(boss, "admin:gpus_server_change", SERVER)


def test_the_dashboard_shows_open_circuits(boss: Client) -> None:
    assert "the circuit is open" in text(boss, "dashboard:fleet")
    assert "circuit open after repeated failures" in text(boss, "dashboard:queues")


@pytest.mark.parametrize(("page", "name"), [("server", SERVER), ("modelconfig", MODEL)])
def test_an_operator_closes_a_circuit(operator: Client, broken: FakePorts, page: str, name: str) -> None:
    url = reverse(f"admin:gpus_{page}_changelist")
    operator.post(url, {"action": "close_circuit", "_selected_action": [name]})
    assert broken.leases.broken == Circuits()
    assert broken.wakes
    entry = AuditEntry.objects.get(action="reset_circuit")
    assert entry.actor == "user:operators"
    assert entry.target.endswith(f":{name}")


@pytest.mark.parametrize("page", ["server", "modelconfig"])
def test_a_viewer_cannot_close_a_circuit(viewer: Client, broken: FakePorts, page: str) -> None:
    before = broken.leases.broken
    url = reverse(f"admin:gpus_{page}_changelist")
    viewer.post(url, {"action": "close_circuit", "_selected_action": [SERVER, MODEL]})
    assert broken.leases.broken == before
    assert not AuditEntry.objects.filter(action="reset_circuit").exists()
