"""A lease layer in memory: a queue, the slots that a test sets, and outages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpus.errors import LeasingUnavailable
from gpus.leasing.values import (
    Circuits,
    Heartbeat,
    Measured,
    ParkedFor,
    PoolDepth,
    Pushed,
    PushResult,
    QueueStatus,
    SlotView,
    SpareSlots,
    StartsIn,
    Summary,
    Tokens,
    Wakes,
)
from gpus.protocol import CircuitKind, PoolSpec, PushOutcome, ServerSpec, TenantSpec, Ticket


class FakeLeases:
    """away: Redis does not answer. free_slots: so many pushed tickets are `leased`. views: what
    `slots` answers, as states by server. failing: models of which all circuits are open."""

    def __init__(self) -> None:
        self.away = False
        self.free_slots = 0
        self.most_running: int | None = None
        self.failing: frozenset[str] = frozenset()
        self.line: list[Ticket] = []
        self.pools: dict[str, PoolSpec] = {}
        self.servers: dict[str, ServerSpec] = {}
        self.paused: dict[str, set[str]] = {}
        self.over_quota: dict[str, set[str]] = {}
        self.tokens: dict[str, int] = {}
        self.tenants: dict[str, TenantSpec] = {}
        self.views: dict[str, list[str]] = {}
        self.heard: dict[str, Heartbeat] = {}
        self.measured: dict[str, list[Measured]] = {}
        self.summaries: dict[str, list[Summary]] = {}
        self.broken = Circuits()
        self.resets: list[tuple[str, str, str]] = []

    def push(self, pool: str, tickets: Sequence[Ticket]) -> Pushed:
        self._answer()
        results = tuple(self._push(ticket) for ticket in tickets)
        return Pushed(results, (Wakes(pool, None, len(tickets)),), self.failing)

    def remove(self, pool: str, ticket: Ticket) -> bool:
        self._answer()
        stood = ticket.job_id in [other.job_id for other in self.line]
        self.line = [other for other in self.line if other.job_id != ticket.job_id]
        return stood

    def has_tickets(self, pool: str, tickets: Sequence[Ticket]) -> list[bool]:
        self._answer()
        return [ticket.job_id in [other.job_id for other in self.line] for ticket in tickets]

    def configure_pool(self, pool: PoolSpec) -> None:
        self._answer()
        self.pools[pool.name] = pool

    def configure_server(self, server: ServerSpec) -> tuple[Wakes, ...]:
        self._answer()
        self.servers[server.name] = server
        return (Wakes(server.pool, server.host, server.slots),)

    def quarantine(self, slot: str, attempt_id: str, *, pool: str = "") -> bool:
        self._answer()
        return False

    def forget_server(self, server: str) -> None:
        self._answer()
        self.servers.pop(server, None)

    def set_tenants(self, tenants: Sequence[TenantSpec]) -> tuple[Wakes, ...]:
        self._answer()
        self.tenants |= {tenant.name: tenant for tenant in tenants}
        return (Wakes("unparked", None, 1),) if tenants else ()

    def record_heartbeat(
        self, server: str, report: Mapping[str, Any], telemetry: Mapping[str, Any] | None = None
    ) -> None:
        self._answer()
        self.heard[server] = Heartbeat(0.0, report)
        if telemetry is not None:
            self.measured.setdefault(server, []).insert(0, Measured(0.0, telemetry))

    def heartbeats(self, servers: Sequence[str]) -> dict[str, Heartbeat]:
        self._answer()
        return {name: beat for name, beat in self.heard.items() if name in servers}

    def telemetry(self, server: str, within_seconds: float) -> list[Measured]:
        self._answer()
        return [one for one in self.measured.get(server, []) if one.age_seconds <= within_seconds]

    def telemetry_summaries(self, server: str, within_seconds: float) -> list[Summary]:
        self._answer()
        return [one for one in self.summaries.get(server, []) if one.age_seconds <= within_seconds]

    def set_paused_tenants(
        self, pool: str, tenants: Sequence[str], *, reason: ParkedFor = ParkedFor.PAUSE
    ) -> tuple[Wakes, ...]:
        self._answer()
        kept = self.paused if reason is ParkedFor.PAUSE else self.over_quota
        kept[pool] = set(tenants)
        return ()

    def take_tokens(self, tenant: str, tokens: int, *, per_second: float, burst: int) -> Tokens:
        self._answer()
        left = self.tokens.setdefault(tenant, burst)
        taken = left >= tokens
        if taken:
            self.tokens[tenant] = left = left - tokens
        return Tokens(
            taken, left, 0.0 if taken else (tokens - left) / per_second, (burst - left) / per_second
        )

    def spare_slots(self, pool: str, tenant: str, models: Sequence[str]) -> SpareSlots:
        self._answer()
        return SpareSlots([self.free_slots for _ in models], self.most_running, self.failing)

    def free_slot(self, slot: str) -> tuple[Wakes, ...]:
        self._answer()
        return ()

    def fill(self) -> tuple[Wakes, ...]:
        self._answer()
        return (Wakes("filled", None, 1),)

    def slots(self, server: str) -> list[SlotView]:
        return self.slots_of([server])

    def slots_of(self, servers: Sequence[str]) -> list[SlotView]:
        self._answer()
        return [
            SlotView(f"{server}/{at}", "", state, False, None, None, None, 0, None, 0.0, None)
            for server in servers
            for at, state in enumerate(self.views.get(server, []))
        ]

    def generation(self) -> str | None:
        self._answer()
        return "g1"

    def generation_age_seconds(self) -> float | None:
        self._answer()
        return 60.0

    def fleet_time_us(self) -> int | None:
        self._answer()
        return 0

    def unsure_age_seconds(self) -> float | None:
        return self.generation_age_seconds()

    def depth(self, pool: str) -> PoolDepth:
        self._answer()
        waiting: dict[str, int] = {}
        for ticket in self.line:
            waiting[ticket.model] = waiting.get(ticket.model, 0) + 1
        slots = sum(server.slots for server in self.servers.values() if server.pool == pool)
        return PoolDepth(pool, waiting, 0, {"free": slots} if slots else {})

    def queue_status(self, pool: str, ticket: Ticket, *, is_waiting: bool = True) -> QueueStatus:
        self._answer()
        standing = [other.job_id for other in self.line]
        in_line = ticket.job_id in standing
        at = standing.index(ticket.job_id) + 1 if in_line else len(standing) + 1
        slots = {"free": self.free_slots, "busy": 0 if self.free_slots else 2}
        return QueueStatus(
            in_line=in_line, position=at, slots=slots, guess_seconds=at * 2.0, mean_seconds=2.0,
            working_slots=2, servers=1, looked_at=1, asked_seconds=1.0, p90_log=0.7,
        )  # fmt: skip

    def next_jobs(self, pool: str, most: int) -> list[str]:
        self._answer()
        return [ticket.job_id for ticket in self.line[:most]]

    def circuits(self, pool: str, servers: Sequence[str]) -> Circuits:
        self._answer()
        return self.broken

    def reset_circuit(self, kind: CircuitKind, name: str, pool: str) -> tuple[bool, tuple[Wakes, ...]]:
        self._answer()
        self.resets.append((kind.value, name, pool))
        self.broken = Circuits()
        return True, (Wakes(pool, None, 1),)

    def estimate_seconds(self, model: str, tenant: str) -> float:
        self._answer()
        return 2.0

    def _push(self, ticket: Ticket) -> PushResult:
        if ticket.job_id in [other.job_id for other in self.line]:
            return PushResult(PushOutcome.DUPLICATE, 1, StartsIn(2.0, 4.0, 0))
        self.line.append(ticket)
        if self.free_slots:
            self.free_slots -= 1
            return PushResult(PushOutcome.LEASED, 1)
        at = len(self.line)
        return PushResult(PushOutcome.QUEUED, at, StartsIn(at * 2.0, at * 4.0, 0))

    def _answer(self) -> None:
        if self.away:
            raise LeasingUnavailable("away")
