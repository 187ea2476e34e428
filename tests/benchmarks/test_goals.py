"""Each goal is compared with its measured value."""

from __future__ import annotations

import pytest

from benchmarks.suite.goals import Goal, goals, wrongs
from benchmarks.suite.newcomer import APART, FIRST, LATER, TOGETHER
from benchmarks.suite.pinned import summary
from tests.benchmarks.made import measured, results


def of(found: dict, text: str) -> Goal:
    (goal,) = [goal for goal in goals(found) if text in goal.goal]
    return goal


def test_an_unmeasured_goal_is_neither_met_nor_missed():
    found = goals({})
    assert {goal.met for goal in found} == {None}
    assert {goal.benchmark for goal in found} == {
        "utilisation", "submit", "end-to-end", "claim", "fleet", "polling", "memory", "startup", "idle",
        "pinned", "newcomer", "workflows", "schedules",
    }  # fmt: skip


def test_goals_at_and_below_their_limits():
    found = results(dispatcher=measured(0.985, cpu=2.8, gap=1.6), raw=measured(0.99, gap=1.0))
    assert of(found, "utilisation, jobs of 100 ms").met is True
    assert of(found, "utilisation, jobs of 500 ms").met is None
    assert of(found, "gap p50 / raw limit, jobs of 20 ms") == Goal(
        "utilisation", "gap p50 / raw limit, jobs of 20 ms, ≤ 1.5 ×", "1.6 ×", False
    )
    assert of(found, "CPU of all our processes").met is True
    assert of(found, "the same with PostgreSQL's") == Goal(
        "utilisation", "the same with PostgreSQL's ≤ 3 ms", "3.3 ms", False
    )
    assert of(found, "bare Django view").met is True
    assert of(found, "accepted → running: p50").met is True
    assert of(found, "accepted → running: p99").met is False
    assert of(found, "flat: every row").met is False
    assert of(found, "flat over 100,000 jobs") == Goal(
        "memory", "flat over 100,000 jobs", "80 → 81 MB over 5,000", None
    )


@pytest.mark.parametrize(
    ("jobs", "share", "met"), [(200, 0.02, True), (60, 0.02, None), (60, 0.2, False), (200, 0.1, False)]
)
def test_too_few_jobs_can_miss_a_goal_but_not_meet_it(jobs, share, met):
    assert of({"polling": {"jobs": jobs, "core_share": share}}, "200 async jobs").met is met
    few = {"memory": {"jobs": 500, "first_mb": 80.0, "last_mb": 99.0, "most_mb": 99.0, "flat": False}}
    assert of(few, "flat over 100,000 jobs").met is False


def test_first_jobs_and_plain_servers_are_compared_with_their_counterparts():
    rows = {FIRST: 0.94, LATER: 0.95, APART: 0.7, TOGETHER: 0.98}
    found = {"newcomer": {"rows": {name: {"median": {"utilisation": one}} for name, one in rows.items()}}}
    assert of(found, "right after `up` / later").met is True
    assert of(found, "head and body apart / together").met is False


def test_goals_of_an_idle_system_and_of_pinned_workers():
    found = {
        "idle": {"mb": 651.0, "core_percent": 5.2},
        "pinned": summary([18.0, 25.5, 19.0], [0.2, 0.9, 0.3]),
    }
    assert [(goal.measured, goal.met) for goal in goals(found) if goal.met is not None] == [
        ("651 MB", True), ("5.2 %", False), ("25.5 s", False), ("0.9 s", True),
    ]  # fmt: skip


def test_ahead_of_the_best_peer_at_20_ms_and_hardly_behind_at_100():
    found = results(dispatcher=measured(0.95), celery=measured(0.8), bullmq=measured(0.952))
    at_20, at_100 = of(found, "ahead of every peer at 20 ms"), of(found, "ahead of every peer at 100 ms")
    assert (at_20.met, at_100.met) == (False, True)
    assert "the best is bullmq with 0.952; without rq, dramatiq" in at_20.measured
    assert of(results(dispatcher=measured(0.95), huey=measured(0.95)), "at 20 ms").met is False


def test_an_incorrect_contender_is_named():
    found = results(dispatcher=measured(0.9), rq=measured(0.99, wrong=("3 never run (1, 2, 3)",)))
    assert wrongs(found) == ["rq, 20 ms: 3 never run (1, 2, 3)", "rq, 100 ms: 3 never run (1, 2, 3)"]
