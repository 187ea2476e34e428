"""Waiting jobs without a ticket: the push after the commit failed, or Redis forgot.

Tickets without a waiting job need no sweep: a claim drops them. A long line is walked over several runs.
"""

from __future__ import annotations

from datetime import timedelta

from gpus import queries as fleet_queries
from gpus.leasing.contract import Leases
from gpus.protocol import Ticket
from jobs.services.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_fleets
from jobs.sweeps.line import START, Place, waiting_tickets

YOUNG_SECONDS = 2.0
"""A submit's own push is given this long."""
PAGES_PER_RUN = 50

_went_to: dict[str, Place] = {}
"""Where the last run stopped, by pool."""


def sweep(ports: Ports) -> SweepCount:
    """looked: waiting jobs. repaired: tickets pushed."""
    before = int((ports.clock.now() - timedelta(seconds=YOUNG_SECONDS)).timestamp() * 1_000_000)

    def step(fleet: str, leases: Leases) -> SweepCount:
        count = SweepCount()
        for pool in fleet_queries.pools(fleet=fleet):
            count += _walk(pool.name, before, leases, ports)
        return count

    return sweep_fleets("reconcile", ports, step)


def _walk(pool: str, before_us: int, leases: Leases, ports: Ports) -> SweepCount:
    place = _went_to.pop(pool, START)
    count = SweepCount()
    for _ in range(PAGES_PER_RUN):
        tickets, following = waiting_tickets(pool, after=place, before_us=before_us)
        if tickets:
            count += SweepCount(len(tickets), _push_missing(pool, tickets, leases, ports))
        if following is None:
            return count
        place = following
    _went_to[pool] = place
    return count + SweepCount(notes=(f"{pool}: goes on at the next run",))


def _push_missing(pool: str, tickets: list[Ticket], leases: Leases, ports: Ports) -> int:
    reachable = leases.has_tickets(pool, tickets)
    missing = [ticket for ticket, found in zip(tickets, reachable, strict=True) if not found]
    if missing:
        ports.send_wakes(leases.push(pool, missing).wakes)
    return len(missing)
