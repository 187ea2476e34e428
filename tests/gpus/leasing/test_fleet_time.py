"""The fleet's time advances by elapsed time, however Redis' clock is set."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gpus.leasing import keys
from gpus.leasing.connect import connect
from gpus.leasing.scripts import Client
from gpus.leasing.store import RedisLeases
from gpus.protocol import Lease
from gpus.registry.processes import IndexGate
from tests.gpus.leasing.lease_harness import POOL, LeaseHarness

LEASE, RENEW, LOOK = 15.0, 5.0, 2.0
HOUR = 3600.0


class Wall(LeaseHarness):
    """A harness whose Redis has a wall clock that jumps, while the callers' monotonic clocks advance."""

    def __init__(self, client: Client, fleet: str) -> None:
        self.passed = 1000.0
        self.living: list[Lease] = []
        super().__init__(client, fleet, monotonic=lambda: self.passed)
        self.open()
        self.leases.expired()

    def wait(self, seconds: float) -> None:
        """As time passes in a system that works: the sweep looks and keepers renew."""
        left = seconds
        while left > 0:
            step = min(left, LOOK)
            left -= step
            self.sleep(step)
            if self.living:
                assert self.leases.renew("living", self.living, []) == []
            if left > 0:
                self.leases.expired()

    def sleep(self, seconds: float) -> None:
        """Time passes without calls."""
        self.passed += seconds
        super().wait(seconds)

    def set_clock(self, seconds: float) -> None:
        super().wait(seconds)

    def older_renewal(self, lease: Lease) -> None:
        """As a version does that goes by Redis' clock alone."""
        self.client.zadd(f"{self.prefix}expiry", {lease.attempt_id: (self.now_ms + LEASE * 1000) * 1000})

    def dead(self) -> set[str]:
        return {row.ref.job_id for row in self.leases.expired()}


@pytest.fixture
def wall(client: Client, fleet: str) -> Wall:
    return Wall(client, fleet)


def two_leases(wall: Wall) -> tuple[Lease, Lease]:
    """A dead worker's and a living one's."""
    wall.server(slots=2)
    wall.push("dead", "living")
    dead, living = wall.must_claim(worker="dead"), wall.must_claim(worker="living")
    wall.living.append(living)
    return dead, living


STEPS = pytest.mark.parametrize("step", [-HOUR, -60.0, 60.0, HOUR, 30 * 24 * HOUR])


@STEPS
def test_a_dead_workers_lease_expires_in_time_and_a_live_ones_never(wall: Wall, step: float) -> None:
    two_leases(wall)
    wall.wait(4.0)
    wall.set_clock(step)
    assert wall.dead() == set()
    wall.wait(8.0)
    assert wall.dead() == set()
    wall.wait(6.0)
    assert wall.dead() == {"dead"}
    wall.set_clock(-step)
    wall.wait(40.0)
    assert wall.dead() == {"dead"}


@STEPS
def test_rests_tokens_and_ages_use_the_fleets_time(wall: Wall, step: float) -> None:
    def take() -> bool:
        return wall.leases.take_tokens("t", 1, per_second=0.1, burst=1).taken

    wall.server()
    wall.push("j")
    assert take()
    wall.leases.rest_server("s1", 20.0)
    wall.leases.record_heartbeat("s1", {})
    wall.set_clock(step)
    wall.wait(8.0)
    assert not take()
    assert wall.claim() is None
    assert wall.leases.heartbeats(["s1"])["s1"].age_seconds == pytest.approx(8.0, abs=3.0)
    wall.wait(6.0)
    assert take()
    wall.wait(13.0)
    assert wall.claim() is not None
    assert wall.leases.generation_age_seconds() == pytest.approx(27.0, abs=6.0)


