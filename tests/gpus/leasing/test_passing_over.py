"""Reasons to pass the first ticket over: a warm model, an avoided server, a server without the model."""

from __future__ import annotations

import pytest

from tests.gpus.leasing.rig import POOL, Rig


def test_a_slot_stays_with_its_warm_model_while_the_head_is_patient(rig: Rig) -> None:
    rig.server(models=("flux", "zimg"))
    rig.push("f1", model="flux")
    rig.push("z1", model="zimg")
    rig.push("f2", model="flux")
    assert rig.run_all() == ["f1", "f2", "z1"]


def test_patience_counts_from_the_first_possible_dispatch(rig: Rig) -> None:
    """After a long line affinity must still save loads, or the line never gets shorter."""
    rig.server(models=("flux", "zimg"))
    rig.pool(patience=5.0)
    rig.push("f1", model="flux")
    rig.push("z1", model="zimg")
    rig.push("f2", "f3", "f4", "f5", model="flux")
    lease = rig.must_claim()
    rig.wait(600)
    order = []
    for _ in range(5):
        lease = rig.next(lease)
        order.append(lease.job_id)
        rig.wait(2)
    assert order == ["f2", "f3", "f4", "z1", "f5"]


def test_without_patience_no_ticket_is_passed_over(rig: Rig) -> None:
    rig.server(models=("flux", "zimg"))
    rig.pool(patience=0)
    rig.push("f1", model="flux")
    rig.push("z1", model="zimg")
    rig.push("f2", model="flux")
    assert rig.run_all() == ["f1", "z1", "f2"]


def test_a_head_is_skipped_eight_times_at_most(rig: Rig) -> None:
    rig.server(models=("flux", "zimg"))
    rig.push("f", model="flux")
    rig.push("z", model="zimg")
    rig.push(*(f"f{i:02}" for i in range(12)), model="flux")
    order = rig.run_all()
    assert order.index("z") == 9


def test_a_skipped_tickets_mark_is_deleted_with_it(rig: Rig) -> None:
    """A job pushed again under its id has the patience of a new one."""
    rig.server(models=("flux", "zimg"))
    for _ in range(2):
        rig.push("f", model="flux")
        rig.push("z", model="zimg")
        rig.push(*(f"f{i:02}" for i in range(12)), model="flux")
        assert rig.run_all().index("z") == 9
        assert f"marks:{POOL}" not in rig.all_keys()


def test_a_ticket_skipped_and_leased_in_one_call_leaves_no_mark(rig: Rig) -> None:
    """It was skipped for the second ticket of a job that runs already, which is found out too late."""
    rig.server("s1", models=("flux", "zimg"))
    rig.push("stays", model="other", avoid="s1")
    rig.push("f", model="flux")
    on_s1 = rig.must_claim()
    rig.push("z", model="zimg")
    rig.push("twin", model="flux", priority=5)
    rig.push("twin", model="flux", priority=4)
    rig.server("s2", models=("flux",))
    assert rig.must_claim().job_id == "twin"
    assert rig.next(on_s1).job_id == "z"
    assert rig.waiting() == 1
    assert [mark[1:] for mark in rig.client.hkeys(f"{rig.prefix}marks:{POOL}")] == ["stays"]


def test_affinity_never_prefers_a_lower_band(rig: Rig) -> None:
    rig.server(models=("flux", "zimg"))
    rig.push("f1", model="flux", priority=5)
    rig.push("f2", model="flux", priority=5)
    lease = rig.must_claim()
    rig.push("z1", model="zimg", priority=1)
    assert rig.next(lease).job_id == "z1"


def test_a_claim_prefers_the_slot_that_is_warm_for_the_head(rig: Rig) -> None:
    rig.server("s1", models=("flux", "zimg"))
    rig.server("s2", models=("flux", "zimg"))
    for model in ("flux", "zimg"):
        rig.push(f"warm-{model}", model=model)
    leases = [rig.must_claim(), rig.must_claim()]
    for lease in leases:
        rig.release(lease)
        rig.wait(1)
    rig.leases.confirm_ends([lease.ref for lease in leases])
    rig.push("z", model="zimg")
    assert rig.must_claim().server == leases[1].server


def test_a_ticket_goes_to_a_server_it_does_not_avoid(rig: Rig) -> None:
    rig.server("s1")
    rig.server("s2")
    rig.push("j1", avoid="s1")
    assert rig.must_claim().server == "s2"


def test_a_slot_of_the_avoided_server_takes_the_next_ticket(rig: Rig) -> None:
    rig.server("s1")
    rig.server("s2", desired="on")
    rig.push("busy1", "busy2")
    leases = {lease.server: lease for lease in (rig.must_claim(), rig.must_claim())}
    rig.push("avoider", avoid="s1")
    rig.push("other", tenant="t2")
    assert rig.next(leases["s1"]).job_id == "other"
    assert rig.next(leases["s2"]).job_id == "avoider"


def test_an_avoided_server_takes_the_ticket_after_eight_skips(rig: Rig) -> None:
    rig.server("s1")
    rig.server("s2")
    rig.push("busy1", "busy2")
    held = {lease.server: lease for lease in (rig.must_claim(), rig.must_claim())}
    rig.release(held["s1"])
    rig.leases.confirm_ends([held["s1"].ref])
    rig.push("avoider", avoid="s1")
    assert [rig.claim() for _ in range(8)] == [None] * 8
    assert rig.must_claim().server == "s1"


def test_a_ticket_avoids_no_server_if_no_other_could_take_it(rig: Rig) -> None:
    rig.server("s1")
    rig.server("s2", models=("zimg",))
    rig.server("s3", desired="draining")
    rig.push("j1", avoid="s1")
    assert rig.must_claim().server == "s1"


# -- servers that run some of the pool's models ----------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["fair", "fifo"])
def test_a_slot_takes_only_tickets_of_its_servers_models(rig: Rig, algorithm: str) -> None:
    rig.pool(algorithm)
    rig.server("s1", models=("zimg",))
    rig.push("f1", model="flux")
    rig.push("z1", model="zimg")
    assert rig.must_claim().job_id == "z1"
    assert rig.claim() is None


@pytest.mark.parametrize(("algorithm", "first"), [("fair", "b1"), ("fifo", "a1")])
def test_the_order_holds_among_the_models_of_a_class(rig: Rig, algorithm: str, first: str) -> None:
    rig.server("s1", models=("flux", "zimg"))
    rig.push("a0", model="flux", tenant="a")
    lease = rig.must_claim()
    rig.pool(algorithm, patience=0)
    rig.push("x", model="trellis", tenant="x")
    rig.push("a1", model="flux", tenant="a")
    rig.push("b1", model="zimg", tenant="b")
    assert rig.next(lease, 5.0).job_id == first


def test_the_most_specialised_server_is_used_first(rig: Rig) -> None:
    rig.server("all", models=("flux", "zimg"))
    rig.server("one", models=("flux",))
    rig.push("f1", model="flux")
    assert rig.must_claim().server == "one"
