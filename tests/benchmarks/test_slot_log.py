"""Evaluation of a slot log: utilisation, gaps, and whether each job ran exactly once."""

from __future__ import annotations

import pytest

from benchmarks.suite.slot_log import Run, evaluate


def steady(slots: int, jobs_per_slot: int, *, seconds: float, gap: float) -> list[Run]:
    """Each slot's jobs follow one another after the same gap."""
    return [
        Run(slot * 1000 + number, number * (seconds + gap), number * (seconds + gap) + seconds, slot)
        for slot in range(slots)
        for number in range(jobs_per_slot)
    ]


def numbers(runs: list[Run]) -> set[int]:
    return {run.job for run in runs}


def test_busy_time_is_shared_out_over_slots_and_time():
    runs = steady(4, 100, seconds=0.09, gap=0.01)
    found = evaluate(runs, slots=4, expected=numbers(runs))
    assert found.utilisation == pytest.approx(0.9, abs=0.002)
    assert (found.gaps["p50"], found.gaps["p99"]) == (pytest.approx(10.0), pytest.approx(10.0))
    assert found.wrong == ()


def test_an_unused_slot_counts():
    runs = steady(3, 100, seconds=0.1, gap=0.0)
    assert evaluate(runs, slots=4, expected=numbers(runs)).utilisation == pytest.approx(0.75, abs=0.01)


def test_neither_the_warm_up_nor_the_empty_queue_at_the_end_counts():
    runs = steady(2, 100, seconds=0.1, gap=0.0)
    slow_start = [Run(-1, -60.0, -59.9, 0), Run(-2, -60.0, -59.9, 1)]
    long_last = [Run(-3, 10.0, 60.0, 0)]
    runs = [*slow_start, *runs, *long_last]
    found = evaluate(runs, slots=2, expected=numbers(runs))
    assert found.utilisation == pytest.approx(1.0, abs=0.001)
    assert found.window_seconds < 10.0
    assert found.gaps["max"] < 1.0


def test_one_long_gap_shows_in_p99_and_not_in_the_median():
    runs = steady(1, 100, seconds=0.1, gap=0.001)
    late = [Run(run.job, run.began + 0.5, run.ended + 0.5, 0) if run.job >= 50 else run for run in runs]
    found = evaluate(late, slots=1, expected=numbers(runs))
    assert found.gaps["p50"] == pytest.approx(1.0, abs=0.01)
    assert found.gaps["max"] == pytest.approx(501.0, abs=0.1)


def test_jobs_not_run_exactly_once_are_reported():
    runs = steady(2, 20, seconds=0.1, gap=0.0)
    again = [*runs, Run(runs[0].job, 5.0, 5.1, 1)]
    wanted = {*numbers(runs), 777}
    found = evaluate([run for run in again if run.job != 1003], slots=2, expected=wanted - {1004}, refused=2)
    assert found.wrong == (
        "2 never run (777, 1003)",
        "1 run more than once (0)",
        "1 run that was not submitted (1004)",
        "2 requests came to a full server",
    )


def test_too_few_runs_are_no_measurement():
    with pytest.raises(ValueError, match="only 3 runs on 2 slots"):
        evaluate(steady(1, 3, seconds=0.1, gap=0.0), slots=2, expected=())
