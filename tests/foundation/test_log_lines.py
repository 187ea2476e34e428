"""Log lines: safe to show, and bounded."""

from __future__ import annotations

from typing import Any

import pytest

from foundation.log_lines import (
    MAX_LINE_CHARS,
    LogLine,
    RateLimit,
    as_json,
    level_of,
    lines_left_out,
    overwritten,
    read_lines,
    safe_text,
)


@pytest.mark.parametrize(("text", "shown"), [
    ("plain — naïve 日本 🦊", "plain — naïve 日本 🦊"),
    ("\x1b[31mred\x1b[0m", "red"),
    ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
    ("nul\0", r"nul\x00"),
    ("half \ud800", r"half \ud800"),
    ("a\tb", "a    b"),
    ("no-break\xa0space", "no-break space"),
    ("right to left \u202eevil", r"right to left \u202eevil"),
    ("event: done\ndata: {}\n\n", r"event: done\ndata: {}\n\n"),
    ("", ""),
])  # fmt: skip
def test_a_line_is_safe_to_show(text: str, shown: str) -> None:
    assert safe_text(text) == shown


@pytest.mark.parametrize("text", ["x" * 100, "\0" * 30, "\ud800" * 20, "é" * 50])
def test_a_long_line_is_cut(text: str) -> None:
    found = safe_text(text, 40)
    assert len(found) == 40
    assert found.endswith("…")


def test_a_line_of_50_mb_costs_no_more_than_its_beginning() -> None:
    assert len(safe_text("\x1b" * 50_000_000)) == MAX_LINE_CHARS


@pytest.mark.parametrize(("text", "left"), [
    ("10%\r50%\r100%", "100%"), ("10%\r", "10%\r"), ("10%\r20%\r", "20%\r"), ("\rdone", "done"),
    ("plain", "plain"), ("", ""), ("\r", "\r"),
])  # fmt: skip
def test_a_carriage_return_overwrites(text: str, left: str) -> None:
    assert overwritten(text) == left


def test_lines_survive_their_way_through_json() -> None:
    lines = [LogLine("stderr", "boo", "error", 12.5), lines_left_out(3)]
    assert read_lines(as_json(lines)) == lines


@pytest.mark.parametrize(("value", "lines"), [
    ("a text", [LogLine("stdout", "a text")]),
    ({"text": "x", "stream": "evil", "level": "CRITICAL", "at": 5}, [LogLine("log", "x", "error", 5.0)]),
    ({"text": "x", "at": float("nan"), "level": ["x"], "left_out": True}, [LogLine("log", "x")]),
    ({"text": 5}, []), (None, []), (7, []), ([], []), (["stdout"], []), ({"left_out": -1, "text": 0}, []),
    ({"left_out": 10**30}, []),
])  # fmt: skip
def test_values_from_outside_are_lines_or_nothing(value: Any, lines: list[LogLine]) -> None:
    assert read_lines([value]) == lines


def test_only_known_levels_are_kept() -> None:
    assert [level_of(value) for value in ("WARN", "info", "x" * 100, 5)] == ["warning", "info", "", ""]


def test_a_rate_is_kept_and_its_burst_is_refilled() -> None:
    rate = RateLimit(10.0, 20.0)
    assert [rate.take(1, 5.0) for _ in range(21)] == [True] * 20 + [False]
    assert [rate.take(1, 6.0) for _ in range(11)] == [True] * 10 + [False]
    assert not rate.take(1, 0.0), "a clock that goes back refills nothing"
    assert not rate.take(21, 1e6)
    assert rate.take(20, 1e6)
