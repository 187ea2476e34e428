"""Reasons to pass the first ticket over: a warm model, an avoided server, a server without the model."""

from __future__ import annotations

import pytest

from tests.gpus.leasing.lease_harness import POOL, LeaseHarness


def test_a_slot_stays_with_its_warm_model_while_the_head_is_patient(harness: LeaseHarness) -> None:
    harness.server(models=("flux", "zimg"))
    harness.push("f1", model="flux")
    harness.push("z1", model="zimg")
    harness.push("f2", model="flux")
    assert harness.run_all() == ["f1", "f2", "z1"]


def test_patience_counts_from_the_first_possible_dispatch(harness: LeaseHarness) -> None:
    """After a long line affinity must still save loads, or the line never gets shorter."""
    harness.server(models=("flux", "zimg"))
    harness.pool(patience=5.0)
    harness.push("f1", model="flux")
    harness.push("z1", model="zimg")
    harness.push("f2", "f3", "f4", "f5", model="flux")
    lease = harness.must_claim()
    harness.wait(600)
    order = []
    for _ in range(5):
        lease = harness.next(lease)
        order.append(lease.job_id)
        harness.wait(2)
    assert order == ["f2", "f3", "f4", "z1", "f5"]


def test_without_patience_no_ticket_is_passed_over(harness: LeaseHarness) -> None:
    harness.server(models=("flux", "zimg"))
    harness.pool(patience=0)
    harness.push("f1", model="flux")
    harness.push("z1", model="zimg")
    harness.push("f2", model="flux")
    assert harness.run_all() == ["f1", "z1", "f2"]


def test_a_head_is_skipped_eight_times_at_most(harness: LeaseHarness) -> None:
    harness.server(models=("flux", "zimg"))
    harness.push("f", model="flux")
    harness.push("z", model="zimg")
    harness.push(*(f"f{i:02}" for i in range(12)), model="flux")
    order = harness.run_all()
    assert order.index("z") == 9


def test_a_skipped_tickets_mark_is_deleted_with_it(harness: LeaseHarness) -> None:
    """A job pushed again under its id has the patience of a new one."""
    harness.server(models=("flux", "zimg"))
    for _ in range(2):
        harness.push("f", model="flux")
        harness.push("z", model="zimg")
        harness.push(*(f"f{i:02}" for i in range(12)), model="flux")
        assert harness.run_all().index("z") == 9
        assert f"marks:{POOL}" not in harness.all_keys()


def test_a_ticket_skipped_and_leased_in_one_call_leaves_no_mark(harness: LeaseHarness) -> None:
    """It was skipped for the second ticket of a job that runs already, which is found out too late."""
    harness.server("s1", models=("flux", "zimg"))
    harness.push("stays", model="other", avoid="s1")
    harness.push("f", model="flux")
    on_s1 = harness.must_claim()
    harness.push("z", model="zimg")
    harness.push("twin", model="flux", priority=5)
    harness.push("twin", model="flux", priority=4)
    harness.server("s2", models=("flux",))
    assert harness.must_claim().job_id == "twin"
    assert harness.next(on_s1).job_id == "z"
    assert harness.waiting() == 1
    assert [mark[1:] for mark in harness.client.hkeys(f"{harness.prefix}marks:{POOL}")] == ["stays"]


def test_affinity_never_prefers_a_lower_band(harness: LeaseHarness) -> None:
    harness.server(models=("flux", "zimg"))
    harness.push("f1", model="flux", priority=5)
    harness.push("f2", model="flux", priority=5)
    lease = harness.must_claim()
    harness.push("z1", model="zimg", priority=1)
    assert harness.next(lease).job_id == "z1"


def test_a_claim_prefers_the_slot_that_is_warm_for_the_head(harness: LeaseHarness) -> None:
    harness.server("s1", models=("flux", "zimg"))
    harness.server("s2", models=("flux", "zimg"))
    for model in ("flux", "zimg"):
        harness.push(f"warm-{model}", model=model)
    leases = [harness.must_claim(), harness.must_claim()]
    for lease in leases:
        harness.release(lease)
        harness.wait(1)
    harness.leases.confirm_ends([lease.ref for lease in leases])
    harness.push("z", model="zimg")
    assert harness.must_claim().server == leases[1].server


def test_a_ticket_goes_to_a_server_it_does_not_avoid(harness: LeaseHarness) -> None:
    harness.server("s1")
    harness.server("s2")
    harness.push("j1", avoid="s1")
    assert harness.must_claim().server == "s2"


def test_a_slot_of_the_avoided_server_takes_the_next_ticket(harness: LeaseHarness) -> None:
    harness.server("s1")
    harness.server("s2", desired="on")
    harness.push("busy1", "busy2")
    leases = {lease.server: lease for lease in (harness.must_claim(), harness.must_claim())}
    harness.push("avoider", avoid="s1")
    harness.push("other", tenant="t2")
    assert harness.next(leases["s1"]).job_id == "other"
    assert harness.next(leases["s2"]).job_id == "avoider"


def test_an_avoided_server_takes_the_ticket_after_eight_skips(harness: LeaseHarness) -> None:
    harness.server("s1")
    harness.server("s2")
    harness.push("busy1", "busy2")
    held = {lease.server: lease for lease in (harness.must_claim(), harness.must_claim())}
    harness.release(held["s1"])
    harness.leases.confirm_ends([held["s1"].ref])
    harness.push("avoider", avoid="s1")
    assert [harness.claim() for _ in range(8)] == [None] * 8
    assert harness.must_claim().server == "s1"


def test_a_ticket_avoids_no_server_if_no_other_could_take_it(harness: LeaseHarness) -> None:
    harness.server("s1")
    harness.server("s2", models=("zimg",))
    harness.server("s3", desired="draining")
    harness.push("j1", avoid="s1")
    assert harness.must_claim().server == "s1"


# -- servers that run some of the pool's models ----------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["fair", "fifo"])
def test_a_slot_takes_only_tickets_of_its_servers_models(harness: LeaseHarness, algorithm: str) -> None:
    harness.pool(algorithm)
    harness.server("s1", models=("zimg",))
    harness.push("f1", model="flux")
    harness.push("z1", model="zimg")
    assert harness.must_claim().job_id == "z1"
    assert harness.claim() is None


@pytest.mark.parametrize(("algorithm", "first"), [("fair", "b1"), ("fifo", "a1")])
def test_the_order_holds_among_the_models_of_a_class(
    harness: LeaseHarness, algorithm: str, first: str
) -> None:
    harness.server("s1", models=("flux", "zimg"))
    harness.push("a0", model="flux", tenant="a")
    lease = harness.must_claim()
    harness.pool(algorithm, patience=0)
    harness.push("x", model="trellis", tenant="x")
    harness.push("a1", model="flux", tenant="a")
    harness.push("b1", model="zimg", tenant="b")
    assert harness.next(lease, 5.0).job_id == first


def test_the_most_specialised_server_is_used_first(harness: LeaseHarness) -> None:
    harness.server("all", models=("flux", "zimg"))
    harness.server("one", models=("flux",))
    harness.push("f1", model="flux")
    assert harness.must_claim().server == "one"
