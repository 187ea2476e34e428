"""Limits of a run's output."""

from __future__ import annotations

import pytest

from gpu_host.local.output_limiter import MAX_LOG_CHARS, MAX_PARTIAL_BYTES, PER_SECOND, OutputLimiter


def line(text: str = "x", **fields: object) -> dict[str, object]:
    return {"text": text, "fields": fields}


def test_progress_is_sent_ten_times_a_second_and_always_at_its_end():
    faucet = OutputLimiter()
    told = [
        faucet.admit("progress", value, now)
        for value, now in ((0.1, 5.0), (0.2, 5.05), (0.3, 5.2), (1.0, 5.21))
    ]
    assert [len(one) for one in told] == [1, 0, 1, 1]


def test_a_flood_is_cut_and_counted():
    faucet = OutputLimiter()
    told = [one for number in range(PER_SECOND + 7) for one in faucet.admit("partial", number, 5.5)]
    assert told == [("partial", number) for number in range(PER_SECOND)]
    assert faucet.admit("log", line("later"), 6.0) == [
        ("log", line("… 7 more left out")),
        ("log", line("later")),
    ]


def test_large_items_are_cut_or_left_out():
    faucet = OutputLimiter()
    ((_, long),) = faucet.admit("log", line("x" * 10_000, blob="y" * 10_000), 1.0)
    assert long == {"text": "x" * MAX_LOG_CHARS, "fields": {"left_out": ["blob"]}}
    assert faucet.admit("partial", "x" * MAX_PARTIAL_BYTES, 1.0) == []


def test_a_value_that_is_not_json_raises_in_the_handler():
    with pytest.raises(TypeError):
        OutputLimiter().admit("partial", {1, 2}, 1.0)
