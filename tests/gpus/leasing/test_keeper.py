"""The keeper renews leases, reports lost ones, and keeps the time of each confirmation."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from gpus.errors import LeasingUnavailable
from gpus.leasing.connect import TIMEOUT_SECONDS
from gpus.leasing.contract import Leases
from gpus.leasing.keeper import RETRY_SECONDS, LeaseKeeper, announced_seconds
from gpus.protocol import Lease, LeaseRef


class HandClock:
    def __init__(self) -> None:
        self.at = 100.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.at, UTC)

    def monotonic(self) -> float:
        return self.at


class RecordingLeases:
    """The renewals of a lease store that answers, fails or loses leases on order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[LeaseRef], list[LeaseRef]]] = []
        self.followers: list[list[LeaseRef]] = []
        self.lost: list[LeaseRef] = []
        self.down = False
        self.whole = True
        self.during: Callable[[], object] = lambda: None
        self.called = threading.Event()

    def renew(
        self,
        worker: str,
        leases: Sequence[Lease],
        ending: Sequence[Lease],
        followers: Sequence[Lease],
    ) -> list[LeaseRef]:
        self.calls.append((worker, [lease.ref for lease in leases], [lease.ref for lease in ending]))
        self.followers.append([lease.ref for lease in followers])
        self.called.set()
        self.during()
        if self.down:
            raise LeasingUnavailable("Redis does not answer")
        return self.lost

    def generation(self) -> str | None:
        if self.down:
            raise LeasingUnavailable("Redis does not answer")
        return "g1" if self.whole else None


def a_lease(number: int) -> Lease:
    return Lease(
        pool="flux", slot=f"flux-1/{number}", job_id=f"job{number}", attempt_id=f"attempt{number}", epoch=1,
        model="flux", tenant="t", priority=5, fence=1, leased_at_ms=0, estimate_seconds=1.0,
    )  # fmt: skip


class Bench:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.fleets: dict[str, RecordingLeases] = {"main": RecordingLeases(), "other": RecordingLeases()}
        self.lost: list[LeaseRef] = []
        self.keeper = LeaseKeeper(
            lambda fleet: cast(Leases, self.fleets[fleet]),
            worker="w1", renew_seconds=5.0, clock=self.clock, on_lost=self.lost.append,
        )  # fmt: skip

    @property
    def main(self) -> RecordingLeases:
        return self.fleets["main"]

    def step(self, after_seconds: float) -> list[LeaseRef]:
        self.clock.at += after_seconds
        return self.keeper.step(self.clock.at)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_leases_and_settling_ends_are_renewed_in_one_call_per_fleet(bench: Bench) -> None:
    for number in (1, 2):
        bench.keeper.add(a_lease(number))
    bench.keeper.add(a_lease(3), fleet="other")
    bench.keeper.mark_ending(a_lease(2).ref)
    bench.step(1)
    assert bench.main.calls == [("w1", [a_lease(1).ref], [a_lease(2).ref])]
    assert bench.fleets["other"].calls == [("w1", [a_lease(3).ref], [])]


def test_a_renewed_fleet_rests_for_renew_seconds(bench: Bench) -> None:
    bench.keeper.add(a_lease(1))
    for _ in range(11):
        bench.step(1)
    assert len(bench.main.calls) == 3


def test_leases_are_announced_at_once_to_an_index_in_rebuild(bench: Bench) -> None:
    bench.keeper.add(a_lease(1))
    bench.keeper.add(a_lease(2), fleet="other")
    bench.step(1)
    bench.main.whole = False
    bench.step(1)
    assert [len(leases.calls) for leases in bench.fleets.values()] == [2, 1]


def test_an_index_that_could_not_be_looked_at_is_renewed_next(bench: Bench) -> None:
    """The index may be new then, and waits for announcements for `announced_seconds` only."""
    bench.keeper.add(a_lease(1))
    bench.step(1)
    bench.main.down = True
    bench.step(1)
    bench.main.down = False
    bench.step(1)
    assert len(bench.main.calls) == 2


def test_each_fleet_that_hangs_makes_a_keepers_round_longer() -> None:
    assert announced_seconds(1) >= RETRY_SECONDS + TIMEOUT_SECONDS
    assert announced_seconds(3) == announced_seconds(1) + 2 * TIMEOUT_SECONDS


def test_a_failed_renewal_is_tried_again_after_a_second_and_ages_the_lease(bench: Bench) -> None:
    bench.keeper.add(a_lease(1))
    bench.step(1)
    bench.main.down = True
    bench.step(5)
    bench.step(1)
    assert len(bench.main.calls) == 3
    assert bench.keeper.age_seconds(a_lease(1)) == 6
    bench.main.down = False
    bench.step(1)
    assert bench.keeper.age_seconds(a_lease(1)) == 0
    assert bench.lost == []


def test_one_fleet_being_down_does_not_keep_another_from_renewing(bench: Bench) -> None:
    bench.keeper.add(a_lease(1), fleet="main")
    bench.keeper.add(a_lease(2), fleet="other")
    bench.main.down = True
    bench.step(1)
    assert len(bench.fleets["other"].calls) == 1


def test_age_counts_from_the_moment_the_claim_was_sent(bench: Bench) -> None:
    bench.keeper.add(a_lease(1), asked_at=bench.clock.at - 2)
    assert bench.keeper.age_seconds(a_lease(1)) == 2


def test_age_counts_from_the_moment_the_renewal_was_sent_not_answered(bench: Bench) -> None:
    bench.keeper.add(a_lease(1))

    def slow_answer() -> None:
        bench.clock.at += 1.5

    bench.main.during = slow_answer
    bench.step(1)
    assert bench.keeper.age_seconds(a_lease(1)) == 1.5


