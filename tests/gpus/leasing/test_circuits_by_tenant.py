"""One tenant's bad inputs stop its own jobs only."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from gpus.errors import Verdict
from gpus.protocol import CircuitState, Lease
from tests.gpus.leasing.circuit_rig import EITHER, MODEL, NOTHING, WELL, end, model, rig, server
from tests.gpus.leasing.rig import POOL, Rig

__all__ = ["rig"]

BAD, GOOD, THIRD = "bad", "good", "third"
BLAMES = pytest.mark.parametrize("blame", [EITHER, MODEL])
_numbers = count()


def push(rig: Rig, tenant: str, jobs: int = 1, **ticket: Any) -> None:
    rig.push(*(f"{tenant}-{next(_numbers):04d}" for _ in range(jobs)), tenant=tenant, **ticket)


def run(rig: Rig, turns: int, blame: Verdict, failing: tuple[str, ...] = (BAD,)) -> list[str]:
    """So many turns, one after the other; the tenants that got one."""
    given = []
    for _ in range(turns):
        if (lease := rig.claim()) is None:
            rig.wait(2.1)
            rig.leases.fill()
            continue
        given.append(lease.tenant)
        end(rig, lease, blame if lease.tenant in failing else WELL)
    return given


def claim_of(rig: Rig, tenant: str) -> Lease:
    """Leases of the others are given back."""
    others = []
    while True:
        lease = rig.must_claim()
        if lease.tenant == tenant:
            break
        others.append(lease)
    for other in others:
        rig.release(other, "free", gpu_seconds=0.0)
        rig.leases.push(POOL, [rig.tickets[other.job_id]])
    return lease


def strike(rig: Rig, tenant: str, times: int, blame: Verdict) -> None:
    for _ in range(times):
        end(rig, claim_of(rig, tenant), blame)


@BLAMES
@pytest.mark.parametrize("algorithm", ["fair", "fifo"])
@pytest.mark.parametrize("models", [("flux",), ("flux", "sdxl")])
@pytest.mark.parametrize("servers", [1, 2])
def test_one_tenants_failures_open_no_circuit_while_another_waits(
    rig: Rig, blame: Verdict, algorithm: str, models: tuple[str, ...], servers: int
) -> None:
    rig.pool(algorithm)
    for number in range(servers):
        rig.server(f"s{number}", 8, models)
    if len(models) > 1:
        push(rig, THIRD, model="sdxl")
    push(rig, BAD, 12)
    push(rig, GOOD, 3)
    strike(rig, BAD, 12, blame)
    assert model(rig) is CircuitState.CLOSED
    assert [server(rig, f"s{number}") for number in range(servers)] == [CircuitState.CLOSED] * servers
    assert GOOD in run(rig, 3, blame)


def test_failures_of_two_tenants_open_the_circuit(rig: Rig) -> None:
    rig.server(slots=8)
    push(rig, BAD, 9)
    push(rig, GOOD, 9)
    strike(rig, BAD, 5, EITHER)
    assert model(rig) is CircuitState.CLOSED
    strike(rig, GOOD, 1, EITHER)
    assert model(rig) is CircuitState.OPEN


def test_one_tenants_failures_count_for_half_of_the_threshold(rig: Rig) -> None:
    """Otherwise one failure of another tenant would complete the threshold."""
    rig.server(slots=8)
    rig.leases._circuit_rules["failures"] = 5
    push(rig, BAD, 9)
    push(rig, GOOD, 9)
    strike(rig, BAD, 8, EITHER)
    strike(rig, GOOD, 1, EITHER)
    assert model(rig) is CircuitState.CLOSED
    strike(rig, GOOD, 1, EITHER)
    assert model(rig) is CircuitState.OPEN


def test_a_single_tenant_opens_the_circuit_if_no_other_waits(rig: Rig) -> None:
    rig.server(slots=2)
    push(rig, BAD, 9)
    run(rig, 3, EITHER)
    assert model(rig) is CircuitState.OPEN
    assert rig.claim() is None


@pytest.mark.parametrize("models", [("flux",), ("flux", "sdxl")])
def test_another_tenants_job_is_a_trial_at_once(rig: Rig, models: tuple[str, ...]) -> None:
    rig.server(slots=2, models=models)
    if len(models) > 1:
        push(rig, THIRD, model="sdxl")
        end(rig, rig.must_claim(), WELL)
    push(rig, BAD, 9)
    run(rig, 3, EITHER)
    push(rig, BAD)
    assert rig.claim() is None, "its own rest goes on"
    push(rig, GOOD, 3)
    assert model(rig) is CircuitState.HALF_OPEN
    probe = rig.must_claim()
    assert probe.tenant == GOOD, "and goes before the tenant that failed"
    assert rig.claim() is None, "one tries"
    end(rig, probe, WELL)
    assert model(rig) is CircuitState.CLOSED


def test_reject_if_busy_does_not_count_another_tenants_open_circuit(rig: Rig) -> None:
    rig.server(slots=2)
    push(rig, BAD, 3)
    run(rig, 3, EITHER)
    assert rig.leases.spare_slots(POOL, BAD, ["flux"]).failing == {"flux"}
    seen = rig.leases.spare_slots(POOL, GOOD, ["flux"])
    assert (list(seen.by_model), seen.failing) == ([2], frozenset())


def test_a_tenant_that_comes_back_from_a_pause_tries_at_once_too(rig: Rig) -> None:
    rig.server(slots=2)
    rig.leases.set_paused_tenants(POOL, [GOOD])
    push(rig, GOOD)
    push(rig, BAD, 5)
    run(rig, 3, EITHER)
    assert model(rig) is CircuitState.OPEN
    rig.leases.set_paused_tenants(POOL, [])
    assert rig.must_claim().tenant == GOOD


def test_another_tenants_success_closes_the_circuit(rig: Rig) -> None:
    rig.server(slots=3)
    push(rig, GOOD)
    long = rig.must_claim()
    push(rig, BAD, 5)
    run(rig, 3, EITHER)
    assert model(rig) is CircuitState.OPEN
    end(rig, long, WELL)
    assert model(rig) is CircuitState.CLOSED


def test_the_try_of_a_tenant_that_failed_keeps_no_other_tenant_waiting(rig: Rig) -> None:
    rig.server(slots=2)
    push(rig, BAD, 9)
    run(rig, 3, EITHER)
    rig.wait(10.1)
    probe = rig.must_claim()
    push(rig, GOOD)
    end(rig, probe, EITHER)
    assert model(rig) is CircuitState.HALF_OPEN
    assert rig.must_claim().tenant == GOOD


def test_after_a_rest_a_tenant_tries_that_did_not_fail(rig: Rig) -> None:
    rig.server(slots=8)
    push(rig, BAD, 9)
    push(rig, GOOD, 9)
    push(rig, THIRD, priority=8)
    strike(rig, BAD, 2, EITHER)
    strike(rig, GOOD, 1, EITHER)
    assert model(rig) is CircuitState.OPEN
    rig.wait(10.1)
    probe = rig.must_claim()
    assert probe.tenant == THIRD, "though its band is the lowest"
    end(rig, probe, EITHER)
    assert rig.leases.circuits(POOL, []).models["flux"].opens == 2


def test_failures_without_evidence_change_no_circuit(rig: Rig) -> None:
    rig.server(slots=2)
    push(rig, BAD, 9)
    run(rig, 9, NOTHING)
    assert model(rig) is CircuitState.CLOSED


def test_the_server_that_tries_is_not_shut_again_by_the_tenant_that_failed(rig: Rig) -> None:
    """The model runs on a second server too: on one alone it is the server that seems to fail."""
    rig.server("s1", 4)
    rig.server("s2", 1, host="elsewhere")
    push(rig, BAD, 9, priority=2)
    run(rig, 3, EITHER)
    assert (server(rig, "s1"), model(rig)) == (CircuitState.OPEN, CircuitState.CLOSED)
    push(rig, GOOD, 2)
    rig.wait(10.1)
    probe = rig.must_claim()
    assert probe.tenant == BAD
    end(rig, probe, EITHER)
    assert server(rig, "s1") is CircuitState.HALF_OPEN
    assert rig.leases.circuits(POOL, ["s1"]).servers["s1"].opens == 1


def test_many_tenants_that_fail_are_remembered_up_to_a_bound(rig: Rig) -> None:
    rig.server(slots=8)
    rig.leases._circuit_rules["failures"] = 1000
    for number in range(40):
        push(rig, f"t{number:03d}" * 4)
        end(rig, rig.must_claim(), EITHER)
    assert 100 < rig.client.hstrlen(f"{rig.prefix}circuits:{POOL}", "flux") < 300


def test_circuits_of_the_previous_version_are_read(rig: Rig) -> None:
    """Four fields, without tenants; a server's thirteen."""
    rig.server(slots=2)
    push(rig, BAD, 3)
    run(rig, 1, EITHER)
    old = b"\x01\xa3old\xa4,s1,\x00"
    rig.client.hset(f"{rig.prefix}circuits:{POOL}", "flux", old)
    run(rig, 2, EITHER)
    assert model(rig) is CircuitState.OPEN
