"""Tickets that Redis did not take: the process that has them pushes them again every second until it does.

Only in memory: the reconciler stands behind it, should the process die with them, or have too many.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import structlog

from gpus.errors import LeasingUnavailable
from gpus.protocol import Ticket
from jobs.ports import Ports

log = structlog.get_logger()

AGAIN_SECONDS = 1.0
MAX_TICKETS = 10_000


class EnqueueRetries:
    """Of one process."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, str], dict[str, Ticket]] = {}
        self._is_armed = False

    def add(self, fleet: str, pool: str, tickets: Sequence[Ticket]) -> None:
        with self._lock:
            room = MAX_TICKETS - sum(map(len, self._waiting.values()))
            if fitting := tickets[: max(0, room)]:
                of_pool = self._waiting.setdefault((fleet, pool), {})
                of_pool.update({ticket.job_id: ticket for ticket in fitting})
            arm, self._is_armed = not self._is_armed, True
        if arm:
            self._ports.after(AGAIN_SECONDS, self._push)

    def _push(self) -> None:
        with self._lock:
            taken, self._waiting = self._waiting, {}
        for (fleet, pool), tickets in taken.items():
            try:
                pushed = self._ports.leases(fleet).push(pool, list(tickets.values()))
            except LeasingUnavailable:
                with self._lock:
                    self._waiting[fleet, pool] = {**tickets, **self._waiting.get((fleet, pool), {})}
                continue
            except Exception:  # not Redis: these would fail for ever; the others and their timer go on
                log.exception("late_tickets_left_to_the_reconciler", pool=pool, tickets=len(tickets))
                continue
            log.info("late_tickets_pushed", pool=pool, tickets=len(tickets))
            self._ports.send_wakes(pushed.wakes)
        with self._lock:
            self._is_armed = bool(self._waiting)
        if self._is_armed:
            self._ports.after(AGAIN_SECONDS, self._push)


_late: dict[Ports, EnqueueRetries] = {}


def push_later(fleet: str, pool: str, tickets: Sequence[Ticket], ports: Ports) -> None:
    """Best effort, returns at once."""
    late = _late.get(ports)
    if late is None:
        late = _late.setdefault(ports, EnqueueRetries(ports))
    late.add(fleet, pool, tickets)
