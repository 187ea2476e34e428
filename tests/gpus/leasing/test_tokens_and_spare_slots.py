"""Calls of the submit API: a token bucket per tenant, and spare slots."""

from __future__ import annotations

import threading

import pytest

from gpus.leasing.scripts import Client
from gpus.leasing.store import RedisLeases
from gpus.leasing.values import ParkedFor, SpareSlots, Tokens
from tests.gpus.leasing.rig import MODEL, POOL, Rig


def take(rig: Rig, tokens: int = 1, *, tenant: str = "t", per_second: float = 2.0, burst: int = 4) -> Tokens:
    return rig.leases.take_tokens(tenant, tokens, per_second=per_second, burst=burst)


def test_a_burst_then_the_rate(rig: Rig) -> None:
    assert [take(rig).taken for _ in range(5)] == [True] * 4 + [False]
    refused = take(rig)
    assert (refused.left, refused.wait_seconds, refused.full_seconds) == (0, 0.5, 2.0)
    rig.wait(0.5)
    assert take(rig).taken
    assert not take(rig).taken
    rig.wait(3600)
    assert take(rig).left == 3, "never more than the burst"


def test_all_or_none(rig: Rig) -> None:
    assert take(rig, 3).left == 1
    refused = take(rig, 3)
    assert (refused.taken, refused.left, refused.wait_seconds) == (False, 1, 1.0)
    assert take(rig, 1).taken, "what was refused took nothing"


def test_tenants_have_buckets_of_their_own(rig: Rig) -> None:
    assert take(rig, 4, tenant="a").taken
    assert take(rig, 4, tenant="b").taken
    assert not take(rig, 1, tenant="a").taken


def test_a_clock_that_steps_back_does_not_change_the_bucket(rig: Rig) -> None:
    take(rig, 4)
    rig.wait(-3600)
    assert not take(rig).taken
    rig.wait(3600)
    assert not take(rig).taken, "the hour was not waited through"


def test_a_request_that_redis_carries_out_twice_pays_once(rig: Rig) -> None:
    asked = {"tenant": "t", "tokens": 1, "per_second": 1.0, "burst": 4, "request": "one-request"}
    first = rig.leases._scripts.run("take_tokens", **asked)
    assert rig.leases._scripts.run("take_tokens", **asked) == first == [1, 3, 0, 1_000_000]
    assert rig.leases._scripts.run("take_tokens", **asked | {"request": "another"})[1] == 2


def test_a_look_into_the_bucket_leaves_no_trace(rig: Rig) -> None:
    assert take(rig, 0) == Tokens(True, 4, 0.0, 0.0)
    assert not rig.client.exists(rig.prefix + "rate:t")
    asked = {"tenant": "t", "tokens": 4, "per_second": 1.0, "burst": 4, "request": "one-request"}
    first = rig.leases._scripts.run("take_tokens", **asked)
    assert take(rig, 0, per_second=1.0) == Tokens(True, 0, 0.0, pytest.approx(4.0, abs=0.5))
    again = rig.leases._scripts.run("take_tokens", **asked)
    assert again == first, "a request that is carried out twice still pays once"


def test_a_bucket_lives_until_it_is_full_and_needs_no_index(client: Client, fleet: str) -> None:
    closed = Rig(client, fleet)
    before = now_ms(closed)
    assert take(closed, 4).taken, "no generation was ever opened"
    after = now_ms(closed)
    ends = closed.client.pexpiretime(closed.prefix + "rate:t")
    assert before + 3_000 <= ends <= after + 3_000, "two seconds to be full, and one to spare"


def now_ms(rig: Rig) -> int:
    """By Redis' own clock."""
    seconds, microseconds = rig.client.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def test_at_once_from_many_threads_no_token_is_given_twice(client: Client, fleet: str) -> None:
    rig, taken = Rig(client, fleet), []

    def work() -> None:
        for _ in range(50):
            taken.append(take(rig, burst=100, per_second=0.001).taken)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(taken), sum(taken)) == (200, 100)


