"""Claim and release-and-claim cost a constant number of Redis commands as the backlog grows."""

from __future__ import annotations

import pytest

from tests.gpus.leasing.rig import POOL, Rig
from tests.gpus.leasing.waiting_tenants import (
    FULL_MODELS,
    command_counts,
    commands,
    full_class,
    push_late_tenant,
)


@pytest.mark.parametrize("algorithm", ["fair", "fifo"])
def test_a_slot_walks_over_no_tenant_that_waits_for_other_models_only(rig: Rig, algorithm: str) -> None:
    rig.pool(algorithm)
    full_class(rig)
    rig.server("other", 30, ("z",))
    push_late_tenant(rig, ["z"])
    assert len(set(command_counts(rig, FULL_MODELS))) == 1


def test_finding_a_broad_tenant_costs_a_bounded_number_of_commands(rig: Rig) -> None:
    full_class(rig)
    rig.server("other", 30, ("z",))
    push_late_tenant(rig, [*FULL_MODELS, "z"])
    assert len(set(command_counts(rig, FULL_MODELS))) == 1


def test_a_dispatch_costs_the_same_for_any_number_of_models(rig: Rig) -> None:
    models = [f"m{number:03}" for number in range(200)]
    rig.server("s1", 30, models)
    found = []
    for known in (6, 200):
        push_late_tenant(rig, models[:known], f"t{known}")
        lease = rig.must_claim()
        rig.client.config_resetstat()
        rig.next(lease)
        found.append(commands(rig))
        rig.leases.set_paused_tenants(POOL, [f"t{known}"])
    assert found[0] == found[1]
