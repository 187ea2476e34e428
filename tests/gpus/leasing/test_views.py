"""Read-only views for operators and the lock sync."""

from __future__ import annotations

import pytest

from tests.gpus.leasing.lease_harness import POOL, LeaseHarness


def test_views_show_slots_and_depths(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push("j1", "j2", "j3")
    lease = harness.must_claim()
    harness.wait(4)
    view, free = harness.leases.slots("s1")
    assert (view.slot, view.pool, view.state, view.warm_model) == ("s1/0", POOL, "leased", "flux")
    assert (view.job_id, view.attempt_id, view.epoch, view.model) == ("j1", lease.attempt_id, 1, "flux")
    assert (view.held_seconds, view.expires_in_seconds) == (4.0, 11.0)
    assert (free.state, free.job_id, free.attempt_id, free.expires_in_seconds) == ("free", None, None, None)
    depth = harness.leases.depth(POOL)
    assert depth.waiting == {"flux": 2}
    assert depth.slots == {"free": 1, "leased": 1}
    assert harness.leases.slots("unknown") == []


def test_many_servers_are_asked_a_few_at_a_time(
    harness: LeaseHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"s{number}" for number in range(45)]
    for name in names:
        harness.server(name, slots=2)
    asked = []
    run = harness.leases._run
    monkeypatch.setattr(
        harness.leases, "_run", lambda script, **args: asked.append(script) or run(script, **args)
    )
    views = harness.leases.slots_of(["unknown", *names])
    assert [view.slot for view in views] == [f"{name}/{index}" for name in names for index in (0, 1)]
    assert asked == ["slots"] * 10
    assert harness.leases.slots_of([]) == []


def test_the_last_change_is_the_last_beginning_or_end_of_a_lease(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    assert harness.leases.last_lease_change_seconds("s1") == float("inf")
    harness.push("j1")
    lease = harness.must_claim()
    harness.wait(3)
    assert harness.leases.last_lease_change_seconds("s1") == 3.0
    harness.release(lease, "suspect")
    harness.wait(2)
    harness.leases.free_slot(lease.slot)
    assert harness.leases.last_lease_change_seconds("s1") == 2.0
