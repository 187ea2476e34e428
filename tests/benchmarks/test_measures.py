"""How the benchmarks evaluate their samples."""

from __future__ import annotations

import pytest

from benchmarks.claim import GROWING
from benchmarks.suite.claim import flatness, sizes
from benchmarks.suite.cost import carried, per_job
from benchmarks.suite.end_to_end import figures
from benchmarks.suite.memory import growth
from benchmarks.suite.slot_log import Run
from benchmarks.suite.submit import DEPLOYED, DJANGO_NAME, STARLETTE_NAME, ratios
from benchmarks.suite.utilisation import spread_out


def test_the_first_jobs_end_one_after_the_other():
    jobs = spread_out(100, 10, 0.4, 4)
    assert [number for number, _ in jobs] == list(range(100, 110))
    assert [seconds for _, seconds in jobs] == pytest.approx([0.1, 0.2, 0.3] + [0.4] * 7)


def test_spans_of_a_job_end_to_end():
    found = figures({"a": (1.0, 1.010)}, [Run(0, 1.015, 1.065, 0, "a")], {"a": 1.080})
    assert {name: one["p50"] for name, one in found["ms"].items()} == {
        "accepted → running": 5.0, "sent → running": 15.0,
        "finished → called back": 15.0, "sent → called back": 80.0,
    }  # fmt: skip
    assert found["wrong"] == []


def test_a_job_that_ran_twice_or_had_no_callback_is_reported_and_not_measured():
    runs = [
        Run(0, 1.0, 1.1, 0, "a"),
        Run(0, 1.2, 1.3, 0, "a"),
        Run(1, 1.0, 1.1, 1, "b"),
        Run(2, 2.0, 2.1, 0, "c"),
    ]
    sent = {name: (0.9, 0.95) for name in "abc"}
    found = figures(sent, runs, {"a": 1.4, "c": 2.2})
    assert found["jobs"] == 1
    assert found["wrong"] == ["2 jobs did not run once, or were not called back"]


def test_memory_that_grows_after_its_warm_up_is_not_flat():
    warm = [(done, min(80.0, 40.0 + done)) for done in range(0, 501, 5)]
    assert growth(warm) | {"flat": True} == growth(warm)
    assert growth([(done, 80.0 + done / 20) for done in range(0, 501, 5)])["flat"] is False
    with pytest.raises(ValueError, match="too few samples"):
        growth([(0, 1.0), (5, 1.0)])


def test_claims_are_measured_over_the_whole_range_of_the_goal():
    found = list(sizes())
    assert found[0][0] == ""
    assert max(size.waiting for _, size in found) == 1_000_000
    assert max(size.slots for _, size in found) == max(size.tenants for _, size in found) == 10_000
    assert max(size.models for _, size in found) == 200
    assert len(found) == 1 + sum(len(values) for values in GROWING.values())
    assert all(size.waiting >= size.tenants for _, size in found)
    assert flatness([{"release_us": one} for one in (20.0, 15.0, 31.0)]) == {
        "most_us": 31.0, "lowest_ratio": 0.75, "highest_ratio": 1.55,
    }  # fmt: skip


def test_the_cost_at_rest_is_subtracted():
    found = per_job({"cpu": 10.0, "new": 1.0}, {"cpu": 60.0, "new": 1.0, "late": 5.0}, {"cpu": 1.0}, 10.0, 20)
    assert found == {"cpu": 2.0, "new": 0.0}
    assert carried({"cpu_ms gpu_worker": 2.0, "cpu_ms valkey": 0.1}) == {
        "one Redis (a core)": 10_000, "a worker process": 500,
    }  # fmt: skip


def test_ratios_are_of_the_deployed_server_if_it_differs():
    def rate(single: float, batch: float) -> dict:
        return {
            way: {"median": {"jobs_per_second": one}} for way, one in (("single", single), ("batch", batch))
        }

    found = ratios({"dispatcher": rate(1, 1), DEPLOYED: rate(90, 4000), STARLETTE_NAME: rate(2000, 9000)})
    assert found == {
        "batched / Starlette, one by one": 2.0,
        "batched / Starlette, batched": 0.444,
        "single / Django, one row": None,
    }
    assert ratios({"dispatcher": rate(90, 1), DJANGO_NAME: rate(100, 1)})["single / Django, one row"] == 0.9
