"""Under any arrivals and any switches by operators no job is lost, duplicated or overtaken for long."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks import affinity
from benchmarks.virtual_fleet import POOL, VirtualFleet, VirtualJob
from gpus.leasing.scripts import Client
from gpus.protocol import BANDS, QueueAlgorithm, ServerSpec, TenantSpec

HEAD_START = 60.0
SLOW = settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))


def test_affinity_saves_swaps_within_its_delay_bound(client: Client) -> None:
    without = affinity.measure(client, 500, patience=0.0)
    found = affinity.measure(client, 1200)
    assert found.violations == 0
    assert 1 - found.swaps / without.swaps >= affinity.GOAL


@pytest.mark.parametrize("patience", [3.0, 15.0])
def test_a_short_patience_is_kept_too(client: Client, patience: float) -> None:
    found = affinity.measure(client, 600, patience=patience)
    assert found.violations == 0
    assert found.longest_delay <= patience + affinity.RUN_SECONDS + affinity.SWAP_SECONDS


@SLOW
@given(seed=st.integers(0, 2**32), algorithm=st.sampled_from(["fair", "fifo"]))
def test_a_job_is_overtaken_only_within_the_head_start(client: Client, seed: int, algorithm: str) -> None:
    """For one tenant's jobs in one band; in a FIFO pool for all jobs. One model, so that no other rule lets a
    job pass."""
    chance = random.Random(seed)
    waiting: dict[str, VirtualJob] = {}

    def began(job: VirtualJob) -> None:
        del waiting[job.id]
        for other in waiting.values():
            same_line = other.tenant == job.tenant or algorithm == "fifo"
            if same_line and band(other) == band(job):
                lead = (level(other) - level(job)) * HEAD_START
                assert job.came_at - other.came_at <= max(0.0, lead) + 0.001

    def level(job: VirtualJob) -> int:
        """In the order that is asked about: of one tenant the whole priority, of all of them inside the
        band."""
        return job.priority if algorithm == "fair" else (job.priority - 1) % 3

    def band(job: VirtualJob) -> int:
        return max((job.priority - 1) // 3, granted[job.tenant])

    def arrive() -> None:
        jobs = []
        for _ in range(chance.randint(1, 6)):
            asked = chance.randint(1, 9)
            one = fleet.job(chance.choice(list(granted)), chance.uniform(1, 20), priority=asked)
            waiting[one.id] = one
            jobs.append(one)
        fleet.submit_all(jobs)
        fleet.after(chance.choice([0.0, 1.0, 30.0]), arrive)

    granted = {"a": 0, "b": 1} if algorithm == "fair" else {"a": 0, "b": 0}
    servers = [ServerSpec("s1", POOL, 2, ("model",))]
    fleet = VirtualFleet(
        client, f"overtaken-{seed}-{algorithm}", servers, algorithm=QueueAlgorithm(algorithm), on_start=began
    )
    fleet.tenants([TenantSpec(name, 1.0, BANDS[band]) for name, band in granted.items()])
    fleet.open()
    fleet.after(0.0, arrive)
    fleet.run(400.0)
    assert fleet.dispatches > 20


@SLOW
@given(seed=st.integers(0, 2**32))
def test_switching_under_load_neither_loses_nor_duplicates_jobs(client: Client, seed: int) -> None:
    """FIFO and fair, weights, bands, limits, pauses; and no tenant ever runs more than its limit lets
    start."""
    chance = random.Random(seed)
    names = ["a", "b", "c"]
    rules = {name: TenantSpec(name) for name in names}
    running: Counter[str] = Counter()
    started: list[str] = []
    all_jobs: list[str] = []

    def began(job: VirtualJob) -> None:
        started.append(job.id)
        running[job.tenant] += 1
        most = rules[job.tenant].max_running
        assert most is None or running[job.tenant] <= most
        assert job.tenant not in paused

    def ended(job: VirtualJob) -> None:
        running[job.tenant] -= 1

    def arrive() -> None:
        jobs = [
            fleet.job(
                chance.choice(names),
                chance.uniform(0.5, 9.0),
                model=chance.choice(["flux", "zimg"]),
                priority=chance.randint(1, 9),
            )
            for _ in range(chance.randint(1, 8))
        ]
        all_jobs.extend(job.id for job in jobs)
        fleet.submit_all(jobs)
        if fleet.now < 100:
            fleet.after(chance.uniform(0.0, 3.0), arrive)

    def switch() -> None:
        nonlocal paused
        if fleet.now < 100:
            name = chance.choice(names)
            weight, band, most = (
                chance.choice([0.2, 1, 7]),
                chance.choice(BANDS),
                chance.choice([None, 1, 2, 3]),
            )
            rules[name] = TenantSpec(name, weight, band, most)
            fleet.configure(chance.choice(list(QueueAlgorithm)))
            paused = set(chance.choice(["", "", "a", "bc"]))
            fleet.after(chance.uniform(0.1, 4.0), switch)
        else:
            paused = set()
            rules.update({name: replace(rules[name], max_running=chance.choice([None, 1])) for name in names})
        fleet.leases.set_paused_tenants(POOL, sorted(paused))
        fleet.tenants(list(rules.values()))

    paused: set[str] = set()
    servers = [ServerSpec("s1", POOL, 3, ("flux", "zimg")), ServerSpec("s2", POOL, 2, ("zimg",))]
    fleet = VirtualFleet(client, f"switching-{seed}", servers, on_start=began, on_end=ended)
    fleet.open()
    fleet.after(0.0, arrive)
    fleet.after(1.0, switch)
    fleet.after(101.0, switch)
    fleet.run(3000.0)
    assert sorted(started) == sorted(all_jobs)
    depth = fleet.leases.depth(POOL)
    assert (depth.waiting, depth.parked, fleet.running) == ({}, {}, 0)
