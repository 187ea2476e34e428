"""The load of `benchmarks.big_fleet` is as described."""

from __future__ import annotations

import pytest

from benchmarks.big_fleet_load import FLOOD, LIGHT, STEADY, Load, Size
from benchmarks.big_fleet_meters import Ledger, percentile


def test_every_slot_model_and_tenant_is_there_once() -> None:
    size = Size(slots=1001, models=10, tenants=100, models_per_pool=4)
    servers = list(size.servers())
    assert sum(slots for _, slots, _ in servers) == 1001
    assert {pool for _, _, pool in servers} == set(range(size.pools)) == {0, 1, 2}
    models = [model for pool in range(size.pools) for model in size.models_of(pool)]
    assert len(models) == len(set(models)) == 10
    assert all(size.pool_of(model) == f"pool-{pool}" for pool in range(3) for model in size.models_of(pool))
    load = Load(size)
    kinds = [one.kind for one in load.senders]
    assert [kinds.count(kind) for kind in (FLOOD, STEADY, LIGHT)] == [5, 45, 50]
    assert {model for one in load.floods for model in one.models} == set(models), "every pool has a line"


def test_modest_tenants_ask_for_a_quarter_of_the_slots() -> None:
    size = Size(slots=1000, tenants=100, mean_seconds=20.0)
    load = Load(size)
    assert load.arrivals * size.mean_seconds / size.slots == pytest.approx(0.25)
    came = [load.next_arrival() for _ in range(4000)]
    assert sum(one[0] for one in came if one) / 4000 == pytest.approx(1 / load.arrivals, rel=0.1)
    assert {one[1].kind for one in came if one} == {STEADY, LIGHT}


def test_sizes_that_make_no_sense_are_refused() -> None:
    for wrong in ({"slots": 8, "models": 100}, {"seconds": 10.0}, {"fleets": 99}, {"tenants": 0}):
        with pytest.raises(ValueError):
            Size(**wrong)  # type: ignore[arg-type]


def test_only_the_window_counts_and_a_slot_that_is_used_twice_is_seen() -> None:
    ledger = Ledger(since=100.0)
    assert ledger.start("s/0", "a", 90.0, 8.0) == 8.0
    ledger.end("s/0", 90.0, 105.0)
    assert (ledger.busy, ledger.finished, ledger.swaps) == (5.0, 1, 0)
    assert ledger.start("s/0", "a", 110.0, 8.0) == 0.0, "it is warm"
    assert ledger.start("s/0", "b", 111.0, 8.0) == 8.0
    assert (ledger.swaps, ledger.swapping, ledger.doubled) == (1, 8.0, 1)
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
