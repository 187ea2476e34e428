"""How many callbacks of a tenant and a receiver may be in flight."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jobs.callbacks.pick import CLOSED, Circuit, Limits, Queue, Shares

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LIMITS = Limits(total=90, per_tenant=80, per_receiver=16, bytes=1000, circuit_failures=3)


def filled(shares: Shares, tenant: int, *, receivers: int = 1000, size: int = 0) -> int:
    """How many the tenant gets until it gets no more."""
    got = 0
    for at in range(receivers):
        queue: Queue = (tenant, f"host{at}:80")
        while shares.may_start(queue, CLOSED, NOW, size=size):
            shares.start(queue, size)
            got += 1
    return got


def test_each_tenant_gets_as_many_as_it_leaves_free() -> None:
    shares = Shares(LIMITS)
    assert [filled(shares, tenant) for tenant in range(1, 5)] == [45, 23, 11, 6]
    assert shares.in_flight == 85


def test_a_tenants_own_limit_counts_too() -> None:
    assert filled(Shares(Limits(90, 5, 16, 1000, 3)), 1) == 5


def test_a_receiver_gets_its_limit_and_at_most_what_its_tenant_has_free() -> None:
    assert filled(Shares(LIMITS), 1, receivers=1) == 16
    assert filled(Shares(Limits(20, 80, 16, 1000, 3)), 1, receivers=1) == 7


def test_an_ended_try_makes_room() -> None:
    shares = Shares(Limits(2, 2, 2, 1000, 3))
    shares.start((1, "a:80"), 10)
    assert not shares.may_start((1, "b:80"), CLOSED, NOW)
    shares.end((1, "a:80"), 10)
    assert shares.may_start((1, "b:80"), CLOSED, NOW)
    assert (shares.in_flight, shares.of_tenant(1), shares.of_queue((1, "a:80"))) == (0, 0, 0)


@pytest.mark.parametrize(
    ("circuit", "in_flight", "may"),
    [
        (Circuit(2), 5, True),
        (Circuit(3, NOW + timedelta(seconds=1)), 0, False),
        (Circuit(3, NOW), 0, True),
        (Circuit(3, NOW), 1, False),
    ],
)
def test_an_open_circuit_rests_and_then_takes_one(circuit: Circuit, in_flight: int, *, may: bool) -> None:
    shares = Shares(LIMITS)
    for _ in range(in_flight):
        shares.start((1, "a:80"), 0)
    assert shares.may_start((1, "a:80"), circuit, NOW) is may


def test_bytes_are_shared_too_and_a_body_larger_than_all_goes_alone() -> None:
    shares = Shares(LIMITS)
    assert filled(shares, 1, size=100) == 5
    assert shares.may_start((2, "a:80"), CLOSED, NOW, size=5000)
    shares.start((2, "a:80"), 5000)
    assert not shares.may_start((2, "b:80"), CLOSED, NOW, size=1)
    assert not shares.may_start((3, "a:80"), CLOSED, NOW, size=5000)
