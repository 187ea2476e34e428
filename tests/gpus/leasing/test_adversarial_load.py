"""Under any choice of arrivals, models and priorities bands get their shares, the fair order holds, and
affinity delays within its bound."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, count, cycle

import pytest

from benchmarks.virtual_fleet import POOL, VirtualFleet, VirtualJob
from gpus.leasing.scripts import Client
from gpus.protocol import ServerSpec
from tests.gpus.leasing.adversarial_load import LONGEST, PATIENCE, SLOTS, AdversarialLoad

MAX_SKIPS, LETS_PASS = 8, 15


@pytest.fixture(scope="module", params=["last model", "reported models"])
def load(request: pytest.FixtureRequest, client: Client) -> AdversarialLoad:
    reports_models = request.param == "reported models"
    load = AdversarialLoad(
        client, f"load-{reports_models}", seed=7 + reports_models, reports_models=reports_models
    )
    load.fleet.run(1000.0)
    assert load.fleet.dispatches > 300
    return load


@pytest.mark.parametrize("band", [1, 2])
def test_a_lower_band_always_gets_its_share_of_gpu_seconds(load: AdversarialLoad, band: int) -> None:
    """Except for its first job, one job of the others per slot, and the estimation errors of running jobs."""
    first, running = LETS_PASS * LONGEST, SLOTS * (LONGEST + LETS_PASS * LONGEST)
    assert load.missing[band] <= first + running


def test_warm_models_delay_the_next_tenant_within_bounds(load: AdversarialLoad) -> None:
    assert len(load.skips) > 50
    assert all(skip.is_warm for skip in load.skips)
    assert MAX_SKIPS // 2 < max(skip.count for skip in load.skips) <= MAX_SKIPS
    assert max(skip.seconds for skip in load.skips) < PATIENCE


def test_no_tenant_far_ahead_passes_another_over(load: AdversarialLoad) -> None:
    """Every weight is 1."""
    assert max(skip.lead for skip in load.skips) <= PATIENCE + LONGEST


def test_a_tenants_own_jobs_are_passed_over_within_bounds(load: AdversarialLoad) -> None:
    assert max(load.passed.values()) > MAX_SKIPS // 2
    for job, times in load.passed.items():
        assert times <= MAX_SKIPS * (1 + load.ahead[job])


@pytest.mark.parametrize(("slots", "seconds"), [(1, 1.0), (4, 1.0), (4, 20.0)])
def test_a_tenant_of_warm_models_gets_no_more_than_its_share(
    client: Client, fleet: str, slots: int, seconds: float
) -> None:
    """The others never do. Two tenants differ by the bound of start-time fair queueing plus that of affinity:
    the patience and a job. It was eight jobs for each one of all the others together."""
    models = [f"m{number:02}" for number in range(30)]
    others, numbers, got = ("a", "b", "c"), cycle(range(30)), Counter[str]()

    def began(job: VirtualJob) -> None:
        top_up()
        if job.tenant in others:
            fleet_of.submit("warm", [seconds] * 8, model=job.model)

    def top_up() -> None:
        for tenant in others:
            if fleet_of.waiting.get(tenant, 0) < 2:
                fleet_of.submit(tenant, [seconds], model=models[next(numbers)])

    def ended(job: VirtualJob) -> None:
        got[job.tenant] += 1

    servers = [ServerSpec(f"s{number}", POOL, 1, tuple(models)) for number in range(slots)]
    fleet_of = VirtualFleet(client, fleet, servers, patience_seconds=PATIENCE, on_start=began, on_end=ended)
    top_up()
    fleet_of.submit("warm", [seconds] * 8, model=models[0])
    fleet_of.open()
    bound = (slots + 1) * 2 * seconds + PATIENCE + 2 * seconds
    for step in count(1):
        fleet_of.run(step * 10 * seconds)
        assert all(abs(got[one] - got[two]) * seconds <= bound for one, two in combinations(got, 2))
        if fleet_of.dispatches >= 400:
            break
    assert got["warm"] * seconds >= sum(got.values()) * seconds / 4


def test_a_newcomer_for_a_rare_model_does_not_wait_for_old_lags(client: Client, fleet: str) -> None:
    """Twenty slots run one model and one the other, all of them busy for long: the tenant that waited for
    the one slot is 1,900 GPU-seconds behind the other, which it never can make up for."""
    waits: list[float] = []

    def top_up() -> None:
        for tenant, model in (("many", "x"), ("few", "y")):
            if fleet_of.waiting.get(tenant, 0) < 10:
                fleet_of.submit(tenant, [10.0] * 20, model=model)

    def began(job: VirtualJob) -> None:
        if job.tenant == "late":
            waits.append(fleet_of.now - job.came_at)

    servers = [ServerSpec("s1", POOL, 20, ("x",)), ServerSpec("s2", POOL, 1, ("y",))]
    fleet_of = VirtualFleet(client, fleet, servers, on_start=began, on_end=lambda job: top_up())
    top_up()
    fleet_of.open()
    fleet_of.run(100.0)
    fleet_of.submit("late", [10.0], model="y")
    fleet_of.run(200.0)
    assert waits
