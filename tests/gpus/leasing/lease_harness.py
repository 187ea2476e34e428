"""A fleet of leases on a real server, under a clock that the test moves."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from gpus.leasing import keys
from gpus.leasing.scripts import Client
from gpus.leasing.store import RedisLeases
from gpus.leasing.values import PushResult, Wakes
from gpus.protocol import (
    DesiredState,
    Lease,
    LeaseRef,
    PoolSpec,
    QueueAlgorithm,
    ReleaseMode,
    ServerSpec,
    TenantSpec,
    Ticket,
)

POOL, MODEL, WORKER = "pool", "flux", "w1"
START_MS = 1_700_000_000_000


class LeaseHarness:
    """`leases` is under test; the methods are shortcuts for tests."""

    def __init__(self, client: Client, fleet: str, **knobs: Any) -> None:
        self.client: Any = client
        self.now_ms = START_MS
        self.prefix = keys.prefix(fleet)
        self.leases = RedisLeases(client, fleet, now_ms=lambda: self.now_ms, **knobs)
        self.tickets: dict[str, Ticket] = {}
        self.configured_tenants: set[str] = set()
        self._numbers = itertools.count(1)

    def open(self) -> LeaseHarness:
        """An empty, whole index with one pool."""
        assert self.leases.begin_rebuild("harness")
        assert self.leases.wipe("harness")
        self.leases.configure_pool(PoolSpec(POOL))
        self.leases.open_generation("harness")
        return self

    def wait(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1000)

    def pool(self, algorithm: str = "fair", *, patience: float = 30.0, name: str = POOL) -> None:
        self.leases.configure_pool(PoolSpec(name, QueueAlgorithm(algorithm), patience))

    def server(
        self,
        name: str = "s1",
        slots: int = 1,
        models: Sequence[str] = (MODEL,),
        *,
        desired: str = "on",
        host: str | None = None,
        pool: str = POOL,
    ) -> tuple[Wakes, ...]:
        spec = ServerSpec(name, pool, slots, tuple(models), DesiredState(desired), host)
        return self.leases.configure_server(spec)

    def tenant(self, name: str, *, weight: float = 1.0, band: str = "urgent", most: int | None = None) -> Any:
        self.configured_tenants.add(name)
        return self.leases.set_tenants([TenantSpec(name, weight, band, most)])

    def ticket(
        self,
        job: str,
        *,
        model: str = MODEL,
        tenant: str = "t1",
        priority: int = 5,
        place: int | None = None,
        avoid: str | None = None,
        near: str | None = None,
    ) -> Ticket:
        """place: seconds after the start of the test; by default now, later than all others. A tenant without
        rules that asks for the highest band gets it."""
        if priority <= 3 and tenant not in self.configured_tenants:
            self.tenant(tenant)
        if place is None:
            place_us = self.now_ms * 1000 + next(self._numbers)
        else:
            place_us = START_MS * 1000 + place * 1_000_000
        self.tickets[job] = Ticket(job, model, tenant, priority, place_us, avoid, near)
        return self.tickets[job]

    def push(self, *jobs: str, **ticket: Any) -> list[PushResult]:
        tickets = [self.ticket(job, **ticket) for job in jobs]
        return list(self.leases.push(POOL, tickets).results)

    def claim(
        self,
        attempt: str | None = None,
        *,
        worker: str = WORKER,
        host: str | None = None,
        pool: str = POOL,
        warm: Sequence[str] | None = None,
    ) -> Lease | None:
        attempt = attempt or f"a{next(self._numbers)}"
        return self.leases.claim(pool, worker=worker, attempt_id=attempt, host=host, warm=warm)

    def must_claim(self, attempt: str | None = None, **how: Any) -> Lease:
        lease = self.claim(attempt, **how)
        assert lease is not None
        return lease

    def release(self, lease: Lease, mode: str = "ended", *, worker: str = WORKER, **how: Any) -> Lease | None:
        return self.leases.release(lease.ref, ReleaseMode(mode), worker=worker, **how)

    def next(self, lease: Lease, seconds: float | None = 1.0, **how: Any) -> Lease:
        """Ends the lease and takes the next ticket for its slot; the end is committed at once."""
        attempt = f"a{next(self._numbers)}"
        following = self.release(lease, gpu_seconds=seconds, next_attempt_id=attempt, **how)
        assert following is not None
        self.leases.confirm_ends([lease.ref])
        return following

    def run_all(self, seconds: float = 1.0) -> list[str]:
        """Runs the whole line on one free slot, one job after the other; their ids in order."""
        order = []
        lease = self.claim()
        while lease is not None:
            order.append(lease.job_id)
            following = self.release(lease, gpu_seconds=seconds, next_attempt_id=f"a{next(self._numbers)}")
            self.leases.confirm_ends([lease.ref])
            lease = following
        return order

    def states(self, server: str = "s1") -> list[str]:
        return [view.state for view in self.leases.slots(server)]

    def waiting(self, pool: str = POOL) -> int:
        return sum(self.leases.depth(pool).waiting.values())

    def in_line(self, job: str) -> bool:
        """In line, leased or settling."""
        return self.leases.has_tickets(POOL, [self.tickets[job]])[0]

    def all_keys(self) -> set[str]:
        """Reads that the product itself never makes."""
        found = self.client.scan_iter(match=self.prefix.replace("[", "\\[") + "*", count=1000)
        return {str(name).removeprefix(self.prefix) for name in found}


def ref_of(lease: Lease, **changes: Any) -> LeaseRef:
    ref = {"slot": lease.slot, "job_id": lease.job_id, "attempt_id": lease.attempt_id, "epoch": lease.epoch}
    return LeaseRef(**(ref | changes))


def counts(wakes: Sequence[Wakes]) -> dict[tuple[str, str | None], int]:
    return {(wake.pool, wake.host): wake.count for wake in wakes}
