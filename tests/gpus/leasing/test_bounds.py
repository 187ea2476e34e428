"""Claim and release-and-claim cost a constant number of Redis commands as the backlog grows."""

from __future__ import annotations

import pytest

from tests.gpus.leasing.lease_harness import POOL, LeaseHarness
from tests.gpus.leasing.waiting_tenants import (
    FULL_MODELS,
    command_counts,
    commands,
    full_class,
    push_late_tenant,
)


@pytest.mark.parametrize("algorithm", ["fair", "fifo"])
def test_a_slot_walks_over_no_tenant_that_waits_for_other_models_only(
    harness: LeaseHarness, algorithm: str
) -> None:
    harness.pool(algorithm)
    full_class(harness)
    harness.server("other", 30, ("z",))
    push_late_tenant(harness, ["z"])
    assert len(set(command_counts(harness, FULL_MODELS))) == 1


def test_finding_a_broad_tenant_costs_a_bounded_number_of_commands(harness: LeaseHarness) -> None:
    full_class(harness)
    harness.server("other", 30, ("z",))
    push_late_tenant(harness, [*FULL_MODELS, "z"])
    assert len(set(command_counts(harness, FULL_MODELS))) == 1


def test_a_dispatch_costs_the_same_for_any_number_of_models(harness: LeaseHarness) -> None:
    models = [f"m{number:03}" for number in range(200)]
    harness.server("s1", 30, models)
    found = []
    for known in (6, 200):
        push_late_tenant(harness, models[:known], f"t{known}")
        lease = harness.must_claim()
        harness.client.config_resetstat()
        harness.next(lease)
        found.append(commands(harness))
        harness.leases.set_paused_tenants(POOL, [f"t{known}"])
    assert found[0] == found[1]
