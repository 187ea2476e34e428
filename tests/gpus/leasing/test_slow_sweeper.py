"""Leases of dead workers expire even with rare sweeps; leases of live ones never expire because Redis was
paused."""

from __future__ import annotations

import pytest

from gpus.protocol import ExpiryVerdict, Lease
from tests.gpus.leasing.lease_harness import LeaseHarness

LEASE, RENEW = 15.0, 5.0


def held(harness: LeaseHarness, *workers: str) -> list[Lease]:
    harness.server(slots=len(workers))
    harness.push(*(f"job-of-{worker}" for worker in workers))
    harness.leases.expired()
    return [harness.must_claim(worker=worker) for worker in workers]


def found(harness: LeaseHarness) -> set[str]:
    return {row.worker for row in harness.leases.expired()}


@pytest.mark.parametrize("every", [2.0, 5.0, 7.0, 14.0])
@pytest.mark.parametrize("others_live", [False, True])
def test_a_dead_workers_lease_is_found_by_rare_sweeps(
    harness: LeaseHarness, every: float, others_live: bool
) -> None:
    _, living = held(harness, "dead", "living")
    renewed = looked = waited = 0.0
    while waited < 120.0:
        harness.wait(0.5)
        waited += 0.5
        if others_live and waited - renewed >= RENEW:
            renewed = waited
            assert harness.leases.renew("living", [living], []) == []
        if waited - looked >= every:
            looked = waited
            if "dead" in (gone := found(harness)):
                assert "living" not in gone or not others_live
                break
    most = LEASE if others_live else 2 * LEASE  # no other call: perhaps Redis was paused
    assert waited <= most + 2 * every


def test_a_lease_gets_time_to_renew_only_once(harness: LeaseHarness) -> None:
    """The other one that is renewed now and then is a job that each time was short."""
    _, living = held(harness, "dead", "living")
    for _ in range(6):
        harness.wait(10.0)
        harness.leases.renew("living", [living], [])
        harness.wait(10.0)
        if gone := found(harness):
            assert gone == {"dead"}
            return
    pytest.fail("the dead worker's lease never ran out")


def test_a_verdict_waits_for_the_time_that_was_granted(harness: LeaseHarness) -> None:
    dead, living = held(harness, "dead", "living")
    harness.wait(60.0)
    assert found(harness) == set()
    harness.wait(1.0)
    assert harness.leases.renew("living", [living], []) == []
    harness.wait(20.0)
    assert found(harness) == {"dead"}
    assert harness.leases.resolve_expired(dead.ref, ExpiryVerdict.QUARANTINED)
    assert not harness.leases.resolve_expired(living.ref, ExpiryVerdict.QUARANTINED)


def test_a_standstill_before_the_first_look_leaves_living_keepers_time_to_renew(
    harness: LeaseHarness,
) -> None:
    harness.server()
    harness.push("job")
    living = harness.must_claim(worker="living")
    harness.wait(60.0)
    assert found(harness) == set()
    assert harness.leases.renew("living", [living], []) == []


def test_each_standstill_of_redis_leaves_living_keepers_time_to_renew(harness: LeaseHarness) -> None:
    living, other = held(harness, "living", "other")
    for _ in range(3):
        harness.wait(60.0)
        assert harness.leases.renew("other", [other], []) == []  # it comes before the sweep's look
        assert found(harness) == set()
        harness.wait(2.0)
        assert harness.leases.renew("living", [living], []) == []
        for _ in range(8):
            harness.wait(2.0)
            harness.leases.renew("living", [living], [])
            harness.leases.renew("other", [other], [])
            assert found(harness) == set()


def looked_as_before(harness: LeaseHarness) -> None:
    """As the sweeper of a version without `had_time_us`: after 6 s without any sweep no lease expires for a
    lease time, even if that was granted before."""
    ticking, now_us = harness.prefix + "ticking", harness.now_ms * 1000
    before_us = float(harness.client.hget(ticking, "at_us") or now_us)
    harness.client.hset(ticking, "at_us", now_us)
    if now_us - before_us > 6e6:
        harness.client.hset(ticking, "floor_us", now_us + int(LEASE * 1e6))


@pytest.mark.parametrize("every", [4.0, 7.0, 10.0])
def test_a_dead_workers_lease_is_found_beside_a_sweeper_of_an_older_version(
    harness: LeaseHarness, every: float
) -> None:
    _, living = held(harness, "dead", "living")
    for turn in range(30):
        for _ in range(int(every)):
            harness.wait(1.0)
            assert harness.leases.renew("living", [living], []) == []
        if turn % 2:
            looked_as_before(harness)
        elif gone := found(harness):
            assert gone == {"dead"}
            assert (turn + 1) * every <= 2 * LEASE + 4 * every
            return
    pytest.fail("the dead worker's lease never ran out")


def test_time_granted_by_an_older_sweeper_counts_once(harness: LeaseHarness) -> None:
    """Redis stood still, and the older sweeper was the first to look."""
    held(harness, "living")
    harness.wait(60.0)
    looked_as_before(harness)
    harness.wait(1.0)
    assert found(harness) == set()
