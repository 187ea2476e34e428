"""The goals of the leasing benchmarks: their comparisons, and that a miss is reported."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.claim_rows import flatness, goals
from benchmarks.fairness import closest_pair


def row(grows: str, **values: float) -> dict[str, Any]:
    usual = {"claim_us": 20.0, "release_us": 20.0, "client_p99_us": 300.0, "bytes": 100.0}
    return {"grows": grows, **usual, **values}


def reached(*rows: dict[str, Any]) -> list[bool]:
    return [goal["reached"] for goal in goals(rows)]


def test_flat_is_dearest_by_cheapest_of_a_dimension_with_the_first_row() -> None:
    rows = [
        row(""),
        row("slots", release_us=25.0),
        row("slots", release_us=16.0),
        row("models", claim_us=22.0),
    ]
    assert flatness(rows) == {
        "slots": {"claim": 1.0, "release": 1.56},
        "models": {"claim": 1.1, "release": 1.0},
    }
    assert reached(*rows) == [True] * 5


@pytest.mark.parametrize(
    ("missed", "which"),
    [
        (row("slots", claim_us=30.1), {0, 2}),
        (row("", release_us=31.0), {1}),  # all dimensions at once: not a matter of one that grows
        (row("slots", release_us=13.9), {2}),
        (row("", client_p99_us=1001.0), {3}),
        (row("waiting", bytes=201.0), {4}),
    ],
)
def test_one_bad_row_misses_a_goal(missed: dict[str, Any], which: set[int]) -> None:
    found = reached(row(""), missed, row("models"))
    assert {place for place, one in enumerate(found) if not one} == which


def test_the_least_margin_is_that_of_the_worst_interval_and_of_each_tenants_own_jobs() -> None:
    curves = {"a": [0.0, 10.0, 20.0, 20.0], "b": [0.0, 0.0, 0.0, 15.0], "c": [0.0, 5.0, 10.0, 20.0]}
    pair = closest_pair(curves, {"a": 2.0, "b": 4.0, "c": 600.0}, 3, {"a": 1.0, "b": 2.0, "c": 1.0})
    assert pair.tenants == ("a", "b")
    assert (pair.apart, pair.bound, pair.margin) == (20.0, 16.0, -4.0)
