"""The position of a ticket, compared with the actual order of dispatch."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from gpus.leasing.values import QueueStatus
from gpus.protocol import PushOutcome
from tests.gpus.leasing.lease_harness import POOL, LeaseHarness

AB = ("a", "b")


def queue_status(harness: LeaseHarness, job: str) -> QueueStatus:
    return harness.leases.queue_status(POOL, harness.tickets[job])


def positions(harness: LeaseHarness, jobs: Sequence[str]) -> dict[str, int]:
    return {job: queue_status(harness, job).position for job in jobs}


def served(harness: LeaseHarness, models: Sequence[str] = ("flux",)) -> dict[str, int]:
    """The place at which each one goes, run one after the other, a second each."""
    harness.server(slots=1, models=models)
    return {job: at for at, job in enumerate(harness.run_all(), 1)}


# -- fifo ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tenants", [1, 3, 16])
def test_a_fifo_position_counts_earlier_tickets(harness: LeaseHarness, tenants: int) -> None:
    harness.pool("fifo", patience=0)
    harness.server(slots=0, models=AB)
    harness.push("urgent", model="a", priority=1)
    jobs = [f"j{number:02}" for number in range(96)]
    for number, job in enumerate(jobs):
        harness.push(job, tenant=f"t{number % tenants:02}", model=AB[number % 7 == 0])
    expected = {"urgent": 1} | {job: number for number, job in enumerate(jobs, 2)}
    assert positions(harness, ["urgent", *jobs]) == expected
    assert queue_status(harness, "j00").own_ahead == 0
    assert served(harness, AB) == expected


def test_a_sample_of_tenants_represents_a_long_fifo_queue(harness: LeaseHarness) -> None:
    chance = random.Random(1)
    harness.pool("fifo", patience=0)
    jobs = [f"j{number:04}" for number in range(1000)]
    for job in jobs:
        harness.push(job, tenant=f"t{int(chance.paretovariate(0.7)) % 300}")
    assert queue_status(harness, jobs[0]).position == 1
    for place in (250, 500, 950):
        assert queue_status(harness, jobs[place]).position == pytest.approx(place + 1, rel=0.25)


def test_a_repeated_push_returns_the_present_position(harness: LeaseHarness) -> None:
    harness.pool("fifo")
    fresh = harness.push(*(f"j{number}" for number in range(9)))
    assert [one.position for one in fresh] == list(range(1, 10))
    again = harness.leases.push(POOL, [harness.tickets["j0"], harness.tickets["j4"]]).results
    assert [(one.outcome, one.position) for one in again] == [
        (PushOutcome.DUPLICATE, 1),
        (PushOutcome.DUPLICATE, 5),
    ]


def test_a_retry_in_a_fifo_queue_has_its_old_position(harness: LeaseHarness) -> None:
    harness.pool("fifo")
    harness.server()
    harness.push(*(f"j{number}" for number in range(9)))
    lease = harness.must_claim()
    harness.wait(60)
    harness.release(lease)
    harness.leases.confirm_ends([lease.ref])
    assert harness.leases.push(POOL, [harness.tickets["j0"]]).results[0].position == 1


def test_a_paused_tenants_position_is_as_if_released(harness: LeaseHarness) -> None:
    for algorithm in ("fair", "fifo"):
        harness.pool(algorithm)
        harness.push("u1", priority=1, tenant="b")
        harness.push(*(f"b{i}" for i in range(5)), tenant="b")
        harness.leases.set_paused_tenants(POOL, ["a"])
        jobs = ("a1", "a2", "a3")
        pushed = [result.position for result in harness.push(*jobs, tenant="a")]
        assert list(positions(harness, jobs).values()) == pushed
        harness.leases.set_paused_tenants(POOL, [])
        order = served(harness)
        assert [order[job] for job in jobs] == pushed


# -- fair ----------------------------------------------------------------------------------------------


def test_a_tenants_jobs_for_other_models_on_the_same_servers_go_first(harness: LeaseHarness) -> None:
    harness.pool(patience=0)
    harness.server(slots=2, models=AB)
    harness.push("r1", "r2", model="a", tenant="running")
    assert harness.claim()
    assert harness.claim()
    harness.push(*(f"a{number:02}" for number in range(100)), model="a")
    pushed = harness.push("b", model="b")[0]
    found = queue_status(harness, "b")
    assert (pushed.position, found.position, found.own_ahead) == (101, 101, 100)
    assert found.guess_seconds == pytest.approx(50.5), "of a second each on two slots"
    thought_of = harness.leases.queue_status(POOL, harness.ticket("", model="b"), is_waiting=False)
    assert (thought_of.position, thought_of.own_ahead) == (102, 101)


def test_jobs_for_other_servers_do_not_count_in_a_position(harness: LeaseHarness) -> None:
    for algorithm in ("fair", "fifo"):
        harness.pool(algorithm)
        harness.server("s1", models=("a",))
        harness.server("s2", models=("b",))
        harness.push(*(f"{algorithm}{number}" for number in range(50)), model="a")
        harness.push(*(f"o{algorithm}{number}" for number in range(50)), model="a", tenant="other")
        pushed = harness.push(f"b-{algorithm}", model="b")[0]
        assert (pushed.outcome, pushed.position) == (PushOutcome.LEASED, 1)
        assert queue_status(harness, f"b-{algorithm}").position == 1
        assert harness.leases.remove(POOL, harness.tickets[f"b-{algorithm}"])


def test_a_weight_moves_the_place(harness: LeaseHarness) -> None:
    harness.tenant("light", weight=1)
    harness.tenant("heavy", weight=100)
    harness.push(*(f"l{number}" for number in range(50)), tenant="light")
    harness.push(*(f"h{number}" for number in range(50)), tenant="heavy")
    found = positions(harness, ["l1", "l9", "h9", "h49"])
    order = served(harness)
    assert found["h49"] == order["h49"] < 55
    assert found["l1"] == order["l1"] > 50
    assert found["l9"] == order["l9"]
    assert found["h9"] == order["h9"]


def test_a_position_counts_at_most_the_other_tenants_tickets(harness: LeaseHarness) -> None:
    for number in range(15):
        harness.push(f"small{number}", tenant=f"s{number}")
    flood = [f"f{number:03}" for number in range(200)]
    pushed = harness.push(*flood, tenant="flood")
    found = positions(harness, [flood[0], flood[99], flood[199]])
    assert [pushed[at].position for at in (0, 99, 199)] == list(found.values())
    order = served(harness)
    assert found == {job: order[job] for job in found}
    assert found[flood[99]] == 115


def test_a_tenant_above_its_share_is_behind_the_others(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push("short", tenant="a")
    harness.run_all()
    harness.push("long", tenant="a")
    lease = harness.must_claim()
    harness.push("runs", tenant="b")
    harness.must_claim()
    harness.push(*(f"b{number}" for number in range(9)), tenant="b")
    harness.release(lease, gpu_seconds=200.0)
    harness.leases.confirm_ends([lease.ref])
    harness.push("a", tenant="a")
    assert queue_status(harness, "a").position == 10


@pytest.mark.parametrize("seed", range(5))
def test_positions_are_the_order_that_follows(harness: LeaseHarness, seed: int) -> None:
    """Tenants of all weights and models: nine in ten positions are right within two."""
    chance = random.Random(seed)
    harness.pool(patience=0)
    harness.server(slots=0, models=AB)
    for number in range(8):
        harness.tenant(f"t{number}", weight=chance.choice((0.5, 1, 1, 2, 10)))
    jobs = [f"j{number:03}" for number in range(200)]
    for job in jobs:
        tenant = f"t{min(7, int(chance.expovariate(0.5)))}"
        harness.push(job, tenant=tenant, model=chance.choice("ab"), priority=chance.choice((2, 5, 5, 5)))
    found = positions(harness, jobs)
    order = served(harness, AB)
    off = sorted(abs(found[job] - order[job]) for job in jobs)
    assert off[180] <= 2


def test_a_position_examines_a_bounded_number_of_tenants_and_lines(harness: LeaseHarness) -> None:
    """As many commands for a thousand tenants in thirty models as Redis' own time would want."""
    harness.server(models=[f"m{number:02}" for number in range(30)])
    chance = random.Random(3)
    for number in range(1000):
        harness.push(f"j{number}", tenant=f"t{number}", model=f"m{chance.randrange(30):02}")
    harness.push(*(f"f{number}" for number in range(60)), tenant="flood", model="m00")

    def commands(act) -> int:
        harness.client.config_resetstat()
        act()
        return sum(one["calls"] for one in harness.client.info("commandstats").values())

    for algorithm in ("fair", "fifo"):
        harness.pool(algorithm)
        assert commands(lambda: queue_status(harness, "f59")) < 32 * 7 + 100
        assert commands(lambda: harness.leases.push(POOL, [harness.tickets["f59"]])) < 8 * 7 + 60
