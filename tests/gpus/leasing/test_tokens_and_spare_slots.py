"""Calls of the submit API: a token bucket per tenant, and spare slots."""

from __future__ import annotations

import threading

import pytest

from gpus.leasing.scripts import Client
from gpus.leasing.store import RedisLeases
from gpus.leasing.values import ParkedFor, SpareSlots, Tokens
from tests.gpus.leasing.lease_harness import MODEL, POOL, LeaseHarness


def take(
    harness: LeaseHarness, tokens: int = 1, *, tenant: str = "t", per_second: float = 2.0, burst: int = 4
) -> Tokens:
    return harness.leases.take_tokens(tenant, tokens, per_second=per_second, burst=burst)


def test_a_burst_then_the_rate(harness: LeaseHarness) -> None:
    assert [take(harness).taken for _ in range(5)] == [True] * 4 + [False]
    refused = take(harness)
    assert (refused.left, refused.wait_seconds, refused.full_seconds) == (0, 0.5, 2.0)
    harness.wait(0.5)
    assert take(harness).taken
    assert not take(harness).taken
    harness.wait(3600)
    assert take(harness).left == 3, "never more than the burst"


def test_all_or_none(harness: LeaseHarness) -> None:
    assert take(harness, 3).left == 1
    refused = take(harness, 3)
    assert (refused.taken, refused.left, refused.wait_seconds) == (False, 1, 1.0)
    assert take(harness, 1).taken, "what was refused took nothing"


def test_tenants_have_buckets_of_their_own(harness: LeaseHarness) -> None:
    assert take(harness, 4, tenant="a").taken
    assert take(harness, 4, tenant="b").taken
    assert not take(harness, 1, tenant="a").taken


def test_a_clock_that_steps_back_does_not_change_the_bucket(harness: LeaseHarness) -> None:
    take(harness, 4)
    harness.wait(-3600)
    assert not take(harness).taken
    harness.wait(3600)
    assert not take(harness).taken, "the hour was not waited through"


def test_a_request_that_redis_carries_out_twice_pays_once(harness: LeaseHarness) -> None:
    asked = {"tenant": "t", "tokens": 1, "per_second": 1.0, "burst": 4, "request": "one-request"}
    first = harness.leases._scripts.run("take_tokens", **asked)
    assert harness.leases._scripts.run("take_tokens", **asked) == first == [1, 3, 0, 1_000_000]
    assert harness.leases._scripts.run("take_tokens", **asked | {"request": "another"})[1] == 2


def test_a_look_into_the_bucket_leaves_no_trace(harness: LeaseHarness) -> None:
    assert take(harness, 0) == Tokens(True, 4, 0.0, 0.0)
    assert not harness.client.exists(harness.prefix + "rate:t")
    asked = {"tenant": "t", "tokens": 4, "per_second": 1.0, "burst": 4, "request": "one-request"}
    first = harness.leases._scripts.run("take_tokens", **asked)
    assert take(harness, 0, per_second=1.0) == Tokens(True, 0, 0.0, pytest.approx(4.0, abs=0.5))
    again = harness.leases._scripts.run("take_tokens", **asked)
    assert again == first, "a request that is carried out twice still pays once"


def test_a_bucket_lives_until_it_is_full_and_needs_no_index(client: Client, fleet: str) -> None:
    closed = LeaseHarness(client, fleet)
    before = now_ms(closed)
    assert take(closed, 4).taken, "no generation was ever opened"
    after = now_ms(closed)
    ends = closed.client.pexpiretime(closed.prefix + "rate:t")
    assert before + 3_000 <= ends <= after + 3_000, "two seconds to be full, and one to spare"


def now_ms(harness: LeaseHarness) -> int:
    """By Redis' own clock."""
    seconds, microseconds = harness.client.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def test_at_once_from_many_threads_no_token_is_given_twice(client: Client, fleet: str) -> None:
    harness, taken = LeaseHarness(client, fleet), []

    def work() -> None:
        for _ in range(50):
            taken.append(take(harness, burst=100, per_second=0.001).taken)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(taken), sum(taken)) == (200, 100)


