from __future__ import annotations

import pytest

from foundation.network import OVERHEAD_BYTES, ByteRateLimiter


class Time:
    def __init__(self) -> None:
        self.at, self.slept = 0.0, 0.0

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds
        self.slept += seconds


def test_a_burst_is_free_and_the_rest_takes_its_time() -> None:
    time = Time()
    pace = ByteRateLimiter(1000.0, lambda: 10 * OVERHEAD_BYTES, now=time.now, sleep=time.sleep)
    for _ in range(10):
        pace.take(0)
    assert time.slept == 0.0
    pace.take(1000 - OVERHEAD_BYTES)
    assert time.slept == pytest.approx(1.0)
    pace.take(2000 - OVERHEAD_BYTES)
    assert time.slept == pytest.approx(3.0)


def test_an_unused_budget_does_not_grow() -> None:
    time = Time()
    pace = ByteRateLimiter(1000.0, lambda: OVERHEAD_BYTES, now=time.now, sleep=time.sleep)
    time.at = 1e9
    pace.take(0)
    assert time.slept == 0.0
    pace.take(1000 - OVERHEAD_BYTES)
    assert time.slept == pytest.approx(1.0)