def test_time_never_falls_and_fences_grow_whatever_the_clock_does(wall: Wall) -> None:
    chance = random.Random(7)
    wall.server()
    before: Lease | None = None
    for number in range(200):
        wall.push(f"j{number}")
        wall.set_clock(chance.choice([0, 0, 0, -0.004, -1, -HOUR, 3, HOUR]))
        wall.sleep(chance.choice([0, 0.001, 0.5, 5]))
        lease = wall.must_claim()
        if before is not None:
            assert lease.fence > before.fence
            assert lease.leased_at_ms >= before.leased_at_ms
        wall.release(lease)
        wall.leases.confirm_ends([lease.ref])
        before = lease


def test_the_fleets_time_approaches_the_clock_by_a_tenth(wall: Wall) -> None:
    wall.server()

    def ahead() -> float:
        wall.push(job := f"j{wall.passed}")
        lease = wall.must_claim()
        wall.release(lease, "free")
        wall.leases.remove(POOL, wall.tickets[job])
        return (lease.leased_at_ms - wall.now_ms) / 1000

    for step in (-60.0, 60.0):
        wall.set_clock(step)
        assert abs(ahead()) == pytest.approx(60.0, abs=0.1)
        wall.wait(100.0)
        assert abs(ahead()) == pytest.approx(50.0, abs=0.1)
        wall.wait(600.0)
        assert ahead() == 0.0


def test_a_long_time_without_calls_counts(wall: Wall) -> None:
    wall.server()
    wall.push("j")
    wall.leases.rest_server("s1", 600.0)
    wall.sleep(601.0)
    assert wall.claim() is not None


def test_a_caller_that_is_new_takes_the_clocks_word(wall: Wall) -> None:
    wall.server()
    wall.push("j")
    wall.leases.rest_server("s1", 600.0)
    wall.sleep(601.0)
    new = RedisLeases(wall.client, wall.leases.fleet, now_ms=lambda: wall.now_ms, monotonic=lambda: 5.0)
    assert new.claim(POOL, worker="w", attempt_id="a") is not None


def test_an_index_gates_calls_advance_the_fleets_time(wall: Wall) -> None:
    """A sweeper of another layout that waits until the index is abandoned; its sweeps come late."""
    gate = IndexGate(
        wall.client,
        wall.leases.fleet,
        keys.LAYOUT,
        now_ms=lambda: wall.now_ms,
        monotonic=lambda: wall.passed,
    )
    gate.activity()
    wall.set_clock(-60.0)
    for _ in range(10):
        wall.sleep(4.0)
        swept_seconds = gate.activity().swept_seconds
    assert swept_seconds == pytest.approx(36.0, abs=4.0), "a tenth less, because the clock was set back"


def test_a_rebuild_begins_after_the_latest_start_in_the_database(wall: Wall) -> None:
    wall.server()
    wall.push("j1")
    before = wall.must_claim()
    wall.client.flushdb()
    wall.set_clock(-120.0)
    wall.sleep(1.0)
    assert wall.leases.begin_rebuild("r", latest_start_us=before.leased_at_ms * 1000)
    assert wall.leases.wipe("r")
    wall.leases.open_generation("r")
    wall.server()
    wall.push("j2")
    assert wall.must_claim().fence > before.fence


def test_a_rebuild_of_a_closed_index_continues_its_time(wall: Wall) -> None:
    wall.server()
    wall.push("j1")
    before = wall.must_claim()
    wall.sleep(1.0)
    wall.set_clock(-120.0)
    wall.open()
    wall.server()
    wall.push("j2")
    assert wall.must_claim().fence > before.fence


# -- beside processes of a version that goes by Redis' clock alone ------------------------------------------


@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_leases_renewed_by_an_older_version_expire_by_redis_clock(wall: Wall, step: float) -> None:
    dead, living = two_leases(wall)
    wall.living.clear()
    wall.set_clock(step)
    wall.older_renewal(dead)
    for _ in range(8):
        wall.older_renewal(living)
        wall.wait(LOOK)
    assert wall.dead() == {"dead"}


