"""What the line and the table of leases look like now; nothing changes by looking."""

from __future__ import annotations

from collections.abc import Sequence

from gpus.leasing import codec
from gpus.leasing.queue_forecast import MOST_SERVERS, Outlook, read_outlook
from gpus.leasing.values import PoolDepth, SlotView
from gpus.protocol import Ticket

_SERVERS_PER_CALL = 5


class Looking:
    """A part of `store.RedisLeases`."""

    def slots(self, server: str) -> list[SlotView]:
        return self.slots_of([server])

    def slots_of(self, servers: Sequence[str]) -> list[SlotView]:
        views: list[SlotView] = []
        for first in range(0, len(servers), _SERVERS_PER_CALL):
            views += map(codec.read_slot, self._run("slots", *servers[first : first + _SERVERS_PER_CALL]))
        return views

    def depth(self, pool: str) -> PoolDepth:
        return codec.read_depth(pool, self._run("depth", pool))

    def outlook(self, pool: str, ticket: Ticket, *, is_waiting: bool = True) -> Outlook:
        codec.check_tickets(pool, [ticket])
        known = codec.ticket_args(ticket) if is_waiting else ("", *codec.ticket_args(ticket)[1:])
        return read_outlook(self._run("outlook", pool, *known, ticket.place_us, MOST_SERVERS))

    def next_jobs(self, pool: str, most: int) -> list[str]:
        return list(self._run("ahead", pool, most))

    def estimate_seconds(self, model: str, tenant: str) -> float:
        return float(self._run("estimate", model, tenant))

    def _run(self, script: str, *args: codec.Arg) -> codec.Answer:
        raise NotImplementedError
