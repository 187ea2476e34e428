"""Waiting jobs without a ticket in the queue: the push after the commit failed, or Redis lost the ticket.

Tickets without a waiting job need no sweep: a claim drops them. A long queue is read over several runs. Jobs
of a pool that is not registered any more keep waiting in that pool's queue; a note names the pool.
"""

from __future__ import annotations

from datetime import timedelta

from foundation.database import statements
from gpus.leasing.contract import Leases
from gpus.protocol import Ticket
from gpus.registry import queries
from jobs.domain.states import JobState
from jobs.index_rebuild.tickets import FIRST_PLACE, Place, waiting_tickets
from jobs.models import Job
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_groups

YOUNG_SECONDS = 2.0
"""Time for a submit's own push."""
PAGES_PER_RUN = 50

_next_pool = statements.Read(
    lambda: (
        Job.objects.filter(state=JobState.QUEUED.value, pool__gt=statements.value(Job, "pool", "after"))
        .order_by("pool")
        .values_list("pool", "fleet")[:1]
    )
)


def _unregistered_pools(registered: set[str]) -> dict[str, str]:
    """Return the fleets, by pool, of unregistered pools that jobs wait for. One short read per pool, because
    all waiting jobs would be too many to read."""
    gone, last = {}, ""
    while (found := _next_pool.first(after=last)) is not None:
        last, fleet = found
        if last not in registered:
            gone[last] = fleet
    return gone


def _push_missing(pool: str, tickets: list[Ticket], leases: Leases, ports: Ports) -> int:
    reachable = leases.has_tickets(pool, tickets)
    missing = [ticket for ticket, found in zip(tickets, reachable, strict=True) if not found]
    if missing:
        ports.send_wakes(leases.push(pool, missing).wakes)
    return len(missing)


class ReconcileSweep:
    """Pushes missing tickets. Keeps the place where the last run stopped, by pool."""

    def __init__(self, *, pages_per_run: int = PAGES_PER_RUN) -> None:
        self._pages_per_run = pages_per_run
        self._cursors: dict[str, Place] = {}

    def __call__(self, ports: Ports) -> SweepCount:
        """looked: waiting jobs. repaired: tickets pushed."""
        before = int((ports.clock.now() - timedelta(seconds=YOUNG_SECONDS)).timestamp() * 1_000_000)
        gone = _unregistered_pools({pool.name for pool in queries.pools()})

        def step(fleet: str) -> SweepCount:
            count, leases = SweepCount(), ports.leases(fleet)
            for pool in queries.pools(fleet=fleet):
                count += self._walk(pool.name, before, leases, ports)
            for name, its_fleet in gone.items():
                if its_fleet == fleet:
                    note = SweepCount(notes=(f"{name}: not registered any more, its jobs wait",))
                    count += note + self._walk(name, before, leases, ports)
            return count

        return sweep_groups("reconcile", sorted({*ports.registry.fleets(), *gone.values()}), step)

    def _walk(self, pool: str, before_us: int, leases: Leases, ports: Ports) -> SweepCount:
        place = self._cursors.pop(pool, FIRST_PLACE)
        count = SweepCount()
        for _ in range(self._pages_per_run):
            tickets, following = waiting_tickets(pool, after=place, before_us=before_us)
            if tickets:
                count += SweepCount(len(tickets), _push_missing(pool, tickets, leases, ports))
            if following is None:
                return count
            place = following
        self._cursors[pool] = place
        return count + SweepCount(notes=(f"{pool}: continues at the next run",))
