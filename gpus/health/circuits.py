"""Lists and resets circuit breakers for operators; the lease layer opens them
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
class CircuitEntry:
    """A server or model whose last attempt failed, with its circuit breaker (possibly still closed)."""

    kind: CircuitKind
    name: str
    pool: str
    circuit: Circuit

    @property
    def is_open(self) -> bool:
        return self.circuit.state is not CircuitState.CLOSED

    def as_json(self) -> dict[str, Any]:
        """The entry as JSON, for the API and the command line."""
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
    """Entries ordered by kind and name. away: pools whose Redis does not answer."""

    entries: tuple[CircuitEntry, ...]
    away: tuple[str, ...] = ()

    @property
    def open(self) -> tuple[CircuitEntry, ...]:
        return tuple(one for one in self.entries if one.is_open)


def all_circuits(leases: LeasesOf) -> Circuits:
    """All circuit breakers with failures. Costs two queries, and a call to Redis per pool and 500 servers."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, pool in Server.objects.order_by("name").values_list("name", "pool_id"):
        names[pool].append(name)
    found: list[CircuitEntry] = []
    away: list[str] = []
    for pool, fleet in Pool.objects.order_by("name").values_list("name", "fleet"):
        try:
            found += _of_pool(leases, fleet, pool, names[pool])
        except LeasingUnavailable:
            away.append(pool)
    return Circuits(tuple(sorted(found, key=lambda one: (one.kind, one.name))), tuple(away))


def circuit_of(kind: CircuitKind, name: str, pool: str, leases: LeasesOf) -> Circuit | None:
    """The circuit breaker of a server or model; None if Redis does not answer."""
    try:
        return _find_circuit(leases(queries.fleet_of(pool)), kind, name, pool) or CLOSED
    except LeasingUnavailable:
        return None


def reset_circuit(kind: CircuitKind, name: str, *, by: str, leases: LeasesOf) -> Changed:
    """Close a circuit breaker and reset its failures, for an operator who has repaired the server or model.

    Without failures it has no effect and writes no audit entry. Raises RegistryRefused (404),
    LeasingUnavailable.
    """
    pool = _pool_of(kind, name)
    store = leases(queries.fleet_of(pool))
    circuit = _find_circuit(store, kind, name, pool)
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


def _find_circuit(store: Leases, kind: CircuitKind, name: str, pool: str) -> Circuit | None:
    """The circuit breaker, or None without failures."""
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


def _of_pool(leases: LeasesOf, fleet: str, pool: str, servers: Sequence[str]) -> list[CircuitEntry]:
    store, entries = leases(fleet), []
    for first in range(0, max(1, len(servers)), _SERVERS_PER_CALL):
        found = store.circuits(pool, servers[first : first + _SERVERS_PER_CALL])
        entries += [CircuitEntry(CircuitKind.SERVER, name, pool, one) for name, one in found.servers.items()]
    return entries + [CircuitEntry(CircuitKind.MODEL, name, pool, one) for name, one in found.models.items()]
