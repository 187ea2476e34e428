"""The values that cross the floors."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gpus.protocol import SystemClock


def test_a_wrong_clock_is_wrong_in_its_wall_time_only() -> None:
    right, wrong = SystemClock(), SystemClock(300.0)
    assert abs(wrong.now() - datetime.now(UTC) - timedelta(seconds=300)) < timedelta(seconds=5)
    assert abs(right.now() - datetime.now(UTC)) < timedelta(seconds=5)
    assert abs(wrong.monotonic() - right.monotonic()) < 5
