"""What a rebuild restores: leases of rows and live keepers, and shares, but no ended leases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpus.leasing import store
from gpus.protocol import Lease, PushOutcome
from tests.gpus.leasing.rebuild_rig import begin, database_lease, lose_index, lost
from tests.gpus.leasing.rig import POOL, Rig

__all__ = ["lost"]


def test_a_live_attempt_of_the_database_gets_its_slot_back_for_a_full_lease_time(rig: Rig) -> None:
    begin(rig)
    rig.server(slots=2)
    rig.push("job")
    assert rig.leases.restore_lease(database_lease())
    assert rig.leases.restore_lease(database_lease())
    assert not rig.leases.remove(POOL, rig.tickets["job"])
    rig.leases.open_generation("one")
    assert rig.states() == ["leased", "free"]
    view = rig.leases.slots("s1")[0]
    assert (view.attempt_id, view.expires_in_seconds) == ("att", 15.0)
    assert rig.leases.renew("another-worker", [database_lease()], []) == []
    assert rig.leases.renew("another", [database_lease()], []) == [database_lease().ref]


def test_a_restored_lease_keeps_the_fence_growing(rig: Rig) -> None:
    begin(rig)
    rig.server()
    fence = 2_000_000_000_000_000
    rig.leases.restore_lease(replace(database_lease(), fence=fence))
    rig.leases.open_generation("one")
    rig.leases.renew("w1", [database_lease()], [])
    rig.push("j1")
    following = rig.release(database_lease(), next_attempt_id="next")
    assert following is not None
    assert following.fence == fence + 1


def test_live_keepers_restore_leases_unknown_to_the_database(lost: tuple[Rig, Lease, Lease]) -> None:
    rig, running, ending = lost
    begin(rig)
    rig.server(slots=2)
    assert rig.leases.renew("w1", [running], [ending]) == []
    rig.leases.open_generation("one")
    assert rig.states() == ["leased", "settling"]
    assert rig.push("running", "ending")[0].outcome is PushOutcome.HELD
    assert rig.push("ending")[0].outcome is PushOutcome.HELD
    assert rig.leases.is_held(running.ref)
    rig.leases.confirm_ends([ending.ref])
    assert rig.states() == ["leased", "free"]
    assert not rig.in_line("ending")


def test_more_than_redis_should_do_at_once_is_renewed_piece_by_piece(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_LEASES_PER_CALL", 2)
    rig.server(slots=5)
    rig.push(*"abcde")
    leases = [rig.must_claim() for _ in range(5)]
    running, ending = leases[:3], leases[3:]
    for lease in ending:
        rig.release(lease)
    lose_index(rig)
    begin(rig)
    rig.server(slots=5)
    sent, run = list[int](), rig.leases._run

    def count_and_run(script: str, **args: Any) -> Any:
        if script == "renew":
            sent.append(len(args["held"]))
        return run(script, **args)

    monkeypatch.setattr(rig.leases, "_run", count_and_run)
    assert rig.leases.renew("w1", running, ending) == []
    assert sent == [2, 2, 1]
    rig.leases.open_generation("one")
    assert rig.states() == ["leased"] * 3 + ["settling"] * 2
    rig.leases.confirm_ends([ending[1].ref])
    rig.release(running[2], "free")
    assert rig.leases.renew("w1", running, ending) == [running[2].ref, ending[1].ref]


def test_announcing_before_the_servers_are_known_is_enough(lost: tuple[Rig, Lease, Lease]) -> None:
    rig, running, ending = lost
    begin(rig)
    rig.leases.renew("w1", [running], [ending])
    rig.server(slots=2)
    rig.leases.open_generation("one")
    assert rig.states() == ["leased", "settling"]
    assert rig.leases.depth(POOL).slots == {"leased": 1, "settling": 1}


def test_a_whole_index_restores_no_lease(lost: tuple[Rig, Lease, Lease]) -> None:
    rig, running, _ = lost
    rig.open()
    rig.server(slots=2)
    assert rig.leases.renew("w1", [running], []) == [running.ref]


def test_the_later_of_two_attempts_holds_the_slot(rig: Rig) -> None:
    early, late = database_lease("early", job="e"), database_lease("late", job="l", at_s=9)
    begin(rig)
    rig.server(slots=1)
    assert rig.leases.restore_lease(early)
    assert rig.leases.renew("w1", [late], []) == []
    assert not rig.leases.restore_lease(early)
    assert rig.leases.renew("w2", [early], []) == [early.ref]
    rig.leases.open_generation("one")
    assert rig.leases.slots("s1")[0].attempt_id == "late"
    assert not rig.leases.is_held(early.ref)


def test_an_announced_end_is_not_restored_as_a_lease(lost: tuple[Rig, Lease, Lease]) -> None:
    rig, _, ending = lost
    begin(rig)
    rig.server(slots=2)
    rig.leases.renew("w1", [], [ending])
    assert rig.leases.restore_lease(ending)
    assert rig.states() == ["free", "settling"]


def test_a_committed_end_is_forgotten_after_a_renewal_restored_it(
    lost: tuple[Rig, Lease, Lease],
) -> None:
    """Its release came before the renewal, to an index that did not know the lease yet."""
    rig, running, _ = lost
    begin(rig)
    rig.server(slots=2)
    assert rig.release(running) is None
    assert rig.leases.renew("w1", [running], []) == []
    rig.leases.confirm_ends([running.ref])
    rig.leases.open_generation("one")
    assert rig.states() == ["free", "free"]
    assert not rig.leases.is_held(running.ref)
    assert rig.push("running")[0].outcome is not PushOutcome.HELD


def test_a_late_end_of_an_earlier_attempt_does_not_let_the_job_into_line(rig: Rig) -> None:
    early, late = database_lease("early", slot="s1/0"), database_lease("late", slot="s1/1", at_s=9)
    begin(rig)
    rig.server(slots=2)
    assert rig.leases.restore_lease(late)
    assert rig.leases.renew("w1", [], [early]) == []
    rig.leases.confirm_ends([early.ref])
    assert rig.states() == ["free", "leased"]
    assert rig.push("job")[0].outcome is PushOutcome.HELD


def test_the_higher_of_two_epochs_holds_the_slot(rig: Rig) -> None:
    zombie, adopted = database_lease(), replace(database_lease(), epoch=2)
    begin(rig)
    rig.server()
    assert rig.leases.renew("zombie", [zombie], []) == []
    assert rig.leases.restore_lease(adopted)
    assert rig.leases.renew("zombie", [zombie], []) == [zombie.ref]
    assert rig.leases.renew("adopter", [adopted], []) == []
    assert rig.leases.is_held(adopted.ref)


def test_a_restored_lease_is_charged_when_it_ends(rig: Rig) -> None:
    begin(rig)
    rig.server()
    rig.push("mine", tenant="t1")
    rig.push(*(f"other{i}" for i in range(4)), tenant="t2")
    rig.leases.restore_lease(database_lease())
    rig.leases.open_generation("one")
    following = rig.release(database_lease(), gpu_seconds=2.5, next_attempt_id="next")
    assert following is not None
    order = [following.job_id]
    for _ in range(4):
        following = rig.next(following)
        order.append(following.job_id)
    assert order.index("mine") == 3


def test_shares_of_before_are_restored_once_per_tenant(rig: Rig) -> None:
    rig.server()
    rig.leases.begin_rebuild("again")
    rig.leases.wipe("again")
    rig.server()
    for _ in range(2):  # the step was repeated
        rig.leases.restore_shares(POOL, [(5, "greedy", 3.0)])
    rig.push("g1", "g2", "g3", tenant="greedy")
    rig.push("m1", "m2", "m3", "m4", "m5", tenant="modest")
    rig.leases.open_generation("again")
    assert rig.run_all(seconds=1.0) == ["m1", "m2", "m3", "g1", "m4", "g2", "m5", "g3"]


def test_a_restored_job_deletes_its_forecast(rig: Rig) -> None:
    rig.server()
    rig.push("job0")
    running = rig.must_claim()
    begin(rig)
    rig.server()
    rig.push("job0")
    assert rig.client.hkeys(f"{rig.prefix}foretold:{POOL}"), "one job in four, of which this is one"
    assert rig.leases.restore_lease(running)
    assert not rig.client.hkeys(f"{rig.prefix}foretold:{POOL}")


def test_a_second_ticket_that_is_dropped_leaves_no_forecast(rig: Rig) -> None:
    rig.server(slots=2)
    rig.push("job0")
    running = rig.must_claim()
    rig.client.hdel(f"{rig.prefix}held", "job0")
    rig.push("job0", priority=6)
    rig.client.hset(f"{rig.prefix}held", "job0", running.attempt_id)
    assert rig.claim() is None
    assert not rig.client.hkeys(f"{rig.prefix}foretold:{POOL}")
