"""Followers: prefetched while the holder runs; they begin, or end with their holder."""

from __future__ import annotations

import pytest

from gpus.errors import Verdict
from gpus.leasing.values import ParkedFor
from gpus.protocol import PushOutcome
from tests.gpus.leasing.followed import followed, reserve, state
from tests.gpus.leasing.lease_harness import MODEL, POOL, WORKER, LeaseHarness
from tests.support.lease_expiry import expire

# -- claimed ahead -----------------------------------------------------------------------------------------


def test_reserve_takes_the_next_ticket_and_leaves_the_slot_to_its_holder(harness: LeaseHarness) -> None:
    holder, follower = followed(harness)
    assert (follower.job_id, follower.slot, follower.attempt_id, follower.epoch) == ("j2", "s1/0", "next", 1)
    assert follower.fence > holder.fence
    assert state(harness) == ("leased", "first", "next")
    assert harness.waiting() == 1
    assert harness.claim() is None
    assert harness.in_line("j2")
    assert harness.push("j2")[0].outcome is PushOutcome.HELD
    assert not harness.leases.remove(POOL, harness.tickets["j2"])


def test_reserve_is_idempotent_and_a_slot_has_one_follower(harness: LeaseHarness) -> None:
    holder, follower = followed(harness)
    assert reserve(harness, holder) == follower
    assert reserve(harness, holder, "another") is None
    assert harness.waiting() == 1


