"""One tenant's bad inputs stop its own jobs only."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from gpus.errors import Verdict
from gpus.protocol import CircuitState, Lease
from tests.gpus.leasing.circuit_harness import EITHER, MODEL, NOTHING, WELL, end, harness, model, server
from tests.gpus.leasing.lease_harness import POOL, LeaseHarness

__all__ = ["harness"]

BAD, GOOD, THIRD = "bad", "good", "third"
BLAMES = pytest.mark.parametrize("blame", [EITHER, MODEL])
_numbers = count()


def push(harness: LeaseHarness, tenant: str, jobs: int = 1, **ticket: Any) -> None:
    harness.push(*(f"{tenant}-{next(_numbers):04d}" for _ in range(jobs)), tenant=tenant, **ticket)


def run(harness: LeaseHarness, turns: int, blame: Verdict, failing: tuple[str, ...] = (BAD,)) -> list[str]:
    """So many turns, one after the other; the tenants that got one."""
    given = []
    for _ in range(turns):
        if (lease := harness.claim()) is None:
            harness.wait(2.1)
            harness.leases.fill()
            continue
        given.append(lease.tenant)
        end(harness, lease, blame if lease.tenant in failing else WELL)
    return given


def claim_of(harness: LeaseHarness, tenant: str) -> Lease:
    """Leases of the others are given back."""
    others = []
    while True:
        lease = harness.must_claim()
        if lease.tenant == tenant:
            break
        others.append(lease)
    for other in others:
        harness.release(other, "free", gpu_seconds=0.0)
        harness.leases.push(POOL, [harness.tickets[other.job_id]])
    return lease


def strike(harness: LeaseHarness, tenant: str, times: int, blame: Verdict) -> None:
    for _ in range(times):
        end(harness, claim_of(harness, tenant), blame)


@BLAMES
@pytest.mark.parametrize("algorithm", ["fair", "fifo"])
@pytest.mark.parametrize("models", [("flux",), ("flux", "sdxl")])
@pytest.mark.parametrize("servers", [1, 2])
def test_one_tenants_failures_open_no_circuit_while_another_waits(
    harness: LeaseHarness, blame: Verdict, algorithm: str, models: tuple[str, ...], servers: int
) -> None:
    harness.pool(algorithm)
    for number in range(servers):
        harness.server(f"s{number}", 8, models)
    if len(models) > 1:
        push(harness, THIRD, model="sdxl")
    push(harness, BAD, 12)
    push(harness, GOOD, 3)
    strike(harness, BAD, 12, blame)
    assert model(harness) is CircuitState.CLOSED
    assert [server(harness, f"s{number}") for number in range(servers)] == [CircuitState.CLOSED] * servers
    assert GOOD in run(harness, 3, blame)


def test_failures_of_two_tenants_open_the_circuit(harness: LeaseHarness) -> None:
    harness.server(slots=8)
    push(harness, BAD, 9)
    push(harness, GOOD, 9)
    strike(harness, BAD, 5, EITHER)
    assert model(harness) is CircuitState.CLOSED
    strike(harness, GOOD, 1, EITHER)
    assert model(harness) is CircuitState.OPEN


def test_one_tenants_failures_count_for_half_of_the_threshold(harness: LeaseHarness) -> None:
    """Otherwise one failure of another tenant would complete the threshold."""
    harness.server(slots=8)
    harness.leases._circuit_rules["failures"] = 5
    push(harness, BAD, 9)
    push(harness, GOOD, 9)
    strike(harness, BAD, 8, EITHER)
    strike(harness, GOOD, 1, EITHER)
    assert model(harness) is CircuitState.CLOSED
    strike(harness, GOOD, 1, EITHER)
    assert model(harness) is CircuitState.OPEN


def test_a_single_tenant_opens_the_circuit_if_no_other_waits(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    push(harness, BAD, 9)
    run(harness, 3, EITHER)
    assert model(harness) is CircuitState.OPEN
    assert harness.claim() is None


@pytest.mark.parametrize("models", [("flux",), ("flux", "sdxl")])
def test_another_tenants_job_is_a_trial_at_once(harness: LeaseHarness, models: tuple[str, ...]) -> None:
    harness.server(slots=2, models=models)
    if len(models) > 1:
        push(harness, THIRD, model="sdxl")
        end(harness, harness.must_claim(), WELL)
    push(harness, BAD, 9)
    run(harness, 3, EITHER)
    push(harness, BAD)
    assert harness.claim() is None, "its own rest goes on"
    push(harness, GOOD, 3)
    assert model(harness) is CircuitState.HALF_OPEN
    probe = harness.must_claim()
    assert probe.tenant == GOOD, "and goes before the tenant that failed"
    assert harness.claim() is None, "one tries"
    end(harness, probe, WELL)
    assert model(harness) is CircuitState.CLOSED


def test_reject_if_busy_does_not_count_another_tenants_open_circuit(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    push(harness, BAD, 3)
    run(harness, 3, EITHER)
    assert harness.leases.spare_slots(POOL, BAD, ["flux"]).failing == {"flux"}
    seen = harness.leases.spare_slots(POOL, GOOD, ["flux"])
    assert (list(seen.by_model), seen.failing) == ([2], frozenset())


def test_a_tenant_that_comes_back_from_a_pause_tries_at_once_too(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.leases.set_paused_tenants(POOL, [GOOD])
    push(harness, GOOD)
    push(harness, BAD, 5)
    run(harness, 3, EITHER)
    assert model(harness) is CircuitState.OPEN
    harness.leases.set_paused_tenants(POOL, [])
    assert harness.must_claim().tenant == GOOD


def test_another_tenants_success_closes_the_circuit(harness: LeaseHarness) -> None:
    harness.server(slots=3)
    push(harness, GOOD)
    long = harness.must_claim()
    push(harness, BAD, 5)
    run(harness, 3, EITHER)
    assert model(harness) is CircuitState.OPEN
    end(harness, long, WELL)
    assert model(harness) is CircuitState.CLOSED


def test_the_try_of_a_tenant_that_failed_keeps_no_other_tenant_waiting(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    push(harness, BAD, 9)
    run(harness, 3, EITHER)
    harness.wait(10.1)
    probe = harness.must_claim()
    push(harness, GOOD)
    end(harness, probe, EITHER)
    assert model(harness) is CircuitState.HALF_OPEN
    assert harness.must_claim().tenant == GOOD


def test_after_a_rest_a_tenant_tries_that_did_not_fail(harness: LeaseHarness) -> None:
    harness.server(slots=8)
    push(harness, BAD, 9)
    push(harness, GOOD, 9)
    push(harness, THIRD, priority=8)
    strike(harness, BAD, 2, EITHER)
    strike(harness, GOOD, 1, EITHER)
    assert model(harness) is CircuitState.OPEN
    harness.wait(10.1)
    probe = harness.must_claim()
    assert probe.tenant == THIRD, "though its band is the lowest"
    end(harness, probe, EITHER)
    assert harness.leases.circuits(POOL, []).models["flux"].opens == 2


def test_failures_without_evidence_change_no_circuit(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    push(harness, BAD, 9)
    run(harness, 9, NOTHING)
    assert model(harness) is CircuitState.CLOSED


def test_the_server_that_tries_is_not_shut_again_by_the_tenant_that_failed(harness: LeaseHarness) -> None:
    """The model runs on a second server too: on one alone it is the server that seems to fail."""
    harness.server("s1", 4)
    harness.server("s2", 1, host="elsewhere")
    push(harness, BAD, 9, priority=2)
    run(harness, 3, EITHER)
    assert (server(harness, "s1"), model(harness)) == (CircuitState.OPEN, CircuitState.CLOSED)
    push(harness, GOOD, 2)
    harness.wait(10.1)
    probe = harness.must_claim()
    assert probe.tenant == BAD
    end(harness, probe, EITHER)
    assert server(harness, "s1") is CircuitState.HALF_OPEN
    assert harness.leases.circuits(POOL, ["s1"]).servers["s1"].opens == 1


def test_many_tenants_that_fail_are_remembered_up_to_a_bound(harness: LeaseHarness) -> None:
    harness.server(slots=8)
    harness.leases._circuit_rules["failures"] = 1000
    for number in range(40):
        push(harness, f"t{number:03d}" * 4)
        end(harness, harness.must_claim(), EITHER)
    assert 100 < harness.client.hstrlen(f"{harness.prefix}circuits:{POOL}", "flux") < 300


def test_circuits_of_the_previous_version_are_read(harness: LeaseHarness) -> None:
    """Four fields, without tenants; a server's thirteen."""
    harness.server(slots=2)
    push(harness, BAD, 3)
    run(harness, 1, EITHER)
    old = b"\x01\xa3old\xa4,s1,\x00"
    harness.client.hset(f"{harness.prefix}circuits:{POOL}", "flux", old)
    run(harness, 2, EITHER)
    assert model(harness) is CircuitState.OPEN
