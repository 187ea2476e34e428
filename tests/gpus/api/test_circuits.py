"""Circuit breakers over HTTP: the list, and a reset by an operator with an audit entry."""

from __future__ import annotations

import pytest

from gpus.leasing.values import Circuit, Circuits
from gpus.models import AuditEntry
from gpus.protocol import CircuitState
from tests.support.api_harness import Account, ApiHarness, acme, api, operator, other
from tests.support.factories import make_model, make_server

__all__ = ["acme", "api", "operator", "other"]
ADMIN = "/api/v1/admin"
OPEN = Circuit(CircuitState.OPEN, 0, 2, 12.5)


@pytest.fixture
def broken(db: None, api: ApiHarness) -> ApiHarness:
    make_server("s1", model=make_model("flux"))
    api.leases.broken = Circuits({"flux": Circuit(CircuitState.CLOSED, 3, 0, 0.0)}, {"s1": OPEN})
    return api


def test_circuits_with_failures_are_listed(operator: Account, broken: ApiHarness) -> None:
    body = operator.client.get(f"{ADMIN}/circuits").json()
    assert body["away"] == []
    assert body["results"] == [
        {
            "kind": "model",
            "name": "flux",
            "pool": "flux",
            "state": "closed",
            "failures": 3,
            "opened": 0,
            "left_seconds": 0.0,
        },
        {
            "kind": "server",
            "name": "s1",
            "pool": "flux",
            "state": "open",
            "failures": 0,
            "opened": 2,
            "left_seconds": 12.5,
        },
    ]


def test_redis_away_is_said(operator: Account, broken: ApiHarness) -> None:
    broken.leases.away = True
    assert operator.client.get(f"{ADMIN}/circuits").json() == {"results": [], "away": ["flux"]}
    answer = operator.client.post(f"{ADMIN}/servers/s1/circuit/reset")
    assert answer.status_code == 503
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize(("kind", "name"), [("server", "s1"), ("model", "flux")])
def test_an_operator_closes_a_circuit_with_an_audit_entry(
    operator: Account, broken: ApiHarness, kind: str, name: str
) -> None:
    url = f"{ADMIN}/{kind}s/{name}/circuit/reset"
    assert operator.client.post(url).json() == {"kind": kind, "name": name, "changed": True}
    assert broken.leases.resets == [(kind, name, "flux")]
    assert [wake.pool for wake in broken.wakes] == ["flux"]
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.target) == ("reset_circuit", f"{kind}:{name}")
    assert operator.client.post(url).json()["changed"] is False
    assert AuditEntry.objects.count() == 1, "what is closed already leaves no entry"


def test_unregistered_names_are_not_found(operator: Account, broken: ApiHarness) -> None:
    for path, code in (("servers/s9", "unknown_server"), ("models/m9", "unknown_model"), ("servers/-", "")):
        answer = operator.client.post(f"{ADMIN}/{path}/circuit/reset")
        assert answer.status_code == 404
        assert answer.json()["code"] == (code or "unknown_server")


def test_a_tenant_sees_and_closes_none(acme: Account, broken: ApiHarness) -> None:
    assert acme.client.get(f"{ADMIN}/circuits").status_code == 403
    assert acme.client.post(f"{ADMIN}/servers/s1/circuit/reset").status_code == 403
    assert broken.leases.resets == []
