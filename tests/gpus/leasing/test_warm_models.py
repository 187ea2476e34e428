"""A worker that loads models itself reports the loaded ones; they count instead of the slot's last model."""

from __future__ import annotations

import pytest

from gpus.errors import Verdict
from gpus.leasing.codec import MAX_WARM
from tests.gpus.leasing.lease_harness import POOL, LeaseHarness
from tests.gpus.leasing.waiting_tenants import commands, push_waiting_tenants

MODELS, TURNS = ("flux", "ltx2", "zimg"), 16
"""TURNS: of tenants that wait for many models, so many are looked at for one of a model that is loaded."""


@pytest.fixture
def pinned(harness: LeaseHarness) -> LeaseHarness:
    harness.server("box", 2, MODELS, host="box.1")
    return harness


def test_jobs_of_loaded_models_go_before_others(pinned: LeaseHarness) -> None:
    for job, model in (("z", "zimg"), ("l", "ltx2"), ("f", "flux")):
        pinned.push(job, model=model)
    assert pinned.must_claim(host="box.1", warm=["flux", "ltx2"]).job_id == "l", "of two the first in line"


def test_jobs_of_loaded_models_go_first_in_a_release(pinned: LeaseHarness) -> None:
    pinned.push("f", model="flux")
    lease = pinned.must_claim(host="box.1", warm=[])
    pinned.push("z", model="zimg")
    pinned.push("l", model="ltx2")
    pinned.push("f2", model="flux")
    assert pinned.next(lease, warm=["ltx2", "flux"]).job_id == "l"


def test_a_model_that_left_is_not_preferred_any_more(pinned: LeaseHarness) -> None:
    pinned.push("f", model="flux")
    lease = pinned.must_claim(host="box.1", warm=[])
    pinned.push("z", model="zimg")
    pinned.push("f2", model="flux")
    assert pinned.next(lease, warm=[]).job_id == "z"


def test_an_empty_report_overrides_the_slots_last_model(pinned: LeaseHarness) -> None:
    pinned.push("f", model="flux")
    lease = pinned.must_claim(host="box.1", warm=[])
    pinned.release(lease)
    pinned.leases.confirm_ends([lease.ref])
    pinned.push("z", model="zimg")
    pinned.push("f2", model="flux")
    assert pinned.must_claim(host="box.1", warm=[]).job_id == "z"


def test_without_a_report_the_slots_last_model_is_warm(pinned: LeaseHarness) -> None:
    pinned.push("f", model="flux")
    lease = pinned.must_claim(host="box.1")
    pinned.push("z", model="zimg")
    pinned.push("f2", model="flux")
    assert pinned.next(lease).job_id == "f2"


@pytest.mark.parametrize("algorithm", ["fair", "fifo"])
def test_a_head_is_passed_over_within_patience_and_eight_times(harness: LeaseHarness, algorithm: str) -> None:
    harness.pool(algorithm, patience=5.0)
    harness.server("box", 1, MODELS, host="box.1")
    harness.push("z", model="zimg")
    harness.push(*(f"l{number:02}" for number in range(12)), model="ltx2")
    harness.push(*(f"f{number:02}" for number in range(12)), model="flux")
    order, lease = [], harness.must_claim(host="box.1", warm=["ltx2", "flux"])
    while lease.job_id != "z":
        order.append(lease.job_id)
        lease = harness.next(lease, warm=["ltx2", "flux"])
    assert len(order) == 8

    harness.push("z2", model="zimg", place=0)
    lease = harness.next(lease, warm=["ltx2", "flux"])
    assert lease.model != "zimg"
    harness.wait(5)
    assert harness.next(lease, warm=["ltx2", "flux"]).job_id == "z2"