def test_only_the_holder_can_reserve(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1", "j2", "j3")
    holder = harness.must_claim()
    assert reserve(harness, holder, worker="w2") is None
    harness.release(holder)
    assert reserve(harness, holder) is None
    assert harness.waiting() == 2


def test_no_prefetch_with_fewer_tickets_than_running_slots(harness: LeaseHarness) -> None:
    """Another slot is free for it as soon as this one."""
    harness.server(slots=2)
    harness.push("j1", "j2", "j3")
    holder, other = harness.must_claim(), harness.must_claim()
    assert reserve(harness, holder) is None
    harness.push("j4")
    assert reserve(harness, holder) is not None
    assert reserve(harness, other) is None


def test_no_prefetch_on_a_server_that_takes_no_jobs(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1", "j2", "j3")
    holder = harness.must_claim()
    harness.server(desired="draining")
    assert reserve(harness, holder) is None
    harness.server()
    harness.leases.rest_server("s1", 5)
    assert reserve(harness, holder) is None
    harness.wait(6)
    assert reserve(harness, holder) is not None


def test_no_prefetch_after_a_failure_of_a_model(harness: LeaseHarness) -> None:
    """Whether it may begin is known when the run before it is over."""
    harness.server(slots=2)
    harness.push("j1", "j2", "j3", "j4", "j5")
    holder, other = harness.must_claim(), harness.must_claim()
    harness.release(other, verdict=Verdict.MODEL)
    assert reserve(harness, holder) is None


def test_a_running_limit_counts_followers(harness: LeaseHarness) -> None:
    harness.tenant("t1", most=3)
    harness.server(slots=2)
    harness.push("j1", "j2", "j3", "j4", "j5")
    holder = harness.must_claim("first")
    follower = reserve(harness, holder)
    assert follower is not None
    second = harness.must_claim("second")
    assert (running(harness, "t1"), reserve(harness, second, "later")) == (3, None)
    assert harness.release(holder, begun=follower) is None
    harness.leases.confirm_ends([holder.ref])
    assert running(harness, "t1") == 2


def test_a_limit_that_claiming_ahead_would_use_up_is_kept_for_free_slots(harness: LeaseHarness) -> None:
    harness.tenant("t1", most=2)
    harness.server(slots=2)
    harness.push("j1", "j2", "j3", "j4")
    assert reserve(harness, harness.must_claim()) is None
    assert harness.claim() is not None


def running(harness: LeaseHarness, tenant: str) -> int:
    return int(harness.client.scard(f"{harness.prefix}running:{tenant}"))


def test_a_new_running_limit_counts_existing_followers(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push("j1", "j2", "j3", "j4")
    holder = harness.must_claim()
    assert reserve(harness, holder) is not None
    harness.tenant("t1", most=2)
    assert harness.claim() is None


# -- it begins ---------------------------------------------------------------------------------------------


def test_a_begun_follower_holds_the_slot_and_gets_a_follower(harness: LeaseHarness) -> None:
    holder, follower = followed(harness)
    harness.push("j4", "j5")
    third = harness.release(holder, gpu_seconds=1.0, begun=follower, next_attempt_id="third")
    assert third is not None
    assert (third.job_id, third.slot) == ("j3", "s1/0")
    assert state(harness) == ("leased", "next", "third")
    assert third.fence > follower.fence
    assert harness.leases.is_held(follower.ref)
    assert harness.release(holder, gpu_seconds=1.0, begun=follower, next_attempt_id="third") == third
    harness.leases.confirm_ends([holder.ref])
    assert state(harness) == ("leased", "next", "third")
    assert harness.push("j1")[0].outcome is not PushOutcome.HELD


def test_the_previous_end_still_waits_for_its_commit(harness: LeaseHarness) -> None:
    holder, follower = followed(harness)
    harness.release(holder, begun=follower)
    assert harness.leases.is_held(holder.ref)
    assert harness.push("j1")[0].outcome is PushOutcome.HELD
    harness.leases.confirm_ends([holder.ref])
    assert not harness.leases.is_held(holder.ref)


def test_a_follower_may_begin_before_its_holder_is_released(harness: LeaseHarness) -> None:
    """Its start is committed by then, so its lease must be visible."""
    holder, follower = followed(harness)
    assert harness.leases.is_held(follower.ref)
    assert harness.leases.renew(WORKER, [follower], [holder]) == []
    expire(harness, 14)
    assert harness.leases.renew(WORKER, [follower], [holder]) == []
    expire(harness, 14)
    assert harness.leases.expired() == []
    harness.release(holder, begun=follower)
    assert state(harness) == ("leased", "next", None)


def test_a_release_for_the_follower_begins_it(harness: LeaseHarness) -> None:
    holder, follower = followed(harness)
    assert harness.release(holder, next_attempt_id="next") == follower
    assert harness.release(holder, next_attempt_id="next") == follower
    assert state(harness) == ("leased", "next", None)


def test_a_release_drops_the_follower_if_the_slot_may_not_continue(harness: LeaseHarness) -> None:
    holder, _ = followed(harness)
    harness.server(desired="draining")
    assert harness.release(holder, next_attempt_id="next") is None
    assert state(harness) == ("settling", "first", None)
    assert not harness.in_line("j2")


def test_a_release_drops_the_follower_of_a_parked_tenant(harness: LeaseHarness) -> None:
    holder, _ = followed(harness)
    harness.leases.set_paused_tenants(POOL, ["t1"], reason=ParkedFor.QUOTA)
    assert harness.release(holder, next_attempt_id="next") is None
    assert not harness.in_line("j2")


def test_a_release_begins_the_follower_of_a_tenant_at_its_limit(harness: LeaseHarness) -> None:
    holder, follower = followed(harness)
    harness.tenant("t1", most=1)
    assert harness.release(holder, next_attempt_id="next") == follower


def test_a_release_for_another_attempt_gets_another_ticket(harness: LeaseHarness) -> None:
    """The index was rebuilt, or the reply of reserve was lost."""
    holder, _ = followed(harness)
    following = harness.release(holder, next_attempt_id="another")
    assert following is not None
    assert following.job_id == "j3"
    assert not harness.in_line("j2")


def test_a_followers_waiting_time_is_not_charged(harness: LeaseHarness) -> None:
    """It would else be charged for it, and its model be taken for slow."""
    holder, follower = followed(harness)
    harness.wait(10)
    harness.release(holder, gpu_seconds=10.0, begun=follower)
    harness.leases.renew(WORKER, [follower], [])
    assert harness.leases.slots("s1")[0].held_seconds == 0
    harness.wait(2)
    harness.release(follower)
    assert harness.leases.estimate_seconds(MODEL, "t1") < 10.0


def test_a_refused_release_returns_no_follower(harness: LeaseHarness) -> None:
    holder, _ = followed(harness)
    assert harness.release(holder, worker="w2", next_attempt_id="next") is None
    assert state(harness) == ("leased", "first", "next")


def test_only_a_clean_end_has_something_that_began(harness: LeaseHarness) -> None:
    holder, follower = followed(harness)
    with pytest.raises(ValueError, match="clean end"):
        harness.release(holder, "suspect", begun=follower)
