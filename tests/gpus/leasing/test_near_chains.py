"""Chains of jobs, each near the one before, on eight servers that are busy for 70 % of the time."""

from __future__ import annotations

import random
from typing import Any

from benchmarks.virtual_fleet import POOL, START_MS, VirtualFleet, VirtualJob
from gpus.protocol import DesiredState, ServerSpec, split_slot

SERVERS, LOAD, LENGTH, MEAN_SECONDS, SECONDS = 8, 0.7, 5, 4.0, 900.0
EDGE_SECONDS = 0.03
"""From the end of a job to the ticket of the next one."""


class Chains:
    """Plays chains. waits: of all jobs, seconds. stayed: whether each later one ran where its last did."""

    def __init__(self, client: Any, name: str, *, near: bool) -> None:
        servers = [
            ServerSpec(f"s{number}", POOL, 1, ("model",), DesiredState.ON, None) for number in range(SERVERS)
        ]
        self.chance = random.Random(7)  # each chain draws from its own, so that both cases have the same jobs
        self.chances: dict[str, random.Random] = {}
        self.near, self.waits, self.stayed = near, list[float](), list[bool]()
        self.fleet = VirtualFleet(client, name, servers, on_start=self.started, on_end=self.ended)
        self.before: dict[str, str] = {}
        self.left: dict[str, int] = {}
        self.fleet.open()
        self.fleet.after(0.0, self.arrive)
        self.fleet.run(SECONDS)

    def arrive(self) -> None:
        own = random.Random(self.chance.random())
        job = self.fleet.job(f"t{own.randrange(4)}", own.expovariate(1 / MEAN_SECONDS))
        self.chances[job.id] = own
        job.place_us = START_MS * 1000 + int(self.fleet.now * 1e6)
        self.left[job.id] = LENGTH - 1
        self.fleet.submit_all([job])
        rate = LOAD * SERVERS / (LENGTH * MEAN_SECONDS)
        self.fleet.after(self.chance.expovariate(rate), self.arrive)

    def started(self, job: VirtualJob) -> None:
        self.waits.append(job.started_at - job.came_at)
        if before := self.before.get(job.id):
            self.stayed.append(split_slot(job.slot)[0] == before)

    def ended(self, job: VirtualJob) -> None:
        if left := self.left.pop(job.id):
            self.fleet.after(EDGE_SECONDS, lambda: self.next(job, left - 1))

    def next(self, before: VirtualJob, left: int) -> None:
        own = self.chances.pop(before.id)
        job = self.fleet.job(before.tenant, own.expovariate(1 / MEAN_SECONDS))
        self.chances[job.id] = own
        server, _ = split_slot(before.slot)
        job.near, job.place_us = server if self.near else None, before.place_us
        self.before[job.id], self.left[job.id] = server, left
        self.fleet.submit_all([job])

    @property
    def share(self) -> float:
        return sum(self.stayed) / len(self.stayed)

    @property
    def p99_wait(self) -> float:
        return sorted(self.waits)[int(len(self.waits) * 0.99)]


def test_chains_stay_on_their_server_and_wait_little_longer(client: Any) -> None:
    near, free = Chains(client, "near", near=True), Chains(client, "free", near=False)
    assert len(near.waits) > 1_000
    assert near.share > 0.8
    assert free.share < 0.5, "otherwise the preference shows nothing"
    assert near.p99_wait <= free.p99_wait + 2.0
