"""Many workers at once on one fleet, in real time: no slot twice, no ticket twice, none lost."""

from __future__ import annotations

import random
import threading
from collections import Counter

from gpus.leasing.scripts import Client
from gpus.leasing.store import RedisLeases
from gpus.protocol import Lease, PoolSpec, QueueAlgorithm, ReleaseMode, ServerSpec, Ticket
from tests.gpus.leasing.lease_harness import POOL

THREADS, OPERATIONS = 8, 500
SERVERS, SLOTS = 3, 4
MODELS, TENANTS = ("flux", "zimg"), ("a", "b", "c", "d")


class Floor:
    """Ground truth: the holder of each slot, and how often each job completed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.on_slot: dict[str, str] = {}
        self.running: set[str] = set()
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []

    def begin(self, lease: Lease) -> None:
        with self._lock:
            if lease.slot in self.on_slot:
                self.wrong.append(f"{lease.slot} was given twice")
            if lease.job_id in self.running or self.done[lease.job_id]:
                self.wrong.append(f"{lease.job_id} runs twice")
            self.on_slot[lease.slot] = lease.attempt_id
            self.running.add(lease.job_id)

    def end(self, lease: Lease, *, done: bool) -> None:
        """Before the slot is let go."""
        with self._lock:
            if self.on_slot.pop(lease.slot, None) != lease.attempt_id:
                self.wrong.append(f"{lease.slot} was not with {lease.attempt_id}")
            self.running.discard(lease.job_id)
            self.done[lease.job_id] += done


class Worker:
    """One thread. Ends its runs in every way, and pushes jobs meanwhile."""

    def __init__(self, number: int, leases: RedisLeases, floor: Floor) -> None:
        self.name = f"w{number}"
        self.leases, self.floor, self.chance = leases, floor, random.Random(number)
        self.pushed: dict[str, Ticket] = {}
        self.calls = 0
        self.lease: Lease | None = None

    def work(self) -> None:
        try:
            while self.calls < OPERATIONS:
                self.step()
            self.finish()
        except Exception as error:
            self.floor.wrong.append(f"{self.name}: {error!r}")

    def step(self) -> None:
        self.calls += 1
        if self.lease is None:
            if self.chance.random() < 0.5:
                self.push()
            self.take(self.leases.claim(POOL, worker=self.name, attempt_id=f"{self.name}-{self.calls}"))
        elif self.chance.random() < 0.1:
            assert self.leases.renew(self.name, [self.lease], []) == []
        else:
            self.end_lease(self.lease)

    def push(self) -> None:
        tickets = [
            self._ticket(f"{self.name}-{self.calls}-{number}") for number in range(self.chance.randint(1, 6))
        ]
        self.pushed |= {ticket.job_id: ticket for ticket in tickets}
        self.leases.push(POOL, [*tickets, tickets[0]])

    def _ticket(self, job: str) -> Ticket:
        model, tenant = self.chance.choice(MODELS), self.chance.choice(TENANTS)
        return Ticket(job, model, tenant, self.chance.randint(1, 9), self.calls)

    def take(self, lease: Lease | None) -> None:
        self.lease = lease
        if lease is not None:
            self.floor.begin(lease)

    def end_lease(self, lease: Lease) -> None:
        way = self.chance.choice(["ended"] * 8 + ["suspect", "free"])
        self.floor.end(lease, done=way != "free")
        following = f"{self.name}-{self.calls}-next" if way == "ended" else None
        self.take(
            self.leases.release(
                lease.ref, ReleaseMode(way), worker=self.name, next_attempt_id=following,
                gpu_seconds=self.chance.random(),
            )
        )  # fmt: skip
        if way == "free":
            self.leases.push(POOL, [Ticket(lease.job_id, lease.model, lease.tenant, lease.priority, 1)])
        else:
            self.leases.confirm_ends([lease.ref])
        if way == "suspect":
            self.leases.free_slot(lease.slot)

    def finish(self) -> None:
        if self.lease is not None:
            self.floor.end(self.lease, done=True)
            self.leases.release(self.lease.ref, ReleaseMode.ENDED, worker=self.name)
            self.leases.confirm_ends([self.lease.ref])


def test_eight_threads_neither_duplicate_nor_lose_jobs(client: Client, fleet: str) -> None:
    leases = RedisLeases(client, fleet)
    leases.begin_rebuild("test")
    leases.wipe("test")
    leases.configure_pool(PoolSpec(POOL))
    for number in range(SERVERS):
        models = MODELS if number else MODELS[:1]
        leases.configure_server(ServerSpec(f"s{number}", POOL, SLOTS, models))
    leases.open_generation("test")
    floor = Floor()
    workers = [Worker(number, leases, floor) for number in range(THREADS)]
    threads = [threading.Thread(target=worker.work) for worker in workers]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for algorithm in QueueAlgorithm:
            leases.configure_pool(PoolSpec(POOL, algorithm, affinity_patience_seconds=0.01))
            leases.fill()
            threads[0].join(0.05)
    assert floor.wrong == []
    assert sum(worker.calls for worker in workers) >= THREADS * OPERATIONS

    tickets = {job: ticket for worker in workers for job, ticket in worker.pushed.items()}
    waiting = [
        job
        for job, there in zip(tickets, leases.has_tickets(POOL, list(tickets.values())), strict=True)
        if there
    ]
    assert set(waiting) | set(floor.done) == set(tickets)
    assert not set(waiting) & {job for job, times in floor.done.items() if times}
    assert set(floor.done.values()) <= {0, 1}
    depth = leases.depth(POOL)
    assert sum(depth.waiting.values()) == len(waiting)
    assert depth.slots == {"free": SERVERS * SLOTS}
    drained = 0
    while lease := leases.claim(POOL, worker="last", attempt_id=f"last-{drained}"):
        leases.release(lease.ref, ReleaseMode.FREE, worker="last")
        drained += 1
    assert drained == len(waiting)