@pytest.mark.parametrize("newer_looks_too", [False, True])
def test_where_an_older_sweeper_looks_time_does_not_fall_behind_the_clock(
    wall: Wall, newer_looks_too: bool
) -> None:
    _, living = two_leases(wall)
    wall.wait(1.0)
    wall.client.hset(f"{wall.prefix}ticking", "at_us", wall.now_ms * 1000)
    wall.wait(1.0)
    if newer_looks_too:
        wall.leases.expired()
    wall.set_clock(60.0)
    assert wall.leases.renew("living", [living], []) == []
    runs_out: Any = wall.client.zscore(f"{wall.prefix}expiry", living.attempt_id)
    assert runs_out >= (wall.now_ms + LEASE * 1000) * 1000


def test_many_live_leases_of_an_older_version_do_not_hide_a_dead_one(wall: Wall) -> None:
    wall.server(slots=30)
    wall.push(*(f"j{number:02}" for number in range(30)))
    leases = [wall.must_claim() for _ in range(30)]
    wall.set_clock(-HOUR)
    wall.leases.expired()
    wall.wait(LEASE + 3.0)  # by a tenth slower than usual
    for lease in leases[:-1]:
        wall.older_renewal(lease)
    assert [row.ref for row in wall.leases.expired(limit=5)] == [leases[-1].ref]


# -- the clock in the server process' memory -------------------------------------------------------


def clock_key(wall: Wall) -> str:
    return f"gpuq:{{{wall.leases.fleet}}}:clock"


def asked_for(wall: Wall, calls: int) -> int:
    """How often so many calls read the clock's key."""
    with wall.client.monitor() as watcher:
        for _ in range(calls):
            wall.leases.heartbeats(["s1"])
        wall.client.echo("over")
        found = 0
        for said in watcher.listen():
            if "over" in said["command"]:
                return found
            found += said["command"] == f"GET {clock_key(wall)}"
    raise AssertionError


def test_many_calls_read_the_clocks_key_once(wall: Wall) -> None:
    wall.sleep(1.0)
    assert asked_for(wall, 30) == 1
    wall.sleep(0.02)
    assert asked_for(wall, 30) == 1


def test_time_never_falls_behind_unsaved_time(wall: Wall) -> None:
    wall.sleep(1.0)
    wall.leases.record_heartbeat("s1", {})  # saved
    wall.sleep(0.009)
    wall.leases.record_heartbeat("s1", {})  # remembered only
    wall.set_clock(-0.005)
    wall.server()
    wall.push("j")
    lease = wall.must_claim()
    assert lease.leased_at_ms >= wall.now_ms + 5


def test_time_saved_by_another_version_is_seen_within_ten_milliseconds(wall: Wall) -> None:
    """Its library remembers for itself."""
    wall.server()
    wall.push("j1", "j2")
    first = wall.must_claim()
    ahead_us = (wall.now_ms + 60_000) * 1000
    wall.client.set(clock_key(wall), msgpack(wall.now_ms * 1000) + msgpack(ahead_us))
    wall.sleep(0.011)
    assert wall.next(first).leased_at_ms >= wall.now_ms + 59_000


def msgpack(number: int) -> bytes:
    return b"\xcf" + number.to_bytes(8, "big")


def test_fleets_with_one_name_in_two_databases_have_separate_times(wall: Wall) -> None:
    url = "unix://{path}?db=1".format(**wall.client.connection_pool.connection_kwargs)
    other_client = connect(url)
    other = Wall(other_client, wall.leases.fleet)
    try:
        other.sleep(HOUR)
        other.leases.expired()
        other.set_clock(-HOUR)
        for one in (wall, other):
            one.server()
            one.push("j")
        assert wall.must_claim().leased_at_ms - wall.now_ms == 0
        assert other.must_claim().leased_at_ms - other.now_ms == pytest.approx(HOUR * 1000, abs=10)
    finally:
        other_client.flushdb()  # type: ignore[union-attr]
        other_client.close()
