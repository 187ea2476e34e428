"""Leases of dead workers expire even with rare sweeps; leases of live ones never expire because Redis was
paused."""

from __future__ import annotations

import pytest

from gpus.protocol import ExpiryVerdict, Lease
from tests.gpus.leasing.rig import Rig

LEASE, RENEW = 15.0, 5.0


def held(rig: Rig, *workers: str) -> list[Lease]:
    rig.server(slots=len(workers))
    rig.push(*(f"job-of-{worker}" for worker in workers))
    rig.leases.expired()
    return [rig.must_claim(worker=worker) for worker in workers]


def found(rig: Rig) -> set[str]:
    return {row.worker for row in rig.leases.expired()}


@pytest.mark.parametrize("every", [2.0, 5.0, 7.0, 14.0])
@pytest.mark.parametrize("others_live", [False, True])
def test_a_dead_workers_lease_is_found_by_rare_sweeps(rig: Rig, every: float, others_live: bool) -> None:
    _, living = held(rig, "dead", "living")
    renewed = looked = waited = 0.0
    while waited < 120.0:
        rig.wait(0.5)
        waited += 0.5
        if others_live and waited - renewed >= RENEW:
            renewed = waited
            assert rig.leases.renew("living", [living], []) == []
        if waited - looked >= every:
            looked = waited
            if "dead" in (gone := found(rig)):
                assert "living" not in gone or not others_live
                break
    most = LEASE if others_live else 2 * LEASE  # no other call: perhaps Redis was paused
    assert waited <= most + 2 * every


def test_a_lease_gets_time_to_renew_only_once(rig: Rig) -> None:
    """The other one that is renewed now and then is a job that each time was short."""
    _, living = held(rig, "dead", "living")
    for _ in range(6):
        rig.wait(10.0)
        rig.leases.renew("living", [living], [])
        rig.wait(10.0)
        if gone := found(rig):
            assert gone == {"dead"}
            return
    pytest.fail("the dead worker's lease never ran out")


def test_a_verdict_waits_for_the_time_that_was_granted(rig: Rig) -> None:
    dead, living = held(rig, "dead", "living")
    rig.wait(60.0)
    assert found(rig) == set()
    rig.wait(1.0)
    assert rig.leases.renew("living", [living], []) == []
    rig.wait(20.0)
    assert found(rig) == {"dead"}
    assert rig.leases.resolve_expired(dead.ref, ExpiryVerdict.QUARANTINED)
    assert not rig.leases.resolve_expired(living.ref, ExpiryVerdict.QUARANTINED)


def test_a_standstill_before_the_first_look_leaves_living_keepers_time_to_renew(rig: Rig) -> None:
    rig.server()
    rig.push("job")
    living = rig.must_claim(worker="living")
    rig.wait(60.0)
    assert found(rig) == set()
    assert rig.leases.renew("living", [living], []) == []


def test_each_standstill_of_redis_leaves_living_keepers_time_to_renew(rig: Rig) -> None:
    living, other = held(rig, "living", "other")
    for _ in range(3):
        rig.wait(60.0)
        assert rig.leases.renew("other", [other], []) == []  # it comes before the sweep's look
        assert found(rig) == set()
        rig.wait(2.0)
        assert rig.leases.renew("living", [living], []) == []
        for _ in range(8):
            rig.wait(2.0)
            rig.leases.renew("living", [living], [])
            rig.leases.renew("other", [other], [])
            assert found(rig) == set()


def looked_as_before(rig: Rig) -> None:
    """As the sweeper of a version without `had_time_us`: after 6 s without any sweep no lease expires for a
    lease time, even if that was granted before."""
    ticking, now_us = rig.prefix + "ticking", rig.now_ms * 1000
    before_us = float(rig.client.hget(ticking, "at_us") or now_us)
    rig.client.hset(ticking, "at_us", now_us)
    if now_us - before_us > 6e6:
        rig.client.hset(ticking, "floor_us", now_us + int(LEASE * 1e6))


@pytest.mark.parametrize("every", [4.0, 7.0, 10.0])
def test_a_dead_workers_lease_is_found_beside_a_sweeper_of_an_older_version(rig: Rig, every: float) -> None:
    _, living = held(rig, "dead", "living")
    for turn in range(30):
        for _ in range(int(every)):
            rig.wait(1.0)
            assert rig.leases.renew("living", [living], []) == []
        if turn % 2:
            looked_as_before(rig)
        elif gone := found(rig):
            assert gone == {"dead"}
            assert (turn + 1) * every <= 2 * LEASE + 4 * every
            return
    pytest.fail("the dead worker's lease never ran out")


def test_time_granted_by_an_older_sweeper_counts_once(rig: Rig) -> None:
    """Redis stood still, and the older sweeper was the first to look."""
    held(rig, "living")
    rig.wait(60.0)
    looked_as_before(rig)
    rig.wait(1.0)
    assert found(rig) == set()
