"""Shares of a full fleet under virtual time: a small `benchmarks.fairness`, and what start-time fair
queueing proves."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks import fairness
from benchmarks.virtual_fleet import POOL, VirtualFleet, VirtualJob
from gpus.leasing.scripts import Client
from gpus.protocol import ServerSpec, TenantSpec
from tests.gpus.leasing.lease_harness import WORKER, LeaseHarness, counts


@pytest.mark.parametrize("weights", [(1.0,), (1.0, 3.0)])
def test_a_full_fleet_is_shared_by_weight_despite_a_flooding_tenant(
    client: Client, monkeypatch: pytest.MonkeyPatch, weights: tuple[float, ...]
) -> None:
    monkeypatch.setattr(fairness, "LONGEST", 60.0)
    monkeypatch.setattr(fairness, "KINDS", KINDS)
    size = fairness.Size(slots=24, tenants=6, seconds=1500.0, weights=weights)
    result = fairness.measure(client, size)
    assert result.misses == []


KINDS = (
    lambda chance: chance.uniform(1, 60),
    lambda chance: 60.0,
    lambda chance: chance.uniform(5, 10),
    lambda chance: 1.0 if chance.random() < 0.5 else 60.0,
)


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), tenants=st.integers(2, 4))
def test_backlogged_tenants_differ_by_at_most_one_job_each(client: Client, seed: int, tenants: int) -> None:
    """Goyal, Vin, Cheng 1996, theorem 1: |W1/w1 - W2/w2| <= l1/w1 + l2/w2 in every interval, where a job's
    cost is known when it is given; on any number of slots, because they are given one after the other."""
    chance = random.Random(seed)
    names = [f"t{number}" for number in range(tenants)]
    lengths = {name: float(chance.randint(1, 50)) for name in names}
    weights = {name: chance.choice([0.5, 1.0, 2.0, 5.0]) for name in names}
    given_to = {name: [0.0] for name in names}

    def began(job: VirtualJob) -> None:
        for name in names:
            more = job.seconds / weights[name] if name == job.tenant else 0.0
            given_to[name].append(given_to[name][-1] + more)
        if fleet.waiting[job.tenant] < 5:
            fleet.submit(job.tenant, [lengths[job.tenant]] * 10, model=job.tenant)

    servers = [ServerSpec("s1", POOL, chance.randint(1, 6), tuple(names))]
    fleet = VirtualFleet(client, f"goyal-{seed}-{tenants}", servers, patience_seconds=0.0)
    fleet.tenants([TenantSpec(name, weight) for name, weight in weights.items()])
    for name in names:
        fleet.submit(name, [lengths[name]], model=name)
    fleet.open()
    fleet.run(200.0)  # every length is known now
    fleet.on_start = began
    fleet.submit_all([fleet.job(name, lengths[name], model=name) for name in names for _ in range(10)])
    fleet.run(700.0)
    for one, other in combinations(names, 2):
        apart = [mine - theirs for mine, theirs in zip(given_to[one], given_to[other], strict=True)]
        bound = lengths[one] / weights[one] + lengths[other] / weights[other]
        assert max(apart) - min(apart) <= bound + 1e-6


def test_a_continuously_waiting_tenant_gets_a_full_refund(harness: LeaseHarness) -> None:
    """It waited for GPU-seconds that it did not use; that is no credit for being idle."""
    harness.server(slots=2)
    harness.push("a0", "b0", tenant="a")
    for _ in range(2):
        harness.release(harness.must_claim(), gpu_seconds=50.0)
    harness.leases.confirm_ends([])
    order = shares_after(harness, leaves_the_line=False)
    assert order[:20].count("a") >= 15


def test_a_refund_is_no_credit_for_a_tenant_that_stopped_waiting(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push("a0", "b0", tenant="a")
    for _ in range(2):
        harness.release(harness.must_claim(), gpu_seconds=50.0)
    order = shares_after(harness, leaves_the_line=True)
    assert order[:20].count("a") <= 11


def shares_after(harness: LeaseHarness, *, leaves_the_line: bool) -> list[str]:
    """Tenants of the next starts, after a job of `a` charged for 50 s was refunded late."""
    harness.server("s2", slots=2)
    harness.push(*(f"x{i}" for i in range(1 if leaves_the_line else 60)), tenant="a")
    dear = harness.must_claim()
    assert dear.estimate_seconds == pytest.approx(50.0)
    harness.push(*(f"c{i:02}" for i in range(150)), tenant="c", model="flux")
    held = harness.must_claim()
    for _ in range(49):
        held = harness.next(held, 1.0)
    harness.wait(1)
    if leaves_the_line:
        harness.push(*(f"y{i}" for i in range(60)), tenant="a")
    harness.release(dear, gpu_seconds=1.0)
    order = []
    for _ in range(40):
        held = harness.next(held, 1.0)
        order.append(held.tenant)
    return order


def test_a_long_run_is_charged_more_while_it_runs(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push("a1", "a2", "a3", tenant="a")
    harness.push(*(f"b{i:02}" for i in range(60)), tenant="b")
    leases = {lease.tenant: lease for lease in (harness.must_claim(), harness.must_claim())}
    harness.wait(10)
    assert harness.leases.renew(WORKER, [leases["a"]], []) == []
    order, held = [], leases["b"]
    for _ in range(15):
        held = harness.next(held, 1.0)
        order.append(held.tenant)
    assert set(order) == {"b"}, "a has had ten seconds, and is charged for twenty"
    assert harness.leases.estimate_seconds("flux", "a") == pytest.approx(10.0), (
        "the next one will not be shorter"
    )
    assert counts(harness.leases.confirm_ends([])) == {}
