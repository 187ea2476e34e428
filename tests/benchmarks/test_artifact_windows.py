"""Windows of submits alone and beside loads: their ratios, and that a load runs in its own windows only."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from benchmarks import artifact_windows
from benchmarks.artifact_windows import ALONE, in_turns, interval, ratio, report
from benchmarks.file_clients import Pace


def windows(factor: float, *, turns: int = 40, seed: int = 1) -> list[list[float]]:
    """Samples with a long tail, in windows of which some are slow as a whole."""
    draw = random.Random(seed)
    return [[factor * draw.choice((1, 3)) * draw.expovariate(0.1) for _ in range(50)] for _ in range(turns)]


def test_a_ratio_is_that_of_all_samples_and_not_the_mean_of_windows():
    assert ratio([[1.0] * 98, [9.0] * 2], [[3.0] * 100], 0.99) == 3.0
    assert ratio([[1.0] * 98, [9.0] * 2], [[2.0] * 100], 0.5) == 0.5


@pytest.mark.parametrize(("factor", "seed"), [(1.0, 2), (1.0, 3), (1.5, 2), (1.5, 3)])
def test_the_interval_holds_the_real_ratio_and_is_narrow_enough_to_show_half_more(factor, seed):
    low, high = interval(windows(factor, seed=seed), windows(1.0, seed=7), 0.99)
    assert low <= factor <= high
    assert high - low < 0.6


def test_turns_that_were_slow_for_both_widen_no_interval():
    base = [[1.0] * 20 if turn % 2 else [10.0] * 20 for turn in range(20)]
    tested = [[2 * one for one in window] for window in base]
    assert interval(tested, base, 0.5) == (2.0, 2.0)


def test_each_turn_has_a_window_of_each_kind_and_a_load_runs_in_its_own_only():
    running: list[str] = []
    seen: list[tuple[str, ...]] = []

    def load(name: str):
        @contextmanager
        def on() -> Iterator[None]:
            running.append(name)
            yield
            running.remove(name)

        return on

    found = list(
        in_turns(
            {"files": load("files"), "control": load("control")},
            lambda: seen.append(tuple(running)),
            turns=3,
            settle_seconds=0.0,
            seconds=0.02,
            rate=1000.0,
        )
    )[-1]
    assert {kind: len(one) for kind, one in found.items()} == {ALONE: 3, "files": 3, "control": 3}
    assert set(seen) == {(), ("files",), ("control",)}
    lines = list(report(found, [("files", ALONE), ("files", "absent")]))
    assert len(lines) == 4
    assert lines[-1].startswith("files to alone ")


def test_submits_keep_their_rate_and_late_ones_are_not_made_up_for(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(artifact_windows.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(artifact_windows.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    at, took = [], iter([0.01, 0.35, 0.01, *[0.01] * 20])

    def submit() -> None:
        at.append(round(now[0], 3))
        now[0] += next(took)

    found = artifact_windows._window(submit, 1.0, 10.0)
    assert at[:4] == [0.0, 0.1, 0.45, 0.55]
    assert [round(one) for one in found[:3]] == [10, 350, 10]


def test_the_speed_of_a_stopped_client_is_not_made_up_for(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("benchmarks.file_clients.time.monotonic", lambda: now[0])
    slept: list[float] = []
    monkeypatch.setattr("benchmarks.file_clients.time.sleep", slept.append)
    pace = Pace(1000.0)
    for number in count():
        pace.wait_after(100)
        now[0] += slept[-1] + (30.0 if number == 5 else 0.0)
        if number == 20:
            break
    assert pace.moved == 2100
    assert now[0] - 130.0 == pytest.approx(2.0, abs=0.2)
