"""Followers: prefetched while the holder runs; they begin, or end with their holder."""

from __future__ import annotations

import pytest

from gpus.errors import Verdict
from gpus.leasing.values import ParkedFor
from gpus.protocol import PushOutcome
from tests.gpus.leasing.followed import followed, reserve, state
from tests.gpus.leasing.rig import MODEL, POOL, WORKER, Rig
from tests.support.lease_expiry import expire

# -- claimed ahead -----------------------------------------------------------------------------------------


def test_reserve_takes_the_next_ticket_and_leaves_the_slot_to_its_holder(rig: Rig) -> None:
    holder, follower = followed(rig)
    assert (follower.job_id, follower.slot, follower.attempt_id, follower.epoch) == ("j2", "s1/0", "next", 1)
    assert follower.fence > holder.fence
    assert state(rig) == ("leased", "first", "next")
    assert rig.waiting() == 1
    assert rig.claim() is None
    assert rig.in_line("j2")
    assert rig.push("j2")[0].outcome is PushOutcome.HELD
    assert not rig.leases.remove(POOL, rig.tickets["j2"])


def test_reserve_is_idempotent_and_a_slot_has_one_follower(rig: Rig) -> None:
    holder, follower = followed(rig)
    assert reserve(rig, holder) == follower
    assert reserve(rig, holder, "another") is None
    assert rig.waiting() == 1


def test_only_the_holder_can_reserve(rig: Rig) -> None:
    rig.server()
    rig.push("j1", "j2", "j3")
    holder = rig.must_claim()
    assert reserve(rig, holder, worker="w2") is None
    rig.release(holder)
    assert reserve(rig, holder) is None
    assert rig.waiting() == 2


def test_no_prefetch_with_fewer_tickets_than_running_slots(rig: Rig) -> None:
    """Another slot is free for it as soon as this one."""
    rig.server(slots=2)
    rig.push("j1", "j2", "j3")
    holder, other = rig.must_claim(), rig.must_claim()
    assert reserve(rig, holder) is None
    rig.push("j4")
    assert reserve(rig, holder) is not None
    assert reserve(rig, other) is None


def test_no_prefetch_on_a_server_that_takes_no_jobs(rig: Rig) -> None:
    rig.server()
    rig.push("j1", "j2", "j3")
    holder = rig.must_claim()
    rig.server(desired="draining")
    assert reserve(rig, holder) is None
    rig.server()
    rig.leases.rest_server("s1", 5)
    assert reserve(rig, holder) is None
    rig.wait(6)
    assert reserve(rig, holder) is not None


def test_no_prefetch_after_a_failure_of_a_model(rig: Rig) -> None:
    """Whether it may begin is known when the run before it is over."""
    rig.server(slots=2)
    rig.push("j1", "j2", "j3", "j4", "j5")
    holder, other = rig.must_claim(), rig.must_claim()
    rig.release(other, verdict=Verdict.MODEL)
    assert reserve(rig, holder) is None


def test_a_running_limit_counts_followers(rig: Rig) -> None:
    rig.tenant("t1", most=3)
    rig.server(slots=2)
    rig.push("j1", "j2", "j3", "j4", "j5")
    holder = rig.must_claim("first")
    follower = reserve(rig, holder)
    assert follower is not None
    second = rig.must_claim("second")
    assert (running(rig, "t1"), reserve(rig, second, "later")) == (3, None)
    assert rig.release(holder, begun=follower) is None
    rig.leases.confirm_ends([holder.ref])
    assert running(rig, "t1") == 2


def test_a_limit_that_claiming_ahead_would_use_up_is_kept_for_free_slots(rig: Rig) -> None:
    rig.tenant("t1", most=2)
    rig.server(slots=2)
    rig.push("j1", "j2", "j3", "j4")
    assert reserve(rig, rig.must_claim()) is None
    assert rig.claim() is not None


def running(rig: Rig, tenant: str) -> int:
    return int(rig.client.scard(f"{rig.prefix}running:{tenant}"))


def test_a_new_running_limit_counts_existing_followers(rig: Rig) -> None:
    rig.server(slots=2)
    rig.push("j1", "j2", "j3", "j4")
    holder = rig.must_claim()
    assert reserve(rig, holder) is not None
    rig.tenant("t1", most=2)
    assert rig.claim() is None