@pytest.mark.parametrize("others", [("x",), ("x", "z")])
def test_a_tenants_own_jobs_pass_its_first_one_at_most_eight_times(
    harness: LeaseHarness, others: tuple[str, ...]
) -> None:
    """Jobs that pass the next tenant over delay their own tenant's first job."""
    harness.pool(patience=1000.0)
    harness.server("box", 1, MODELS, host="box.1")
    harness.push("first", model="zimg", tenant="y")
    for tenant in others:
        harness.push(*(f"{tenant}{number:02}" for number in range(40)), model="ltx2", tenant=tenant)
    harness.push(*(f"f{number:02}" for number in range(60)), model="flux", tenant="y")
    order, lease = [], harness.must_claim(host="box.1", warm=["flux"])
    while lease.job_id != "first":
        order.append(lease.job_id)
        lease = harness.next(lease, warm=["flux"])
    assert sum(job.startswith("f") for job in order) <= 8


def test_affinity_prefers_no_lower_band_and_no_foreign_model(pinned: LeaseHarness) -> None:
    pinned.push("z", model="zimg", priority=1)
    pinned.push("f", model="flux", priority=5)
    pinned.push("x", model="other", priority=1)
    assert pinned.must_claim(host="box.1", warm=["flux", "other"]).job_id == "z"


def test_a_model_whose_circuit_is_open_is_not_preferred(pinned: LeaseHarness) -> None:
    pinned.push(*(f"f{number}" for number in range(7)), model="flux")
    for _ in range(5):
        lease = pinned.must_claim(host="box.1")
        pinned.release(lease, verdict=Verdict.MODEL)
        pinned.leases.confirm_ends([lease.ref])
    pinned.push("z", "z2", model="zimg")
    lease = pinned.must_claim(host="box.1", warm=["flux"])
    assert (lease.job_id, pinned.next(lease, warm=["flux"]).job_id) == ("z", "z2")


def test_a_repeated_claims_warm_models_are_ignored(pinned: LeaseHarness) -> None:
    pinned.push("z", model="zimg")
    pinned.push("f", model="flux")
    first = pinned.must_claim("same", host="box.1", warm=["flux"])
    assert first.job_id == "f"
    assert pinned.must_claim("same", host="box.1", warm=["zimg"]) == first


def test_however_many_are_loaded_a_claim_looks_at_few_of_them(harness: LeaseHarness) -> None:
    """The worst case: no tenant waits for a loaded model, and all earlier tenants wait for many models."""
    loaded, others = [f"m{number:02}" for number in range(40)], [f"o{number}" for number in range(5)]
    harness.server("box", 8, [*loaded, *others], host="box.1")
    push_waiting_tenants(harness, 0, 40, others)
    found = []
    for warm in ([], [], loaded[:MAX_WARM], loaded):
        harness.client.config_resetstat()
        lease = harness.must_claim(host="box.1", warm=warm)
        found.append(commands(harness))
        harness.release(lease, "free")
        harness.leases.push(POOL, [harness.tickets[lease.job_id]])
    assert found[2] == found[3] <= found[1] + MAX_WARM + TURNS + 1, "the first one: nothing ran there"


@pytest.mark.parametrize("name", ["a:b", "a,b", ""])
def test_a_name_that_would_break_a_key_is_refused(pinned: LeaseHarness, name: str) -> None:
    with pytest.raises(ValueError, match="a name must not"):
        pinned.claim(host="box.1", warm=[name])


def test_an_unloaded_model_attracts_no_job_to_its_last_slot(pinned: LeaseHarness) -> None:
    """Of a process that holds it no more, the slot that is free the longest is as good as any."""
    pinned.push("f", model="flux")
    pinned.push("z", model="zimg")
    held = {lease.model: lease for lease in (pinned.must_claim(host="box.1", warm=[]) for _ in range(2))}
    for model in ("flux", "zimg"):
        pinned.release(held[model])
        pinned.leases.confirm_ends([held[model].ref])
        pinned.wait(1)
    pinned.push("z2", model="zimg")
    assert pinned.must_claim(host="box.1", warm=[]).slot == held["flux"].slot