def spare(leases: RedisLeases, *models: str, tenant: str = "t1") -> list[int]:
    return list(leases.spare_slots(POOL, tenant, models or (MODEL,)).by_model)


def test_a_slot_is_spare_while_no_ticket_could_take_it(rig: Rig) -> None:
    assert spare(rig.leases) == [0]
    rig.server(slots=3, models=("flux", "sd"))
    assert spare(rig.leases, "flux", "sd", "other") == [3, 3, 0]
    rig.push("waits", model="sd")
    assert spare(rig.leases, "flux") == [2], "the other model's ticket may take it"
    rig.must_claim()
    assert spare(rig.leases, "flux") == [2]
    rig.push("more", "and more")
    assert spare(rig.leases, "flux") == [0]


def test_tickets_for_other_slots_do_not_reduce_spare_slots(rig: Rig) -> None:
    rig.server("s1", models=("flux",))
    rig.push("waits", model="elsewhere")
    assert spare(rig.leases, "flux") == [1]


def test_a_parked_tenant_has_no_spare_slots(rig: Rig) -> None:
    rig.server()
    rig.leases.set_paused_tenants(POOL, ["t1"], reason=ParkedFor.QUOTA)
    assert spare(rig.leases) == [0]
    assert spare(rig.leases, tenant="t2") == [1]


def test_a_tenant_at_its_limit_has_no_spare_slots(rig: Rig) -> None:
    """Even without a waiting ticket in the pool, where the tenant is not marked as parked yet."""
    rig.server(slots=5)
    rig.tenant("t1", most=2)
    assert rig.leases.spare_slots(POOL, "t1", [MODEL]) == SpareSlots([5], most=2)
    rig.push("one")
    lease = rig.must_claim()
    assert rig.leases.spare_slots(POOL, "t1", [MODEL]) == SpareSlots([4], most=1)
    rig.push("two")
    rig.must_claim()
    assert rig.leases.spare_slots(POOL, "t1", [MODEL]) == SpareSlots([0], most=0)
    assert rig.leases.spare_slots(POOL, "t2", [MODEL]) == SpareSlots([3])
    rig.release(lease)
    assert rig.leases.spare_slots(POOL, "t1", [MODEL]).most == 1


def test_an_explanation_before_the_push_shows_the_running_limit(rig: Rig) -> None:
    rig.server(slots=5)
    rig.tenant("t1", most=1)
    thought_of = rig.ticket("")
    assert rig.leases.queue_status(POOL, thought_of, is_waiting=False).parked == ""
    rig.push("one")
    rig.must_claim()
    assert rig.leases.queue_status(POOL, thought_of, is_waiting=False).parked == "m"
    rig.leases.set_paused_tenants(POOL, ["t1"])
    assert rig.leases.queue_status(POOL, thought_of, is_waiting=False).parked == "pm"
    rig.push("two")
    assert rig.leases.queue_status(POOL, thought_of, is_waiting=False).parked == "pm"


def test_a_tenant_is_released_with_its_last_reason(rig: Rig) -> None:
    rig.server()
    rig.push("a1", tenant="a")
    rig.leases.set_paused_tenants(POOL, ["a"])
    rig.leases.set_paused_tenants(POOL, ["a"], reason=ParkedFor.QUOTA)
    assert rig.leases.set_paused_tenants(POOL, []) == ()
    assert rig.claim() is None, "the quota still holds it back"
    assert rig.leases.set_paused_tenants(POOL, [], reason=ParkedFor.QUOTA) != ()
    assert rig.must_claim().job_id == "a1"


@pytest.mark.parametrize("name", ["a:b", "a,b", ""])
def test_names_that_would_leave_their_key_are_refused(rig: Rig, name: str) -> None:
    with pytest.raises(ValueError, match="a name must not"):
        take(rig, tenant=name)
