"""A lease layer in memory for tests of what stands above it: a line, no slots unless told, and outages."""

from __future__ import annotations

from collections.abc import Sequence

from gpus.errors import LeasingUnavailable
from gpus.leasing.contract import PoolDepth, Pushed, SlotView, Wakes
from gpus.protocol import PoolSpec, PushOutcome, PushResult, ServerSpec, TenantSpec, Ticket


class FakeLeases:
    """away: Redis does not answer. free_slots: so many pushed tickets are `leased`. views: what
    `slots` answers, as states by server."""

    def __init__(self) -> None:
        self.away = False
        self.free_slots = 0
        self.line: list[Ticket] = []
        self.pools: dict[str, PoolSpec] = {}
        self.servers: dict[str, ServerSpec] = {}
        self.paused: dict[str, set[str]] = {}
        self.tenants: dict[str, TenantSpec] = {}
        self.views: dict[str, list[str]] = {}

    def push(self, pool: str, tickets: Sequence[Ticket]) -> Pushed:
        self._answer()
        return Pushed(tuple(self._push(ticket) for ticket in tickets), (Wakes(pool, None, len(tickets)),))

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

    def forget_server(self, server: str) -> None:
        self._answer()
        self.servers.pop(server, None)

    def set_tenants(self, tenants: Sequence[TenantSpec]) -> tuple[Wakes, ...]:
        self._answer()
        self.tenants |= {tenant.name: tenant for tenant in tenants}
        return (Wakes("unparked", None, 1),) if tenants else ()

    def set_paused_tenants(self, pool: str, tenants: Sequence[str]) -> tuple[Wakes, ...]:
        self._answer()
        self.paused[pool] = set(tenants)
        return ()

    def fill(self) -> tuple[Wakes, ...]:
        self._answer()
        return (Wakes("filled", None, 1),)

    def slots(self, server: str) -> list[SlotView]:
        self._answer()
        states = self.views.get(server, [])
        return [
            SlotView(f"{server}/{at}", "", state, False, None, None, None, 0, None, 0.0, None)
            for at, state in enumerate(states)
        ]

    def generation(self) -> str | None:
        self._answer()
        return "g1"

    def generation_age_seconds(self) -> float | None:
        self._answer()
        return 60.0

    def depth(self, pool: str) -> PoolDepth:
        self._answer()
        waiting: dict[str, int] = {}
        for ticket in self.line:
            waiting[ticket.model] = waiting.get(ticket.model, 0) + 1
        slots = sum(server.slots for server in self.servers.values() if server.pool == pool)
        return PoolDepth(pool, waiting, 0, {"free": slots} if slots else {})

    def estimate_seconds(self, model: str, tenant: str) -> float:
        self._answer()
        return 2.0

    def _push(self, ticket: Ticket) -> PushResult:
        if ticket.job_id in [other.job_id for other in self.line]:
            return PushResult(PushOutcome.DUPLICATE, 1)
        self.line.append(ticket)
        if self.free_slots:
            self.free_slots -= 1
            return PushResult(PushOutcome.LEASED, 1)
        return PushResult(PushOutcome.QUEUED, len(self.line))

    def _answer(self) -> None:
        if self.away:
            raise LeasingUnavailable("away")
