"""What a real model process writes, as log lines of its runs."""

from __future__ import annotations

import pytest

from gpu_host.local.run_output import LINES_AT_ONCE
from gpus.errors import ProcessDied
from tests.support.local_bench import Bench
from tests.support.waiting import wait_for


def test_every_way_to_write_is_a_line_of_the_run(bench: Bench) -> None:
    order = bench.order("wild", {"do": "prints"})
    assert bench.begin(order).end() == 0, "a fork that prints is not killed"
    lines = bench.log_of(order)
    routed = [line for line in lines if line[1] not in ("past python", "by a child", "by a fork")]
    assert routed == [
        ("stdout", "loading weights"),
        ("stderr", "to stderr"),
        ("stderr", "100%"),
        ("log", "said size=[1, 2]"),
        ("stdout", "by a helper"),
        ("stdout", "without an end"),
    ]
    assert set(lines) - set(routed) == {
        ("stdout", "past python"),
        ("stdout", "by a child"),
        ("stdout", "by a fork"),
    }


def test_levels_and_times_are_those_of_the_line(bench: Bench) -> None:
    order = bench.order("wild", {"do": "prints"})
    bench.begin(order).end()
    parts = [value for attempt, kind, value in bench.heard if (attempt, kind) == (order.attempt, "log")]
    (said,) = [line for part in parts for line in part.lines if line.text.startswith("said")]
    assert said.level == "warning"
    assert said.at is not None


def test_a_flood_is_bounded_and_counted(bench: Bench) -> None:
    order = bench.order("wild", {"do": "floods", "lines": 20_000})
    assert bench.begin(order).end() == "done"
    parts = [value for attempt, kind, value in bench.heard if (attempt, kind) == (order.attempt, "log")]
    lines = [line for part in parts for line in part.lines]
    whole = [line for line in lines if not line.left_out]
    assert LINES_AT_ONCE <= len(whole) < 3 * LINES_AT_ONCE
    assert len(whole) + sum(line.left_out for line in lines) == 20_001
    assert max(len(line.text) for line in lines) <= 4096


def test_two_runs_at_once_keep_their_lines_apart(bench: Bench) -> None:
    here, there = bench.path(), bench.path()
    orders = [
        bench.order("pair", {"name": name, "here": str(mine), "other": str(other)})
        for name, mine, other in (("ada", here, there), ("ben", there, here))
    ]
    for going in [bench.begin(order) for order in orders]:
        going.end()
    assert [bench.log_of(order) for order in orders] == [[("stdout", "I am ada")], [("stdout", "I am ben")]]
    assert bench.lines.count("whose line is this") == 2, "a line that may be of either run is of none"


def test_the_last_words_of_a_process_that_dies_are_lines_of_its_run(bench: Bench) -> None:
    order = bench.order("wild", {"do": "dies_with_words"})
    with pytest.raises(ProcessDied):
        bench.begin(order).end()
    assert ("stderr", "glibc: corrupted list") in bench.log_of(order)


def test_lines_after_a_runs_end_are_of_no_run(bench: Bench) -> None:
    go, said = bench.path(), bench.path()
    order = bench.order("wild", {"do": "logs_later", "go": str(go), "said": str(said)})
    bench.begin(order).end()
    before = len(bench.heard)
    go.touch()
    wait_for(said.exists)
    assert bench.wild("echo"), "the frame before its own was read"
    assert bench.heard[before:] == []
