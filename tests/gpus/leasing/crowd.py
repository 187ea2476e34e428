"""A full class of servers with many waiting tenants, and a count of the Redis commands of a call."""

from __future__ import annotations

from collections.abc import Sequence

from tests.gpus.leasing.rig import POOL, Rig

CROWDED = tuple(f"a{number}" for number in range(6))
"""Models of the class that is full: more than a tenant waits for that is named by each of them."""
SIZES = (10, 60, 360)


def full_class(rig: Rig) -> None:
    """Its one slot is taken for good."""
    rig.server("full", 1, CROWDED)
    rig.push("runs", model="a0", tenant="t0000", place=0)
    rig.must_claim()


def one_who_waits_for(rig: Rig, models: Sequence[str], tenant: str = "z") -> None:
    """Forty tickets of each, later than all others. Of these jobs no forecast is kept: every claim does the
    same."""
    for name in models:
        rig.push(*(f"{tenant}-{name}-{number}y" for number in range(40)), model=name, tenant=tenant, place=5)


def crowd(rig: Rig, first: int, end: int, models: Sequence[str]) -> None:
    """Tenants that wait for each of these models, before all others."""
    tickets = [
        rig.ticket(f"{number}-{name}", tenant=f"t{number:04}", model=name, place=0)
        for number in range(first, end)
        for name in models
    ]
    for begin in range(0, len(tickets), 100):
        rig.leases.push(POOL, tickets[begin : begin + 100])


def costs(rig: Rig, crowded: Sequence[str]) -> list[tuple[int, int]]:
    """Commands of a claim, and of a release that hands on, of a job of `z`, as the crowd before it grows."""
    found, first = [], 0
    for count in SIZES:
        crowd(rig, first, count, crowded)
        first = count
        rig.client.config_resetstat()
        lease = rig.must_claim()
        claim = commands(rig)
        following = rig.release(lease, gpu_seconds=1.0, next_attempt_id=f"next{count}")
        assert following is not None
        assert (lease.model, lease.tenant, following.model, following.tenant) == ("z", "z", "z", "z")
        found.append((claim, commands(rig) - claim))
        rig.leases.confirm_ends([lease.ref])
    return found


def commands(rig: Rig) -> int:
    stats = rig.client.info("commandstats")
    return sum(
        stat["calls"]
        for name, stat in stats.items()
        if name not in ("cmdstat_config|resetstat", "cmdstat_info")
    )
