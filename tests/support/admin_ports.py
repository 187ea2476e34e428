"""Ports of the admin without Redis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import admin_ui.middleware  # noqa: F401  its receiver of sign-ins sets the session that requests expect
from gpus.errors import LeasingUnavailable
from gpus.leasing.clock import AgreedClocks, ClockWatch
from gpus.leasing.values import Circuits, PoolDepth, QueueStatus, SlotView, Wakes
from gpus.protocol import CircuitKind, PoolSpec, ServerSpec, SystemClock, TenantSpec, Ticket, split_slot
from gpus.registry.queries import RegistryCache
from jobs.ports import Ports


@dataclass
class FakeLeases:
    """A lease layer that records its calls. away: True to play an unreachable Redis."""

    pools: list[PoolSpec] = field(default_factory=list)
    servers: list[ServerSpec] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    freed: list[str] = field(default_factory=list)
    tenants: dict[str, TenantSpec] = field(default_factory=dict)
    views: list[SlotView] = field(default_factory=list)
    depths: dict[str, PoolDepth] = field(default_factory=dict)
    broken: Circuits = field(default_factory=Circuits)
    away: bool = False

    def configure_pool(self, pool: PoolSpec) -> None:
        self._answer()
        self.pools.append(pool)

    def configure_server(self, server: ServerSpec) -> tuple[Wakes, ...]:
        self._answer()
        self.servers.append(server)
        return (Wakes(server.pool, None, 1),)

    def queue_status(self, pool: str, ticket: Ticket, *, is_waiting: bool = True) -> QueueStatus:
        self._answer()
        return QueueStatus(in_line=True, position=3, slots={"busy": 2}, working_slots=2, guess_seconds=4.0)

    def circuits(self, pool: str, servers: Sequence[str]) -> Circuits:
        self._answer()
        return self.broken

    def reset_circuit(self, kind: CircuitKind, name: str, pool: str) -> tuple[bool, tuple[Wakes, ...]]:
        self._answer()
        was_open = name in {**self.broken.models, **self.broken.servers}
        self.broken = Circuits()
        return was_open, (Wakes(pool, None, 1),)

    def slots(self, server: str) -> list[SlotView]:
        self._answer()
        return [view for view in self.views if view.slot.startswith(f"{server}/")]

    def quarantine(self, slot: str, attempt_id: str, *, pool: str = "") -> bool:
        self._answer()
        return False

    def free_slot(self, slot: str) -> tuple[Wakes, ...]:
        self._answer()
        self.freed.append(slot)
        return ()

    def forget_server(self, server: str) -> None:
        self._answer()
        self.forgotten.append(server)

    def set_tenants(self, tenants: Sequence[TenantSpec]) -> tuple[Wakes, ...]:
        self._answer()
        self.tenants.update({tenant.name: tenant for tenant in tenants})
        return ()

    def set_paused_tenants(
        self, pool: str, tenants: Sequence[str], *, reason: str = "p"
    ) -> tuple[Wakes, ...]:
        self._answer()
        return ()

    def fill(self) -> tuple[Wakes, ...]:
        self._answer()
        return ()

    def slots_of(self, servers: Sequence[str]) -> list[SlotView]:
        self._answer()
        return [view for view in self.views if split_slot(view.slot)[0] in servers]

    def depth(self, pool: str) -> PoolDepth:
        self._answer()
        return self.depths.get(pool) or PoolDepth(pool, {}, 0, {})

    def estimate_seconds(self, model: str, tenant: str) -> float:
        self._answer()
        return 6.0

    def remove(self, pool: str, ticket: Ticket) -> bool:
        self._answer()
        return True

    def has_tickets(self, pool: str, tickets: Sequence[Ticket]) -> list[bool]:
        self._answer()
        return [False] * len(tickets)

    def push(self, pool: str, tickets: Sequence[Ticket]) -> Any:
        raise LeasingUnavailable

    def _answer(self) -> None:
        if self.away:
            raise LeasingUnavailable


@dataclass
class FakePorts:
    leases: FakeLeases = field(default_factory=FakeLeases)
    wakes: list[Wakes] = field(default_factory=list)
    callbacks_woken: list[str] = field(default_factory=list)
    clock_watch: ClockWatch = field(default_factory=AgreedClocks)
    registry: RegistryCache = field(default_factory=RegistryCache)

    def ports(self) -> Ports:
        def send(wakes: Sequence[Wakes]) -> int:
            self.wakes.extend(wakes)
            return len(wakes)

        return Ports(
            clock=SystemClock(),
            leases=lambda fleet: self.leases,  # type: ignore[arg-type,return-value]
            send_wakes=send,
            wake_callbacks=self.callbacks_woken.extend,
            announce=lambda ids: None,
            after=lambda seconds, work: None,
            clock_watch=self.clock_watch,
            registry=self.registry,
        )
