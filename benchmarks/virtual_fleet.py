"""A fleet of slots under virtual time, on the real scripts: shows the decisions of the queue without waiting.

Jobs end when the clock reaches their end; the slot is released with its next ticket in the same call, as
workers do. The caller defines a job's duration, once its slot is known."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpus.leasing.store import RedisLeases
from gpus.protocol import Lease, PoolSpec, QueueAlgorithm, ReleaseMode, ServerSpec, TenantSpec, Ticket

POOL, WORKER = "bench", "bench"
START_MS = 1_700_000_000_000


@dataclass(slots=True)
class VirtualJob:
    """A job under virtual time. seconds: its duration. near: a server that it prefers. place_us: its place in
    the queue; None: that of its submission. The rest is filled in later. Times in virtual seconds."""

    id: str
    tenant: str
    model: str
    priority: int
    seconds: float
    came_at: float
    started_at: float = -1.0
    ended_at: float = -1.0
    slot: str = ""
    near: str | None = None
    place_us: int | None = None


Cost = Callable[[VirtualJob, str | None], float]
"""Seconds that the job holds its slot; the second argument is the model that ran there last."""


MakeLeases = Callable[[Any, str, Callable[[], int]], RedisLeases]
"""By client, fleet and clock (milliseconds)."""


def plain_leases(client: Any, name: str, now_ms: Callable[[], int]) -> RedisLeases:
    return RedisLeases(client, name, now_ms=now_ms)


def run_time(job: VirtualJob, warm: str | None) -> float:
    """The default cost: the job's own seconds."""
    return job.seconds


@dataclass
class VirtualFleet:
    """Servers name their pools; pool_of returns that of a model. on_start, on_end: called for every job; they
    may submit. renew_at_once: leases per renewal call, as of one worker process."""

    client: Any
    name: str
    servers: Sequence[ServerSpec]
    algorithm: QueueAlgorithm = QueueAlgorithm.FAIR
    patience_seconds: float = 30.0
    renew_seconds: float = 5.0
    renew_at_once: int = 500
    pool_of: Callable[[str], str] = lambda model: POOL
    make_leases: MakeLeases = plain_leases
    cost: Cost = run_time
    on_start: Callable[[VirtualJob], None] = lambda job: None
    on_end: Callable[[VirtualJob], None] = lambda job: None
    now: float = 0.0
    waiting: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pools = sorted({server.pool for server in self.servers})
        self.leases = self.make_leases(self.client, self.name, lambda: START_MS + int(self.now * 1000))
        self.leases.begin_rebuild(WORKER)
        self.leases.wipe(WORKER)
        self.configure(self.algorithm)
        self.leases.open_generation(WORKER)
        self.slots = sum(server.slots for server in self.servers)
        self.jobs: dict[str, VirtualJob] = {}
        self.warm: dict[str, str] = {}
        self.dispatches = 0
        self._place = 0
        self._numbers = itertools.count()
        self._running: list[tuple[float, int, Lease]] = []
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self.after(self.renew_seconds, self._renew)

    def open(self) -> None:
        """Register the servers."""
        for server in self.servers:
            self.leases.configure_server(server)
        self._claim_all()

    def configure(self, algorithm: QueueAlgorithm) -> None:
        for pool in self.pools:
            self.leases.configure_pool(PoolSpec(pool, algorithm, self.patience_seconds))

    def tenants(self, tenants: Sequence[TenantSpec]) -> None:
        self.leases.set_tenants(tenants)
        self._claim_all()

    def submit(
        self, tenant: str, seconds: Iterable[float], *, model: str = "model", priority: int = 5
    ) -> list[VirtualJob]:
        jobs = [self.job(tenant, one, model=model, priority=priority) for one in seconds]
        self.submit_all(jobs)
        return jobs

    def job(self, tenant: str, seconds: float, *, model: str = "model", priority: int = 5) -> VirtualJob:
        """Return a job that is not submitted yet."""
        number = next(self._numbers)
        return VirtualJob(f"job-{number:09}", tenant, model, priority, seconds, self.now)

    def submit_all(self, jobs: Sequence[VirtualJob]) -> None:
        """Submit in one call per pool, in this order."""
        tickets: dict[str, list[Ticket]] = {}
        for job in jobs:
            self.jobs[job.id] = job
            self.waiting[job.tenant] = self.waiting.get(job.tenant, 0) + 1
            place_us = self._place_us() if job.place_us is None else job.place_us
            ticket = Ticket(job.id, job.model, job.tenant, job.priority, place_us, near_server=job.near)
            tickets.setdefault(self.pool_of(job.model), []).append(ticket)
        for pool, some in tickets.items():
            self.leases.push(pool, some)
            if len(self._running) < self.slots:
                self._claim(pool)

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Call `act` after so many virtual seconds."""
        heapq.heappush(self._due, (self.now + seconds, next(self._numbers), act))

    def run(self, until: float) -> None:
        """Process all ends and due actions until then, in order."""
        while True:
            end = self._running[0][0] if self._running else float("inf")
            due = self._due[0][0] if self._due else float("inf")
            if min(end, due) > until:
                self.now = until
                return
            if due <= end:
                self.now, _, act = heapq.heappop(self._due)
                act()
            else:
                self.now, _, lease = heapq.heappop(self._running)
                self._end(lease)

    @property
    def running(self) -> int:
        return len(self._running)

    def _end(self, lease: Lease) -> None:
        job = self.jobs.pop(lease.job_id)
        job.ended_at = self.now
        self.on_end(job)
        following = self.leases.release(
            lease.ref,
            ReleaseMode.ENDED,
            worker=WORKER,
            gpu_seconds=self.now - job.started_at,
            next_attempt_id=f"a{next(self._numbers)}",
        )
        if following is not None:
            self._start(following)
        self.leases.confirm_ends([lease.ref])
        if following is None:
            self._claim(lease.pool)

    def _renew(self) -> None:
        held = [lease for _, _, lease in self._running]
        for first in range(0, len(held), self.renew_at_once):
            lost = self.leases.renew(WORKER, held[first : first + self.renew_at_once], [])
            assert not lost
        self.after(self.renew_seconds, self._renew)

    def _claim_all(self) -> None:
        for pool in self.pools:
            self._claim(pool)

    def _claim(self, pool: str) -> None:
        while lease := self.leases.claim(pool, worker=WORKER, attempt_id=f"a{next(self._numbers)}"):
            self._start(lease)

    def _start(self, lease: Lease) -> None:
        job = self.jobs[lease.job_id]
        assert job.started_at < 0, f"{job.id} was started twice"
        seconds = self.cost(job, self.warm.get(lease.slot))
        self.dispatches += 1
        self.waiting[job.tenant] -= 1
        self.warm[lease.slot] = job.model
        job.started_at, job.slot = self.now, lease.slot
        heapq.heappush(self._running, (self.now + seconds, next(self._numbers), lease))
        self.on_start(job)

    def _place_us(self) -> int:
        """In order of submission, also within one moment of the clock."""
        self._place = max(self._place + 1, START_MS * 1000 + int(self.now * 1_000_000))
        return self._place
