"""Limits of a run's output."""

from __future__ import annotations

import pytest

from foundation.log_lines import LogLine, as_json, lines_left_out
from gpu_host.local.output_limiter import LINES_AT_ONCE, MAX_PARTIAL_BYTES, PER_SECOND, OutputLimiter


def test_progress_is_sent_ten_times_a_second_and_always_at_its_end():
    faucet = OutputLimiter()
    admitted = [
        faucet.admit("progress", value, now)
        for value, now in ((0.1, 5.0), (0.2, 5.05), (0.3, 5.2), (1.0, 5.21))
    ]
    assert [len(one) for one in admitted] == [1, 0, 1, 1]


def test_a_flood_is_cut_and_counted():
    faucet = OutputLimiter()
    admitted = [one for number in range(PER_SECOND + 7) for one in faucet.admit("partial", number, 5.5)]
    assert admitted == [("partial", number) for number in range(PER_SECOND)]
    assert faucet.admit("partial", "later", 6.0) == [
        ("log", [LogLine("log", "… 7 partial outputs left out", "warning")]),
        ("partial", "later"),
    ]


def test_a_large_output_is_left_out():
    assert OutputLimiter().admit("partial", "x" * MAX_PARTIAL_BYTES, 1.0) == []


def test_lines_beyond_the_rate_are_counted():
    limiter = OutputLimiter()
    line = LogLine("stdout", "a")
    values = as_json([line] * (LINES_AT_ONCE + 5))
    assert limiter.admit_lines(values, 1.0) == [line] * LINES_AT_ONCE
    assert limiter.admit_lines(as_json([line]), 2.0) == [lines_left_out(5), line]


@pytest.mark.parametrize("values", ["text", 5, None, {"lines": []}])
def test_a_value_that_is_not_a_list_has_no_lines(values):
    assert OutputLimiter().admit_lines(values, 1.0) == []


def test_a_value_that_is_not_json_raises_in_the_handler():
    with pytest.raises(TypeError):
        OutputLimiter().admit("partial", {1, 2}, 1.0)
