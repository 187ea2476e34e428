"""The benchmarks of explanations: a missed goal is reported, and every cause is produced."""

from __future__ import annotations

import math

import pytest

from benchmarks import explain, explain_causes, explain_intervals


@pytest.mark.parametrize(("p95", "right", "missed"), [
    ({"explain": 49.9, "estimate": 1.0, "outlook alone": 99.0}, 0.95, []),
    ({"explain": 50.0, "estimate": 1.0}, 1.0, ["explain"]),
    ({"explain": 1.0, "estimate": 50.1}, 0.949, ["estimate", "first reason"]),
])  # fmt: skip
def test_an_explanation_in_time_that_names_the_cause(
    p95: dict[str, float], right: float, missed: list[str]
) -> None:
    assert explain.misses(p95, right) == missed


def test_intervals_that_cover_too_few_or_too_many() -> None:
    covered = {"a": 0.849, "b": 0.85, "c": 0.9, "d": 0.95, "e": 0.951, "no job waited": math.nan}
    assert explain_intervals.misses(covered) == ["a", "e", "no job waited"]


def test_each_cause_counts_alone() -> None:
    assert explain_causes.misses({"quota": 0.96, "rate": 0.94, "behind": 0.95}) == ["rate"]
