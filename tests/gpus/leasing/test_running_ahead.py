"""Prefetching leaves no slot empty that the tenant's limit would allow to use."""

from __future__ import annotations

import heapq
import random

import pytest

from gpus.protocol import Lease
from tests.gpus.leasing.followed import reserve
from tests.gpus.leasing.lease_harness import LeaseHarness


class Slots:
    """Runs jobs of random lengths on all slots, as workers do that claim ahead; counts how many are busy."""

    def __init__(
        self, harness: LeaseHarness, slots: int, tenants: dict[str, int | None], seed: int = 1
    ) -> None:
        self.harness, self.slots, self.chance = harness, slots, random.Random(seed)
        self.begun_ms = harness.now_ms
        harness.server(slots=slots)
        for tenant, most in tenants.items():
            harness.tenant(tenant, most=most)
            harness.push(*(f"{tenant}{number}" for number in range(600)), tenant=tenant)
        self.ends: list[tuple[int, int, Lease, Lease | None]] = []
        self.most: dict[str, int] = dict.fromkeys(tenants, 0)
        self.number = 0
        self.busy_ms = 0.0
        self.tenant_ms = dict.fromkeys(tenants, 0.0)
        self.followers = 0

    def run(self, seconds: float) -> float:
        """The mean number of busy slots."""
        until = self.begun_ms + int(seconds * 1000)
        self._claim()
        while self.ends and self.harness.now_ms < until:
            at, _, lease, follower = heapq.heappop(self.ends)
            passed = at - self.harness.now_ms
            for one in (lease, *(running for _, _, running, _ in self.ends)):
                self.busy_ms += passed
                self.tenant_ms[one.tenant] += passed
            self.harness.now_ms = at
            self.number += 1
            following = self.harness.release(
                lease,
                gpu_seconds=0.5,
                next_attempt_id=follower.attempt_id if follower else f"n{self.number}",
            )
            self.harness.leases.confirm_ends([lease.ref])
            if following is not None:
                self._begin(following)
            self._claim()
        return self.busy_ms / (self.harness.now_ms - self.begun_ms)

    def _claim(self) -> None:
        while (lease := self.harness.claim()) is not None:
            self._begin(lease)

    def _begin(self, lease: Lease) -> None:
        self.number += 1
        follower = reserve(self.harness, lease, f"f{self.number}")
        self.followers += follower is not None
        end = self.harness.now_ms + self.chance.randint(200, 800)
        heapq.heappush(self.ends, (end, self.number, lease, follower))
        for tenant in self.most:
            running = sum(one.tenant == tenant for _, _, one, _ in self.ends)
            self.most[tenant] = max(self.most[tenant], running)


@pytest.mark.parametrize(
    "tenants",
    [{"a": 4, "b": 4}, {"a": 2, "b": 3, "c": 3}, {"a": 6, "b": 6}, {"a": 8, "b": None}, {"a": 4, "b": None}],
)
def test_limits_that_add_up_to_the_slots_leave_none_empty(
    harness: LeaseHarness, tenants: dict[str, int | None]
) -> None:
    slots = Slots(harness, 8, tenants)
    assert slots.run(30) >= 7.99
    assert all(slots.most[tenant] <= most for tenant, most in tenants.items() if most)


def test_a_limit_is_reached_beside_a_tenant_that_has_none(harness: LeaseHarness) -> None:
    """The next tenant is not chosen while the running job keeps its tenant at the limit."""
    slots = Slots(harness, 8, {"a": 2, "b": None})
    slots.run(20)
    assert slots.most["a"] == 2
    assert slots.tenant_ms["a"] / (harness.now_ms - slots.begun_ms) >= 1.9


def test_a_tenant_that_waits_alone_reaches_its_limit(harness: LeaseHarness) -> None:
    slots = Slots(harness, 8, {"a": 8})
    assert slots.run(20) >= 7.99


@pytest.mark.parametrize("most", [None, 100])
def test_where_the_limit_leaves_room_for_every_slot_jobs_are_claimed_ahead(
    harness: LeaseHarness, most: int | None
) -> None:
    slots = Slots(harness, 8, {"a": most, "b": most})
    assert slots.run(10) >= 7.99
    assert slots.followers > 100
