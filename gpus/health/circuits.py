"""Circuit breakers as operators see and close them; the lease layer opens them
(`gpus/leasing/lua/includes/circuit.lua`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from gpus.errors import LeasingUnavailable
from gpus.leasing.contract import Leases
from gpus.leasing.values import Circuit
from gpus.models import ModelConfig, Pool, Server
from gpus.protocol import CircuitKind, CircuitState
from gpus.registry import queries
from gpus.registry.audit import record
from gpus.registry.controls import Changed
from gpus.registry.index_sync import LeasesOf
from gpus.registry.model_fields import RegistryRefused
from gpus.registry.registry import unknown_model

_SERVERS_PER_CALL = 500
CLOSED = Circuit(CircuitState.CLOSED, 0, 0, 0.0)


@dataclass(frozen=True, slots=True)
class Struck:
    """A server or model that failed last; also one whose circuit is still closed."""

    kind: CircuitKind
    name: str
    pool: str
    circuit: Circuit

    @property
    def is_open(self) -> bool:
        return self.circuit.state is not CircuitState.CLOSED

    def as_json(self) -> dict[str, Any]:
        """As the API and the terminal tell it."""
        return {
            "kind": self.kind.value,
            "name": self.name,
            "pool": self.pool,
            "state": self.circuit.state.value,
            "failures": self.circuit.strikes,
            "opened": self.circuit.opens,
            "left_seconds": round(self.circuit.left_seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class Circuits:
    """By kind and name. away: pools whose Redis does not answer."""

    struck: tuple[Struck, ...]
    away: tuple[str, ...] = ()

    @property
    def open(self) -> tuple[Struck, ...]:
        return tuple(one for one in self.struck if one.is_open)


def all_circuits(leases: LeasesOf) -> Circuits:
    """Two queries, and a call to Redis per pool and 500 servers."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, pool in Server.objects.order_by("name").values_list("name", "pool_id"):
        names[pool].append(name)
    found: list[Struck] = []
    away: list[str] = []
    for pool, fleet in Pool.objects.order_by("name").values_list("name", "fleet"):
        try:
            found += _of_pool(leases, fleet, pool, names[pool])
        except LeasingUnavailable:
            away.append(pool)
    return Circuits(tuple(sorted(found, key=lambda one: (one.kind, one.name))), tuple(away))


def circuit_of(kind: CircuitKind, name: str, pool: str, leases: LeasesOf) -> Circuit | None:
    """None while Redis does not answer."""
    try:
        return _struck(leases(queries.fleet_of(pool)), kind, name, pool) or CLOSED
    except LeasingUnavailable:
        return None


def reset_circuit(kind: CircuitKind, name: str, *, by: str, leases: LeasesOf) -> Changed:
    """Closes it at once and forgets its failures: the server or model is mended. What is closed and did not
    fail changes nothing and leaves no entry. Raises RegistryRefused (404), LeasingUnavailable."""
    pool = _pool_of(kind, name)
    store = leases(queries.fleet_of(pool))
    circuit = _struck(store, kind, name, pool)
    if circuit is None:
        return Changed(False, (), True)
    with transaction.atomic():
        record(
            by,
            "reset_circuit",
            f"{kind.value}:{name}",
            state=circuit.state.value,
            failures=circuit.strikes,
            opened=circuit.opens,
        )
    _, wakes = store.reset_circuit(kind, name, pool)
    return Changed(True, wakes, True)


def _struck(store: Leases, kind: CircuitKind, name: str, pool: str) -> Circuit | None:
    """None: it did not fail last."""
    if kind is CircuitKind.SERVER:
        return store.circuits(pool, [name]).servers.get(name)
    return store.circuits(pool, []).models.get(name)


def _pool_of(kind: CircuitKind, name: str) -> str:
    rows = Server.objects if kind is CircuitKind.SERVER else ModelConfig.objects
    pool = rows.filter(name=name).values_list("pool_id", flat=True).first()
    if pool is not None:
        return str(pool)
    if kind is CircuitKind.MODEL:
        raise unknown_model(name)
    raise RegistryRefused(
        "unknown_server", f"No server {name!r} is registered.", pointer="/server", status=404
    )


def _of_pool(leases: LeasesOf, fleet: str, pool: str, servers: Sequence[str]) -> list[Struck]:
    store, struck = leases(fleet), []
    for first in range(0, max(1, len(servers)), _SERVERS_PER_CALL):
        found = store.circuits(pool, servers[first : first + _SERVERS_PER_CALL])
        struck += [Struck(CircuitKind.SERVER, name, pool, one) for name, one in found.servers.items()]
    return struck + [Struck(CircuitKind.MODEL, name, pool, one) for name, one in found.models.items()]
