"""Each mechanism of the protocol, taken out: a law breaks, or, where another guard is behind it, it costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from dispatcher_project.embedded import find_valkey
from dispatcher_project.supervisor.data_folder import ROOT

pytestmark = [
    pytest.mark.sqlite_only,
    pytest.mark.long,
    pytest.mark.skipif(find_valkey() is None, reason="no Valkey or Redis server binary on this machine"),
]


def without(mechanisms: str, *, faults: str, seeds: int, stops: bool = True) -> dict[str, Any]:
    """Plays so many seeds; stops: only until a law breaks."""
    module = "tests.dispatcher_project.simulation.without"
    done = subprocess.run(
        [sys.executable, "-m", module, mechanisms, faults, str(seeds), "stops" if stops else ""],
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("mechanism", "faults", "law"),
    [
        ("result fence", "cut_from_redis,pause,pause_in_a_step", "(7)"),
        ("reconciler", "redis_refuses,redis_silent,cut_from_redis", "(5)"),
        ("expired leases", "kill,kill_in_a_step", "lost:"),
        ("quarantine", "cut_from_redis,gpu_replies_lost,gpu_unreachable,kill", "oversubscribed:"),
        ("generation marker", "redis_fails_over", "oversubscribed:"),
        ("idempotent requests", "redis_calls_doubled", "lost:"),
        ("look at the row,start compare-and-set", "redis_refuses,cut_from_redis", "(4)"),
    ],
)
def test_a_law_breaks_without(mechanism: str, faults: str, law: str) -> None:
    broken = without(mechanism, faults=faults, seeds=30)["broken"]
    assert any(one.startswith(law) for one in broken), broken


def test_a_start_is_refused_by_the_row_where_the_look_before_it_is_missing() -> None:
    """Either of the two keeps the laws; without the first, runs are begun that are stopped again."""
    faults = "redis_refuses,cut_from_redis"
    missing, whole = (without(name, faults=faults, seeds=3) for name in ("look at the row", ""))
    assert missing["broken"] == whole["broken"] == []
    assert missing["cost"]["gpu_runs"] > whole["cost"]["gpu_runs"]


def test_the_unique_slot_stands_behind_the_generation_marker() -> None:
    """An index that lies gives a slot twice: the database refuses the second, as long as it has its own."""
    faults = "redis_fails_over"
    behind = without("generation marker", faults=faults, seeds=2, stops=False)["cost"]
    assert (behind["double_bookings"], behind["refused_bookings"] > 0) == (0, True)
    missing = without("generation marker,unique slot", faults=faults, seeds=2, stops=False)["cost"]
    assert missing["double_bookings"] > 0


def test_without_adoption_runs_are_repeated_that_somebody_could_have_gone_on_polling() -> None:
    missing, whole = (without(name, faults="kill,kill_in_a_step", seeds=3) for name in ("adoption", ""))
    assert missing["broken"] == whole["broken"] == []
    assert missing["cost"]["async_runs"] > whole["cost"]["async_runs"]
