"""A follower that does not begin ends with its holder's lease, and its job waits again without a cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpus.errors import LeasingUnavailable
from gpus.leasing.values import Follower
from gpus.protocol import ExpiryVerdict, Lease
from tests.gpus.leasing.followed import followed, reserve, state
from tests.gpus.leasing.lease_harness import MODEL, POOL, WORKER, LeaseHarness
from tests.gpus.leasing.rebuild_harness import begin, database_lease, lose_index
from tests.support.lease_expiry import expire

# -- it does not begin -------------------------------------------------------------------------------------

GOES_WITH: dict[str, Callable[[LeaseHarness, Lease, Lease], object]] = {
    "suspect": lambda harness, holder, _: harness.release(holder, "suspect"),
    "free": lambda harness, holder, _: harness.release(holder, "free"),
    "handed over": lambda harness, holder, _: harness.release(holder, "adopt"),
    "ends": lambda harness, holder, _: harness.release(holder),
    "given back": lambda harness, _, follower: harness.release(follower, "free"),
    "quarantined": lambda harness, holder, _: harness.leases.quarantine("s1/0", holder.attempt_id),
}


@pytest.mark.parametrize("how", GOES_WITH)
def test_a_dropped_follower_can_wait_again_without_a_charge(harness: LeaseHarness, how: str) -> None:
    harness.tenant("t2", most=1)
    harness.server()
    harness.push("j1")
    harness.push("j2", tenant="t2")
    harness.push("j3", "j4")
    holder = harness.must_claim("first")
    follower = reserve(harness, holder)
    assert follower is not None
    assert follower.tenant == "t2"
    GOES_WITH[how](harness, holder, follower)
    assert harness.leases.slots("s1")[0].follower_id is None
    assert not harness.leases.is_held(follower.ref)
    assert not harness.in_line("j2")
    harness.leases.push(POOL, [harness.tickets["j2"]])
    harness.server("s2", slots=2)
    assert "j2" in {
        harness.must_claim().job_id,
        harness.must_claim().job_id,
    }  # its tenant's turn, and its one run


def test_giving_back_a_follower_keeps_the_holder(harness: LeaseHarness) -> None:
    holder, follower = followed(harness)
    harness.release(follower, "free")
    assert state(harness) == ("leased", "first", None)
    harness.leases.push(POOL, [harness.tickets["j2"]])
    again = reserve(harness, holder, "again")
    assert again is not None
    assert again.job_id == "j2"
    assert again.fence > follower.fence


def test_only_the_slots_worker_can_give_back_a_follower(harness: LeaseHarness) -> None:
    _, follower = followed(harness)
    harness.release(follower, "free", worker="w2")
    assert state(harness) == ("leased", "first", "next")


def test_a_follower_expires_with_its_holder(harness: LeaseHarness) -> None:
    holder, follower = followed(harness)
    expire(harness)
    (row,) = harness.leases.expired()
    assert row.ref == holder.ref
    assert row.follower == Follower("j2", "next", MODEL)
    assert harness.leases.resolve_expired(holder.ref, ExpiryVerdict.QUARANTINED)
    assert state(harness)[0] == "quarantined"
    assert not harness.in_line("j2")
    assert not harness.leases.is_held(follower.ref)


def test_a_begun_follower_is_resolved_after_its_holder(harness: LeaseHarness) -> None:
    holder, follower = followed(harness)
    expire(harness)
    assert harness.leases.resolve_expired(holder.ref, ExpiryVerdict.FOLLOWED)
    assert not harness.leases.resolve_expired(holder.ref, ExpiryVerdict.FOLLOWED)
    (row,) = harness.leases.expired()
    assert (row.ref, row.worker, row.follower) == (follower.ref, WORKER, None)
    assert not harness.in_line("j1")
    assert harness.in_line("j2")
    assert harness.leases.resolve_expired(follower.ref, ExpiryVerdict.QUARANTINED)


def test_followed_is_refused_without_a_follower(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1")
    holder = harness.must_claim()
    expire(harness)
    assert not harness.leases.resolve_expired(holder.ref, ExpiryVerdict.FOLLOWED)
    assert harness.states() == ["leased"]


def test_followed_is_refused_for_an_end(harness: LeaseHarness) -> None:
    holder, _ = followed(harness)
    harness.release(holder)
    expire(harness)
    assert not harness.leases.resolve_expired(holder.ref, ExpiryVerdict.FOLLOWED)
    assert harness.states() == ["settling"]


def test_giving_back_a_follower_can_rest_the_server(harness: LeaseHarness) -> None:
    """Its worker reads the switch before the index has it."""
    holder, follower = followed(harness)
    harness.release(follower, "free", rest_seconds=2)
    assert reserve(harness, holder, "another") is None
    harness.wait(3)
    assert reserve(harness, holder, "another") is not None


# -- a rebuilt index ----------------------------------------------------------------------------


def test_a_rebuild_drops_followers_that_had_not_begun(harness: LeaseHarness) -> None:
    """Its job waits, so it is pushed like all that do; its worker must not send it."""
    holder, follower = followed(harness)
    lose_index(harness)
    begin(harness)
    harness.server()
    assert harness.leases.renew(WORKER, [holder], [], [follower]) == [follower.ref]
    harness.push("j2")
    harness.leases.open_generation("one")
    assert harness.leases.renew(WORKER, [holder], [], [follower]) == [follower.ref]
    assert harness.waiting() == 1
    assert state(harness) == ("leased", "first", None)


def test_a_rebuild_restores_followers_that_had_begun(harness: LeaseHarness) -> None:
    holder, follower = followed(harness)
    lose_index(harness)
    begin(harness)
    harness.server()
    assert harness.leases.renew(WORKER, [follower], [holder]) == []
    assert harness.leases.restore_lease(
        database_lease("first", job="j1")
    )  # its end is known to be on its way
    harness.leases.open_generation("one")
    assert state(harness) == ("leased", "next", None)
    assert harness.release(holder, begun=follower) is None
    assert state(harness) == ("leased", "next", None)


def test_a_follower_begun_during_a_rebuild_keeps_its_slot(harness: LeaseHarness) -> None:
    """Its worker sent it before it could know that it was lost."""
    holder, follower = followed(harness)
    lose_index(harness)
    begin(harness)
    harness.server()
    assert harness.leases.renew(WORKER, [holder], []) == []
    harness.push("j2", "j3")
    harness.leases.open_generation("one")
    third = harness.release(holder, begun=follower, next_attempt_id="third")
    assert third is not None
    assert third.job_id == "j3"
    assert state(harness) == ("leased", "next", "third")
    harness.leases.confirm_ends([holder.ref])
    assert state(harness) == ("leased", "next", "third")
    assert harness.waiting() == 0


def test_no_prefetch_without_a_whole_index(harness: LeaseHarness) -> None:
    holder, _ = followed(harness)
    lose_index(harness)
    begin(harness)
    with pytest.raises(LeasingUnavailable):
        reserve(harness, holder)
