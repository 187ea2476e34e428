"""A follower that does not begin ends with its holder's lease, and its job waits again without a cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpus.errors import LeasingUnavailable
from gpus.leasing.values import Follower
from gpus.protocol import ExpiryVerdict, Lease
from tests.gpus.leasing.followed import followed, reserve, state
from tests.gpus.leasing.rebuild_rig import begin, database_lease, lose_index
from tests.gpus.leasing.rig import MODEL, POOL, WORKER, Rig
from tests.support.lease_expiry import expire

# -- it does not begin -------------------------------------------------------------------------------------

GOES_WITH: dict[str, Callable[[Rig, Lease, Lease], object]] = {
    "suspect": lambda rig, holder, _: rig.release(holder, "suspect"),
    "free": lambda rig, holder, _: rig.release(holder, "free"),
    "handed over": lambda rig, holder, _: rig.release(holder, "adopt"),
    "ends": lambda rig, holder, _: rig.release(holder),
    "given back": lambda rig, _, follower: rig.release(follower, "free"),
    "quarantined": lambda rig, holder, _: rig.leases.quarantine("s1/0", holder.attempt_id),
}


@pytest.mark.parametrize("how", GOES_WITH)
def test_a_dropped_follower_can_wait_again_without_a_charge(rig: Rig, how: str) -> None:
    rig.tenant("t2", most=1)
    rig.server()
    rig.push("j1")
    rig.push("j2", tenant="t2")
    rig.push("j3", "j4")
    holder = rig.must_claim("first")
    follower = reserve(rig, holder)
    assert follower is not None
    assert follower.tenant == "t2"
    GOES_WITH[how](rig, holder, follower)
    assert rig.leases.slots("s1")[0].follower_id is None
    assert not rig.leases.is_held(follower.ref)
    assert not rig.in_line("j2")
    rig.leases.push(POOL, [rig.tickets["j2"]])
    rig.server("s2", slots=2)
    assert "j2" in {rig.must_claim().job_id, rig.must_claim().job_id}  # its tenant's turn, and its one run


def test_giving_back_a_follower_keeps_the_holder(rig: Rig) -> None:
    holder, follower = followed(rig)
    rig.release(follower, "free")
    assert state(rig) == ("leased", "first", None)
    rig.leases.push(POOL, [rig.tickets["j2"]])
    again = reserve(rig, holder, "again")
    assert again is not None
    assert again.job_id == "j2"
    assert again.fence > follower.fence


def test_only_the_slots_worker_can_give_back_a_follower(rig: Rig) -> None:
    _, follower = followed(rig)
    rig.release(follower, "free", worker="w2")
    assert state(rig) == ("leased", "first", "next")


def test_a_follower_expires_with_its_holder(rig: Rig) -> None:
    holder, follower = followed(rig)
    expire(rig)
    (row,) = rig.leases.expired()
    assert row.ref == holder.ref
    assert row.follower == Follower("j2", "next", MODEL)
    assert rig.leases.resolve_expired(holder.ref, ExpiryVerdict.QUARANTINED)
    assert state(rig)[0] == "quarantined"
    assert not rig.in_line("j2")
    assert not rig.leases.is_held(follower.ref)


def test_a_begun_follower_is_resolved_after_its_holder(rig: Rig) -> None:
    holder, follower = followed(rig)
    expire(rig)
    assert rig.leases.resolve_expired(holder.ref, ExpiryVerdict.FOLLOWED)
    assert not rig.leases.resolve_expired(holder.ref, ExpiryVerdict.FOLLOWED)
    (row,) = rig.leases.expired()
    assert (row.ref, row.worker, row.follower) == (follower.ref, WORKER, None)
    assert not rig.in_line("j1")
    assert rig.in_line("j2")
    assert rig.leases.resolve_expired(follower.ref, ExpiryVerdict.QUARANTINED)


def test_followed_is_refused_without_a_follower(rig: Rig) -> None:
    rig.server()
    rig.push("j1")
    holder = rig.must_claim()
    expire(rig)
    assert not rig.leases.resolve_expired(holder.ref, ExpiryVerdict.FOLLOWED)
    assert rig.states() == ["leased"]


def test_followed_is_refused_for_an_end(rig: Rig) -> None:
    holder, _ = followed(rig)
    rig.release(holder)
    expire(rig)
    assert not rig.leases.resolve_expired(holder.ref, ExpiryVerdict.FOLLOWED)
    assert rig.states() == ["settling"]


def test_giving_back_a_follower_can_rest_the_server(rig: Rig) -> None:
    """Its worker reads the switch before the index has it."""
    holder, follower = followed(rig)
    rig.release(follower, "free", rest_seconds=2)
    assert reserve(rig, holder, "another") is None
    rig.wait(3)
    assert reserve(rig, holder, "another") is not None


# -- a rebuilt index ----------------------------------------------------------------------------


def test_a_rebuild_drops_followers_that_had_not_begun(rig: Rig) -> None:
    """Its job waits, so it is pushed like all that do; its worker must not send it."""
    holder, follower = followed(rig)
    lose_index(rig)
    begin(rig)
    rig.server()
    assert rig.leases.renew(WORKER, [holder], [], [follower]) == [follower.ref]
    rig.push("j2")
    rig.leases.open_generation("one")
    assert rig.leases.renew(WORKER, [holder], [], [follower]) == [follower.ref]
    assert rig.waiting() == 1
    assert state(rig) == ("leased", "first", None)


def test_a_rebuild_restores_followers_that_had_begun(rig: Rig) -> None:
    holder, follower = followed(rig)
    lose_index(rig)
    begin(rig)
    rig.server()
    assert rig.leases.renew(WORKER, [follower], [holder]) == []
    assert rig.leases.restore_lease(database_lease("first", job="j1"))  # its end is known to be on its way
    rig.leases.open_generation("one")
    assert state(rig) == ("leased", "next", None)
    assert rig.release(holder, begun=follower) is None
    assert state(rig) == ("leased", "next", None)


def test_a_follower_begun_during_a_rebuild_keeps_its_slot(rig: Rig) -> None:
    """Its worker sent it before it could know that it was lost."""
    holder, follower = followed(rig)
    lose_index(rig)
    begin(rig)
    rig.server()
    assert rig.leases.renew(WORKER, [holder], []) == []
    rig.push("j2", "j3")
    rig.leases.open_generation("one")
    third = rig.release(holder, begun=follower, next_attempt_id="third")
    assert third is not None
    assert third.job_id == "j3"
    assert state(rig) == ("leased", "next", "third")
    rig.leases.confirm_ends([holder.ref])
    assert state(rig) == ("leased", "next", "third")
    assert rig.waiting() == 0


def test_no_prefetch_without_a_whole_index(rig: Rig) -> None:
    holder, _ = followed(rig)
    lose_index(rig)
    begin(rig)
    with pytest.raises(LeasingUnavailable):
        reserve(rig, holder)