def test_a_lost_lease_is_reported_once_and_has_no_age(bench: Bench) -> None:
    bench.keeper.add(a_lease(1))
    bench.main.lost = [a_lease(1).ref]
    assert bench.step(1) == [a_lease(1).ref]
    bench.step(5)
    assert bench.lost == [a_lease(1).ref]
    assert bench.keeper.age_seconds(a_lease(1)) == math.inf
    assert bench.keeper.held() == 0


def test_a_settling_end_that_is_gone_is_not_reported_as_lost(bench: Bench) -> None:
    bench.keeper.add(a_lease(1))
    bench.keeper.mark_ending(a_lease(1).ref)
    bench.main.lost = [a_lease(1).ref]
    assert bench.step(1) == []
    assert bench.lost == []


@pytest.mark.parametrize("end", ["mark_ending", "forget"])
def test_a_run_that_ends_while_the_renewal_is_under_way_was_not_lost(bench: Bench, end: str) -> None:
    bench.keeper.add(a_lease(1))
    bench.main.lost = [a_lease(1).ref]
    bench.main.during = lambda: getattr(bench.keeper, end)(a_lease(1).ref)
    bench.step(1)
    assert bench.lost == []


def test_an_end_settled_during_its_renewal_is_kept(bench: Bench) -> None:
    """A rebuilt index may have received it after it was settled."""
    ref = a_lease(1).ref
    bench.keeper.add(a_lease(1))
    bench.keeper.mark_ending(ref)
    forgotten: list[bool] = []

    def settled_meanwhile() -> None:
        forgotten.append(bench.keeper.forget_end(ref, asked_at=bench.clock.at))
        bench.clock.at += 0.5

    bench.main.during = settled_meanwhile
    before = bench.clock.at
    bench.step(1)
    assert forgotten == [False]
    assert not bench.keeper.forget_end(ref, asked_at=before + 1), "its answer came later"
    assert bench.keeper.held() == 1
    assert bench.keeper.forget_end(ref, asked_at=bench.clock.at)
    assert bench.keeper.held() == 0


def test_a_returned_lease_is_renewed_and_not_announced_as_an_end(bench: Bench) -> None:
    """Followers are not announced to a rebuilt index either."""
    ref = a_lease(1).ref
    bench.keeper.add(a_lease(1))
    bench.keeper.mark_returned(ref)
    bench.main.lost = [ref]
    assert bench.step(1) == []
    bench.step(1)
    assert (bench.main.calls, bench.main.followers) == ([("w1", [], [])], [[ref]])
    assert (bench.lost, bench.keeper.held()) == ([], 1)


def test_a_listener_that_fails_does_not_hide_the_other_losses(bench: Bench) -> None:
    heard: list[str] = []

    def listen(ref: LeaseRef) -> None:
        heard.append(ref.job_id)
        raise RuntimeError

    bench.keeper._on_lost = listen
    for number in (1, 2):
        bench.keeper.add(a_lease(number))
    bench.main.lost = [a_lease(1).ref, a_lease(2).ref]
    bench.step(1)
    assert heard == ["job1", "job2"]


def test_without_leases_the_keeper_makes_no_call(bench: Bench) -> None:
    bench.keeper.add(a_lease(1))
    bench.keeper.forget(a_lease(1).ref)
    bench.step(10)
    assert bench.main.calls == []


def test_the_thread_survives_whatever_a_renewal_raises_and_stops_at_once(bench: Bench) -> None:
    class Failing(RecordingLeases):
        def renew(self, *args: Any) -> list[LeaseRef]:
            super().renew(*args)
            raise ValueError("a bug")

    keeper = LeaseKeeper(
        lambda fleet: cast(Leases, failing),
        worker="w1", renew_seconds=0.01, clock=bench.clock, on_lost=bench.lost.append,
    )  # fmt: skip
    failing = Failing()
    keeper.add(a_lease(1))
    keeper.start()
    for _ in range(2):
        assert failing.called.wait(30)
        failing.called.clear()
    keeper.stop()
    assert not any(
        thread.name == "lease-keeper" and thread is keeper._thread for thread in threading.enumerate()
    )


def test_a_follower_is_renewed_as_a_follower_until_it_begins(bench: Bench) -> None:
    bench.keeper.add(a_lease(1))
    bench.keeper.add(a_lease(2), follows=True)
    bench.step(0)
    assert bench.keeper.begin_follower(a_lease(2).ref)
    bench.keeper.mark_ending(a_lease(1).ref)
    bench.step(5)
    assert bench.main.calls == [
        ("w1", [a_lease(1).ref], []),
        ("w1", [a_lease(2).ref], [a_lease(1).ref]),
    ]
    assert bench.main.followers == [[a_lease(2).ref], []]


def test_a_follower_that_was_lost_does_not_begin(bench: Bench) -> None:
    bench.keeper.add(a_lease(2), follows=True)
    bench.main.lost = [a_lease(2).ref]
    assert bench.step(0) == [a_lease(2).ref]
    assert bench.lost == [a_lease(2).ref]
    assert not bench.keeper.begin_follower(a_lease(2).ref)


def test_a_follower_begun_while_lost_is_announced_at_once(bench: Bench) -> None:
    """A rebuilt index does not know the follower; the slot's holder must be announced."""
    bench.keeper.add(a_lease(2), follows=True)
    bench.main.lost = [a_lease(2).ref]
    bench.main.during = lambda: bench.keeper.begin_follower(a_lease(2).ref)
    assert bench.step(0) == []
    bench.main.lost = []
    bench.step(0)
    assert bench.main.calls[-1] == ("w1", [a_lease(2).ref], [])
    assert bench.keeper.age_seconds(a_lease(2)) == 0
