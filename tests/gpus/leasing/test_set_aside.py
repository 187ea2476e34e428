"""Broad tenants without a usable ticket for a class are set aside, a few per call, and return as soon as they
have one."""

from __future__ import annotations

import pytest

from gpus.leasing.scripts import Client
from gpus.leasing.values import CircuitRules
from gpus.protocol import CircuitState, ServerSpec
from tests.gpus.leasing.circuit_harness import MODEL, WELL, end, model
from tests.gpus.leasing.lease_harness import POOL, LeaseHarness, counts
from tests.gpus.leasing.waiting_tenants import (
    FULL_MODELS,
    command_counts,
    commands,
    full_class,
    push_late_tenant,
    push_waiting_tenants,
)

WITH_BROKEN = (*FULL_MODELS[:4], "broken")
REST_SECONDS = 1000.0


@pytest.fixture
def fragile(client: Client, fleet: str) -> LeaseHarness:
    """One failure opens a circuit."""
    harness = LeaseHarness(client, fleet, circuit_rules=CircuitRules(1, REST_SECONDS, REST_SECONDS)).open()
    full_class(harness)
    harness.server("other", 30, ("broken", "z"))
    harness.wait(1)  # so that the slot that is used next is the last one to be taken
    return harness


def breaks(harness: LeaseHarness) -> None:
    harness.push("breaks", model="broken", place=0)
    end(harness, harness.must_claim(), MODEL)
    assert model(harness, "broken") is CircuitState.OPEN


def test_tenants_waiting_for_a_blocked_model_do_not_block_others(fragile: LeaseHarness) -> None:
    breaks(fragile)
    push_late_tenant(fragile, ["z"])
    assert len(set(command_counts(fragile, WITH_BROKEN))) == 1


@pytest.mark.parametrize("new_class", [False, True])
def test_a_call_sets_aside_a_bounded_number_of_tenants(fragile: LeaseHarness, new_class: bool) -> None:
    """Or before a class began. The claim is asked again and again, a few each time, and that once."""
    push_waiting_tenants(fragile, 0, 200, WITH_BROKEN)
    if new_class:
        fragile.leases.forget_server("other")
        fragile.server("other", 30, ("y", "z"))
    else:
        breaks(fragile)
    push_late_tenant(fragile, ["z"])
    found = []
    for _ in range(3):
        fragile.client.config_resetstat()
        assert fragile.must_claim().tenant == "z"
        calls = fragile.client.info("commandstats")["cmdstat_fcall"]["calls"]
        found.append((calls, commands(fragile) // calls))
    assert [calls for calls, _ in found] == [200 // 16 + 1, 1, 1]
    assert max(per_call for _, per_call in found) < 100


def test_a_release_at_its_limit_sends_a_wake_for_its_slot(fragile: LeaseHarness) -> None:
    push_late_tenant(fragile, ["z"])
    lease = fragile.must_claim()
    while fragile.claim():
        pass  # so that there is no other slot
    fragile.push("lower", model="z", tenant="v", priority=9)
    push_waiting_tenants(fragile, 0, 100, WITH_BROKEN)
    fragile.leases.configure_server(ServerSpec("other", POOL, 30, ("y", "z")))
    assert fragile.release(lease, gpu_seconds=1.0, next_attempt_id="next") is None
    assert counts(fragile.leases.confirm_ends([lease.ref])) == {(POOL, None): 1}
    assert fragile.must_claim().tenant == "z"


@pytest.mark.parametrize("second", ["another class", "a narrow tenant", "a lower band"])
def test_no_tenant_overtakes_one_that_was_not_examined(fragile: LeaseHarness, second: str) -> None:
    push_waiting_tenants(fragile, 0, 40, WITH_BROKEN)
    breaks(fragile)
    push_late_tenant(fragile, [*FULL_MODELS, "z"], "u")
    if second == "another class":
        fragile.server("third", 1, ("y",))
        fragile.push("last", model="y", tenant="v", place=5)
    elif second == "a narrow tenant":
        fragile.push("last", model="z", tenant="v", place=5)
    else:
        fragile.push("last", model="z", tenant="v", place=5, priority=9)
    assert fragile.must_claim().tenant == "u"


def test_tenants_set_aside_return_when_the_circuit_is_half_open_or_closed(fragile: LeaseHarness) -> None:
    push_waiting_tenants(fragile, 0, 40, WITH_BROKEN)
    breaks(fragile)
    push_late_tenant(fragile, ["z"])
    assert fragile.must_claim().tenant == "z"
    fragile.wait(REST_SECONDS)
    probe = fragile.must_claim()
    assert probe.model == "broken"
    assert fragile.must_claim().tenant == "z", "one tries"
    end(fragile, probe, WELL)
    assert [fragile.must_claim().model for _ in range(20)] == ["broken"] * 20


def test_a_wiped_index_has_no_tenant_orders(fragile: LeaseHarness) -> None:
    push_waiting_tenants(fragile, 0, 5, WITH_BROKEN)
    assert fragile.leases.begin_rebuild("harness")
    while not fragile.leases.wipe("harness"):
        pass
    assert fragile.all_keys() == {"rebuild"}
