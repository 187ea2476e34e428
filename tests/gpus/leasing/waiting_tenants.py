"""A full class of servers with many waiting tenants, and a count of the Redis commands of a call."""

from __future__ import annotations

from collections.abc import Sequence

from tests.gpus.leasing.lease_harness import POOL, LeaseHarness

FULL_MODELS = tuple(f"a{number}" for number in range(6))
"""Models of the class whose servers are all busy: more than the number up to which a tenant is listed under
each of its models."""
SIZES = (10, 60, 360)


def full_class(harness: LeaseHarness) -> None:
    """Its one slot is taken for good."""
    harness.server("full", 1, FULL_MODELS)
    harness.push("runs", model="a0", tenant="t0000", place=0)
    harness.must_claim()


def push_late_tenant(harness: LeaseHarness, models: Sequence[str], tenant: str = "z") -> None:
    """Forty tickets of each model, later than all others. These jobs have no forecast, so all claims do the
    same."""
    for name in models:
        harness.push(
            *(f"{tenant}-{name}-{number}y" for number in range(40)), model=name, tenant=tenant, place=5
        )


def push_waiting_tenants(harness: LeaseHarness, first: int, end: int, models: Sequence[str]) -> None:
    """Tenants that wait for each of these models, before all others."""
    tickets = [
        harness.ticket(f"{number}-{name}", tenant=f"t{number:04}", model=name, place=0)
        for number in range(first, end)
        for name in models
    ]
    for begin in range(0, len(tickets), 100):
        harness.leases.push(POOL, tickets[begin : begin + 100])


def command_counts(harness: LeaseHarness, full_models: Sequence[str]) -> list[tuple[int, int]]:
    """Redis commands of a claim and of a release with a next job, for `z`, by the number of tenants."""
    found, first = [], 0
    for count in SIZES:
        push_waiting_tenants(harness, first, count, full_models)
        first = count
        harness.client.config_resetstat()
        lease = harness.must_claim()
        claim = commands(harness)
        following = harness.release(lease, gpu_seconds=1.0, next_attempt_id=f"next{count}")
        assert following is not None
        assert (lease.model, lease.tenant, following.model, following.tenant) == ("z", "z", "z", "z")
        found.append((claim, commands(harness) - claim))
        harness.leases.confirm_ends([lease.ref])
    return found


def commands(harness: LeaseHarness) -> int:
    stats = harness.client.info("commandstats")
    return sum(
        stat["calls"]
        for name, stat in stats.items()
        if name not in ("cmdstat_config|resetstat", "cmdstat_info")
    )