def spare(leases: RedisLeases, *models: str, tenant: str = "t1") -> list[int]:
    return list(leases.spare_slots(POOL, tenant, models or (MODEL,)).by_model)


def test_a_slot_is_spare_while_no_ticket_could_take_it(harness: LeaseHarness) -> None:
    assert spare(harness.leases) == [0]
    harness.server(slots=3, models=("flux", "sd"))
    assert spare(harness.leases, "flux", "sd", "other") == [3, 3, 0]
    harness.push("waits", model="sd")
    assert spare(harness.leases, "flux") == [2], "the other model's ticket may take it"
    harness.must_claim()
    assert spare(harness.leases, "flux") == [2]
    harness.push("more", "and more")
    assert spare(harness.leases, "flux") == [0]


def test_tickets_for_other_slots_do_not_reduce_spare_slots(harness: LeaseHarness) -> None:
    harness.server("s1", models=("flux",))
    harness.push("waits", model="elsewhere")
    assert spare(harness.leases, "flux") == [1]


def test_a_parked_tenant_has_no_spare_slots(harness: LeaseHarness) -> None:
    harness.server()
    harness.leases.set_paused_tenants(POOL, ["t1"], reason=ParkedFor.QUOTA)
    assert spare(harness.leases) == [0]
    assert spare(harness.leases, tenant="t2") == [1]


def test_a_tenant_at_its_limit_has_no_spare_slots(harness: LeaseHarness) -> None:
    """Even without a waiting ticket in the pool, where the tenant is not marked as parked yet."""
    harness.server(slots=5)
    harness.tenant("t1", most=2)
    assert harness.leases.spare_slots(POOL, "t1", [MODEL]) == SpareSlots([5], most=2)
    harness.push("one")
    lease = harness.must_claim()
    assert harness.leases.spare_slots(POOL, "t1", [MODEL]) == SpareSlots([4], most=1)
    harness.push("two")
    harness.must_claim()
    assert harness.leases.spare_slots(POOL, "t1", [MODEL]) == SpareSlots([0], most=0)
    assert harness.leases.spare_slots(POOL, "t2", [MODEL]) == SpareSlots([3])
    harness.release(lease)
    assert harness.leases.spare_slots(POOL, "t1", [MODEL]).most == 1


def test_an_explanation_before_the_push_shows_the_running_limit(harness: LeaseHarness) -> None:
    harness.server(slots=5)
    harness.tenant("t1", most=1)
    thought_of = harness.ticket("")
    assert harness.leases.queue_status(POOL, thought_of, is_waiting=False).parked == ""
    harness.push("one")
    harness.must_claim()
    assert harness.leases.queue_status(POOL, thought_of, is_waiting=False).parked == "m"
    harness.leases.set_paused_tenants(POOL, ["t1"])
    assert harness.leases.queue_status(POOL, thought_of, is_waiting=False).parked == "pm"
    harness.push("two")
    assert harness.leases.queue_status(POOL, thought_of, is_waiting=False).parked == "pm"


def test_a_tenant_is_released_with_its_last_reason(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("a1", tenant="a")
    harness.leases.set_paused_tenants(POOL, ["a"])
    harness.leases.set_paused_tenants(POOL, ["a"], reason=ParkedFor.QUOTA)
    assert harness.leases.set_paused_tenants(POOL, []) == ()
    assert harness.claim() is None, "the quota still holds it back"
    assert harness.leases.set_paused_tenants(POOL, [], reason=ParkedFor.QUOTA) != ()
    assert harness.must_claim().job_id == "a1"


@pytest.mark.parametrize("name", ["a:b", "a,b", ""])
def test_names_that_would_leave_their_key_are_refused(harness: LeaseHarness, name: str) -> None:
    with pytest.raises(ValueError, match="a name must not"):
        take(harness, tenant=name)
