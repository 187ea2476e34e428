"""A lower band gets one sixteenth of the GPU-seconds under any arrivals."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from benchmarks.virtual_fleet import POOL, VirtualFleet, VirtualJob
from gpus.leasing.scripts import Client
from gpus.protocol import ServerSpec, TenantSpec
from tests.gpus.leasing.lease_harness import LeaseHarness

GRANTED = [TenantSpec(name, 1.0, "urgent") for name in ("urgent", "normal", "bulk")]
PRIORITY = {"urgent": 1, "normal": 5, "bulk": 9}


class Contest:
    """Tenants named after their bands, each with jobs of one length always waiting."""

    def __init__(self, client: Client, fleet: str, lengths: dict[str, float], *, slots: int = 4) -> None:
        self.got: Counter[str] = Counter()
        self.lengths = lengths
        servers = [ServerSpec("s1", POOL, slots, ("model",))]
        self.fleet = VirtualFleet(client, fleet, servers, on_end=self._ended)
        self.fleet.tenants(GRANTED)
        for tenant in lengths:
            self.more(tenant)
        self.fleet.open()

    def more(self, tenant: str) -> None:
        missing = 20 - self.fleet.waiting.get(tenant, 0)
        self.fleet.submit(tenant, [self.lengths[tenant]] * missing, priority=PRIORITY[tenant])

    def _ended(self, job: VirtualJob) -> None:
        self.got[job.tenant] += round(job.ended_at - job.started_at)
        if self.fleet.waiting[job.tenant] < 10:
            self.more(job.tenant)


@pytest.mark.parametrize(("urgent", "bulk"), [(1.0, 20.0), (20.0, 1.0), (10.0, 10.0)])
def test_a_lower_band_gets_one_in_sixteen_gpu_seconds_for_any_job_length(
    client: Client, fleet: str, urgent: float, bulk: float
) -> None:
    """One job in sixteen would be 57 % of the slots for bulk jobs of 20 s, and 0.3 % for those of a
    second."""
    contest = Contest(client, fleet, {"urgent": urgent, "bulk": bulk})
    contest.fleet.run(600.0)
    share = contest.got["bulk"] / sum(contest.got.values())
    assert share == pytest.approx(1 / 16, abs=0.02)


def test_each_lower_band_has_a_share(client: Client, fleet: str) -> None:
    contest = Contest(client, fleet, {"urgent": 5.0, "normal": 20.0, "bulk": 40.0})
    contest.fleet.run(1500.0)
    total = sum(contest.got.values())
    assert contest.got["normal"] / total > 0.05
    assert contest.got["bulk"] / total > 0.05
    assert contest.got["urgent"] / total > 0.8


@pytest.mark.parametrize("seed", range(4))
def test_an_adversary_in_the_higher_bands_never_takes_more_than_fifteen_parts(
    client: Client, fleet: str, seed: int
) -> None:
    """The attacker chooses lengths, times, tenants and bursts. At any time, fifteen times bulk's GPU-seconds
    are at least the others' since bulk waits, except for bulk's first job, one job of the others per slot,
    and the estimation errors of running jobs."""
    chance = random.Random(seed)
    got: Counter[str] = Counter()

    def ended(job: VirtualJob) -> None:
        got["bulk" if job.tenant == "bulk" else "others"] += round(job.ended_at - job.started_at)
        if fleet_of.waiting["bulk"] < 5:
            fleet_of.submit("bulk", [12.0] * 10, priority=9)
        if sum(fleet_of.waiting.values()) - fleet_of.waiting["bulk"] < 30 or chance.random() < 0.05:
            attack()

    def attack() -> None:
        longest = chance.choice([1.0, 5.0, 30.0])
        jobs = [chance.uniform(0.5, longest) for _ in range(chance.randint(1, 40))]
        fleet_of.submit(chance.choice(["urgent", "normal"]), jobs, priority=chance.choice([1, 2, 4]))

    servers = [ServerSpec("s1", POOL, 4, ("model",))]
    fleet_of = VirtualFleet(client, fleet, servers, on_end=ended)
    fleet_of.tenants(GRANTED)
    fleet_of.submit("bulk", [12.0] * 10, priority=9)
    attack()
    fleet_of.open()
    worst = 0
    for end in range(100, 1001, 100):
        fleet_of.run(float(end))
        worst = max(worst, got["others"] - 15 * got["bulk"])
    assert worst <= 15 * 12 + 4 * (30 + 15 * 12)


def test_a_due_band_without_a_usable_ticket_earns_no_credit(harness: LeaseHarness) -> None:
    """No server runs bulk's model for a long time; then it gets its part again, not all that it missed."""
    harness.server(models=("flux",))
    harness.push("b00", tenant="b", priority=9, model="zimg")
    harness.push(*(f"u{i:03}" for i in range(150)), priority=1)
    harness.push(*(f"b{i:02}" for i in range(1, 20)), tenant="b", priority=9, model="zimg")
    lease = harness.must_claim()
    for _ in range(90):
        lease = harness.next(lease)
    harness.server("s2", models=("flux", "zimg"))
    order = []
    held = harness.must_claim()
    for _ in range(40):
        order.append(held.tenant)
        held = harness.next(held)
    assert order.count("b") <= 4


def test_refused_jobs_do_not_reduce_what_a_band_owes(harness: LeaseHarness) -> None:
    """A busy answer costs no share."""
    harness.server()
    harness.push("b1", tenant="b", priority=9)
    harness.push(*(f"u{i:02}" for i in range(40)), priority=1)
    lease = harness.must_claim()
    for _ in range(20):
        lease = harness.next(lease, 0.0)
        assert lease.tenant != "b"
    order = []
    for _ in range(16):
        lease = harness.next(lease, 1.0)
        order.append(lease.job_id)
    assert "b1" in order


def test_a_long_run_is_charged_to_the_bands_by_its_real_time(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("b1", tenant="b", priority=9)
    harness.push(*(f"u{i:02}" for i in range(40)), priority=1)
    lease = harness.must_claim()
    assert harness.next(lease, 15.0).job_id == "b1"