# -- it begins ---------------------------------------------------------------------------------------------


def test_a_begun_follower_holds_the_slot_and_gets_a_follower(rig: Rig) -> None:
    holder, follower = followed(rig)
    rig.push("j4", "j5")
    third = rig.release(holder, gpu_seconds=1.0, begun=follower, next_attempt_id="third")
    assert third is not None
    assert (third.job_id, third.slot) == ("j3", "s1/0")
    assert state(rig) == ("leased", "next", "third")
    assert third.fence > follower.fence
    assert rig.leases.is_held(follower.ref)
    assert rig.release(holder, gpu_seconds=1.0, begun=follower, next_attempt_id="third") == third
    rig.leases.confirm_ends([holder.ref])
    assert state(rig) == ("leased", "next", "third")
    assert rig.push("j1")[0].outcome is not PushOutcome.HELD


def test_the_previous_end_still_waits_for_its_commit(rig: Rig) -> None:
    holder, follower = followed(rig)
    rig.release(holder, begun=follower)
    assert rig.leases.is_held(holder.ref)
    assert rig.push("j1")[0].outcome is PushOutcome.HELD
    rig.leases.confirm_ends([holder.ref])
    assert not rig.leases.is_held(holder.ref)


def test_a_follower_may_begin_before_its_holder_is_released(rig: Rig) -> None:
    """Its start is committed by then, so its lease must be visible."""
    holder, follower = followed(rig)
    assert rig.leases.is_held(follower.ref)
    assert rig.leases.renew(WORKER, [follower], [holder]) == []
    expire(rig, 14)
    assert rig.leases.renew(WORKER, [follower], [holder]) == []
    expire(rig, 14)
    assert rig.leases.expired() == []
    rig.release(holder, begun=follower)
    assert state(rig) == ("leased", "next", None)


def test_a_release_for_the_follower_begins_it(rig: Rig) -> None:
    holder, follower = followed(rig)
    assert rig.release(holder, next_attempt_id="next") == follower
    assert rig.release(holder, next_attempt_id="next") == follower
    assert state(rig) == ("leased", "next", None)


def test_a_release_drops_the_follower_if_the_slot_may_not_continue(rig: Rig) -> None:
    holder, _ = followed(rig)
    rig.server(desired="draining")
    assert rig.release(holder, next_attempt_id="next") is None
    assert state(rig) == ("settling", "first", None)
    assert not rig.in_line("j2")


def test_a_release_drops_the_follower_of_a_parked_tenant(rig: Rig) -> None:
    holder, _ = followed(rig)
    rig.leases.set_paused_tenants(POOL, ["t1"], reason=ParkedFor.QUOTA)
    assert rig.release(holder, next_attempt_id="next") is None
    assert not rig.in_line("j2")


def test_a_release_begins_the_follower_of_a_tenant_at_its_limit(rig: Rig) -> None:
    holder, follower = followed(rig)
    rig.tenant("t1", most=1)
    assert rig.release(holder, next_attempt_id="next") == follower


def test_a_release_for_another_attempt_gets_another_ticket(rig: Rig) -> None:
    """The index was rebuilt, or the reply of reserve was lost."""
    holder, _ = followed(rig)
    following = rig.release(holder, next_attempt_id="another")
    assert following is not None
    assert following.job_id == "j3"
    assert not rig.in_line("j2")


def test_a_followers_waiting_time_is_not_charged(rig: Rig) -> None:
    """It would else be charged for it, and its model be taken for slow."""
    holder, follower = followed(rig)
    rig.wait(10)
    rig.release(holder, gpu_seconds=10.0, begun=follower)
    rig.leases.renew(WORKER, [follower], [])
    assert rig.leases.slots("s1")[0].held_seconds == 0
    rig.wait(2)
    rig.release(follower)
    assert rig.leases.estimate_seconds(MODEL, "t1") < 10.0


def test_a_refused_release_returns_no_follower(rig: Rig) -> None:
    holder, _ = followed(rig)
    assert rig.release(holder, worker="w2", next_attempt_id="next") is None
    assert state(rig) == ("leased", "first", "next")


def test_only_a_clean_end_has_something_that_began(rig: Rig) -> None:
    holder, follower = followed(rig)
    with pytest.raises(ValueError, match="clean end"):
        rig.release(holder, "suspect", begun=follower)
