"""The position of a ticket, compared with the actual order of dispatch."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from gpus.leasing.values import QueueStatus
from gpus.protocol import PushOutcome
from tests.gpus.leasing.rig import POOL, Rig

AB = ("a", "b")


def queue_status(rig: Rig, job: str) -> QueueStatus:
    return rig.leases.queue_status(POOL, rig.tickets[job])


def positions(rig: Rig, jobs: Sequence[str]) -> dict[str, int]:
    return {job: queue_status(rig, job).position for job in jobs}


def served(rig: Rig, models: Sequence[str] = ("flux",)) -> dict[str, int]:
    """The place at which each one goes, run one after the other, a second each."""
    rig.server(slots=1, models=models)
    return {job: at for at, job in enumerate(rig.run_all(), 1)}


# -- fifo ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tenants", [1, 3, 16])
def test_a_fifo_position_counts_earlier_tickets(rig: Rig, tenants: int) -> None:
    rig.pool("fifo", patience=0)
    rig.server(slots=0, models=AB)
    rig.push("urgent", model="a", priority=1)
    jobs = [f"j{number:02}" for number in range(96)]
    for number, job in enumerate(jobs):
        rig.push(job, tenant=f"t{number % tenants:02}", model=AB[number % 7 == 0])
    expected = {"urgent": 1} | {job: number for number, job in enumerate(jobs, 2)}
    assert positions(rig, ["urgent", *jobs]) == expected
    assert queue_status(rig, "j00").own_ahead == 0
    assert served(rig, AB) == expected


def test_a_sample_of_tenants_represents_a_long_fifo_queue(rig: Rig) -> None:
    chance = random.Random(1)
    rig.pool("fifo", patience=0)
    jobs = [f"j{number:04}" for number in range(1000)]
    for job in jobs:
        rig.push(job, tenant=f"t{int(chance.paretovariate(0.7)) % 300}")
    assert queue_status(rig, jobs[0]).position == 1
    for place in (250, 500, 950):
        assert queue_status(rig, jobs[place]).position == pytest.approx(place + 1, rel=0.25)


def test_a_repeated_push_returns_the_present_position(rig: Rig) -> None:
    rig.pool("fifo")
    fresh = rig.push(*(f"j{number}" for number in range(9)))
    assert [one.position for one in fresh] == list(range(1, 10))
    again = rig.leases.push(POOL, [rig.tickets["j0"], rig.tickets["j4"]]).results
    assert [(one.outcome, one.position) for one in again] == [
        (PushOutcome.DUPLICATE, 1),
        (PushOutcome.DUPLICATE, 5),
    ]


def test_a_retry_in_a_fifo_queue_has_its_old_position(rig: Rig) -> None:
    rig.pool("fifo")
    rig.server()
    rig.push(*(f"j{number}" for number in range(9)))
    lease = rig.must_claim()
    rig.wait(60)
    rig.release(lease)
    rig.leases.confirm_ends([lease.ref])
    assert rig.leases.push(POOL, [rig.tickets["j0"]]).results[0].position == 1


def test_a_paused_tenants_position_is_as_if_released(rig: Rig) -> None:
    for algorithm in ("fair", "fifo"):
        rig.pool(algorithm)
        rig.push("u1", priority=1, tenant="b")
        rig.push(*(f"b{i}" for i in range(5)), tenant="b")
        rig.leases.set_paused_tenants(POOL, ["a"])
        jobs = ("a1", "a2", "a3")
        pushed = [result.position for result in rig.push(*jobs, tenant="a")]
        assert list(positions(rig, jobs).values()) == pushed
        rig.leases.set_paused_tenants(POOL, [])
        order = served(rig)
        assert [order[job] for job in jobs] == pushed


# -- fair ----------------------------------------------------------------------------------------------


def test_a_tenants_jobs_for_other_models_on_the_same_servers_go_first(rig: Rig) -> None:
    rig.pool(patience=0)
    rig.server(slots=2, models=AB)
    rig.push("r1", "r2", model="a", tenant="running")
    assert rig.claim()
    assert rig.claim()
    rig.push(*(f"a{number:02}" for number in range(100)), model="a")
    pushed = rig.push("b", model="b")[0]
    found = queue_status(rig, "b")
    assert (pushed.position, found.position, found.own_ahead) == (101, 101, 100)
    assert found.guess_seconds == pytest.approx(50.5), "of a second each on two slots"
    thought_of = rig.leases.queue_status(POOL, rig.ticket("", model="b"), is_waiting=False)
    assert (thought_of.position, thought_of.own_ahead) == (102, 101)


def test_jobs_for_other_servers_do_not_count_in_a_position(rig: Rig) -> None:
    for algorithm in ("fair", "fifo"):
        rig.pool(algorithm)
        rig.server("s1", models=("a",))
        rig.server("s2", models=("b",))
        rig.push(*(f"{algorithm}{number}" for number in range(50)), model="a")
        rig.push(*(f"o{algorithm}{number}" for number in range(50)), model="a", tenant="other")
        pushed = rig.push(f"b-{algorithm}", model="b")[0]
        assert (pushed.outcome, pushed.position) == (PushOutcome.LEASED, 1)
        assert queue_status(rig, f"b-{algorithm}").position == 1
        assert rig.leases.remove(POOL, rig.tickets[f"b-{algorithm}"])


def test_a_weight_moves_the_place(rig: Rig) -> None:
    rig.tenant("light", weight=1)
    rig.tenant("heavy", weight=100)
    rig.push(*(f"l{number}" for number in range(50)), tenant="light")
    rig.push(*(f"h{number}" for number in range(50)), tenant="heavy")
    found = positions(rig, ["l1", "l9", "h9", "h49"])
    order = served(rig)
    assert found["h49"] == order["h49"] < 55
    assert found["l1"] == order["l1"] > 50
    assert found["l9"] == order["l9"]
    assert found["h9"] == order["h9"]


def test_a_position_counts_at_most_the_other_tenants_tickets(rig: Rig) -> None:
    for number in range(15):
        rig.push(f"small{number}", tenant=f"s{number}")
    flood = [f"f{number:03}" for number in range(200)]
    pushed = rig.push(*flood, tenant="flood")
    found = positions(rig, [flood[0], flood[99], flood[199]])
    assert [pushed[at].position for at in (0, 99, 199)] == list(found.values())
    order = served(rig)
    assert found == {job: order[job] for job in found}
    assert found[flood[99]] == 115


def test_a_tenant_above_its_share_is_behind_the_others(rig: Rig) -> None:
    rig.server(slots=2)
    rig.push("short", tenant="a")
    rig.run_all()
    rig.push("long", tenant="a")
    lease = rig.must_claim()
    rig.push("runs", tenant="b")
    rig.must_claim()
    rig.push(*(f"b{number}" for number in range(9)), tenant="b")
    rig.release(lease, gpu_seconds=200.0)
    rig.leases.confirm_ends([lease.ref])
    rig.push("a", tenant="a")
    assert queue_status(rig, "a").position == 10


@pytest.mark.parametrize("seed", range(5))
def test_positions_are_the_order_that_follows(rig: Rig, seed: int) -> None:
    """Tenants of all weights and models: nine in ten positions are right within two."""
    chance = random.Random(seed)
    rig.pool(patience=0)
    rig.server(slots=0, models=AB)
    for number in range(8):
        rig.tenant(f"t{number}", weight=chance.choice((0.5, 1, 1, 2, 10)))
    jobs = [f"j{number:03}" for number in range(200)]
    for job in jobs:
        tenant = f"t{min(7, int(chance.expovariate(0.5)))}"
        rig.push(job, tenant=tenant, model=chance.choice("ab"), priority=chance.choice((2, 5, 5, 5)))
    found = positions(rig, jobs)
    order = served(rig, AB)
    off = sorted(abs(found[job] - order[job]) for job in jobs)
    assert off[180] <= 2


def test_a_position_examines_a_bounded_number_of_tenants_and_lines(rig: Rig) -> None:
    """As many commands for a thousand tenants in thirty models as Redis' own time would want."""
    rig.server(models=[f"m{number:02}" for number in range(30)])
    chance = random.Random(3)
    for number in range(1000):
        rig.push(f"j{number}", tenant=f"t{number}", model=f"m{chance.randrange(30):02}")
    rig.push(*(f"f{number}" for number in range(60)), tenant="flood", model="m00")

    def commands(act) -> int:
        rig.client.config_resetstat()
        act()
        return sum(one["calls"] for one in rig.client.info("commandstats").values())

    for algorithm in ("fair", "fifo"):
        rig.pool(algorithm)
        assert commands(lambda: queue_status(rig, "f59")) < 32 * 7 + 100
        assert commands(lambda: rig.leases.push(POOL, [rig.tickets["f59"]])) < 8 * 7 + 60
