from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jobs.callbacks.deliver import DELAYS_SECONDS, next_try_at

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def test_ten_tries_spread_over_about_75_hours() -> None:
    assert len(DELAYS_SECONDS) == 10
    assert 75 <= sum(DELAYS_SECONDS) / 3600 < 76


@pytest.mark.parametrize(
    ("tries", "seconds"),
    [(1, 5), (2, 300), (3, 1800), (4, 7200), (5, 18000), (6, 36000), (7, 50400), (8, 72000), (9, 86400)],
)
def test_each_pause_is_the_specifications(tries: int, seconds: float) -> None:
    assert next_try_at(tries, now=NOW, chance=0.5) == NOW + timedelta(seconds=seconds)


def test_the_schedule_ends() -> None:
    assert next_try_at(10, now=NOW) is None


def test_messages_that_failed_together_are_not_sent_again_together() -> None:
    again = {next_try_at(3, now=NOW) for _ in range(20)}
    assert len(again) > 1
    assert all(when and timedelta(seconds=1620) <= when - NOW <= timedelta(seconds=1980) for when in again)


@pytest.mark.parametrize(("asked", "seconds"), [(60.0, 60.0), (1.0, 5.0), (0.0, 5.0), (10**9, 86400.0)])
def test_a_receiver_may_lengthen_the_pause_within_reason_and_never_shorten_it(
    asked: float, seconds: float
) -> None:
    when = next_try_at(1, now=NOW, retry_after_seconds=asked, chance=0.5)
    assert when == NOW + timedelta(seconds=seconds)
