"""What becomes of due times: on time, late, paused; overlaps; failures in a row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from workflows.schedules.domain.policy import (
    CatchUp,
    Lateness,
    Overlap,
    Reason,
    Step,
    failures_after,
    judge,
    step_of,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def minutes_late(*minutes: float) -> list[datetime]:
    return [NOW - timedelta(minutes=one) for one in minutes]


def fates(catch_up: CatchUp, dues: list[datetime], **more: object) -> list[tuple[int, str | None]]:
    are_all = bool(more.pop("are_all", True))
    rules = Lateness(catch_up, 3600.0, 30.0, **more)  # type: ignore[arg-type]
    return [(one.count, one.reason) for one in judge(dues, NOW, rules, are_all=are_all)]


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        (CatchUp.NONE, [(4, "late")]),
        (CatchUp.LAST, [(3, "late"), (1, None)]),
        (CatchUp.ALL, [(1, "late"), (1, None), (1, None), (1, None)]),
    ],
)
def test_ten_minutes_without_a_sweep(catch_up: CatchUp, expected: object) -> None:
    assert fates(catch_up, minutes_late(61, 9, 6, 3)) == expected


def test_due_times_that_are_on_time_are_all_started() -> None:
    assert fates(CatchUp.NONE, minutes_late(5, 0.4, 0.2)) == [(1, "late"), (1, None), (1, None)]
    assert fates(CatchUp.LAST, minutes_late(5, 0.2)) == [(1, "late"), (1, None)]


def test_the_last_one_of_a_part_is_not_the_newest() -> None:
    assert fates(CatchUp.LAST, minutes_late(9, 6), are_all=False) == [(2, "late")]


def test_jitter_makes_no_firing_late() -> None:
    assert fates(CatchUp.NONE, minutes_late(5), jitter=timedelta(minutes=5)) == [(1, None)]


def test_due_times_of_a_pause_are_skipped() -> None:
    paused = {"paused_from": NOW - timedelta(minutes=8), "paused_until": NOW - timedelta(minutes=4)}
    assert fates(CatchUp.ALL, minutes_late(9, 8, 5, 4), **paused) == [(1, None), (2, "paused"), (1, None)]


@pytest.mark.parametrize(
    ("overlap", "running", "waiting", "expected"),
    [
        (Overlap.SKIP, 0, 0, Step.START),
        (Overlap.SKIP, 1, 0, Step.SKIP),
        (Overlap.QUEUE_ONE, 1, 0, Step.WAIT),
        (Overlap.QUEUE_ONE, 1, 1, Step.SKIP),
        (Overlap.QUEUE_ONE, 0, 1, Step.SKIP),
        (Overlap.QUEUE_ALL, 1, 2, Step.WAIT),
        (Overlap.QUEUE_ALL, 1, 3, Step.FULL),
        (Overlap.QUEUE_ALL, 0, 1, Step.WAIT),
        (Overlap.CANCEL_PREVIOUS, 1, 1, Step.REPLACE),
        (Overlap.CANCEL_PREVIOUS, 0, 0, Step.START),
        (Overlap.ALLOW, 9, 9, Step.START),
    ],
)
def test_overlaps(overlap: Overlap, running: int, waiting: int, expected: Step) -> None:
    assert step_of(overlap, running=running, waiting=waiting, most_waiting=3) is expected


def test_failures_in_a_row() -> None:
    assert failures_after(2, ["failed"]) == 3
    assert failures_after(2, ["failed", "completed", "failed", "cancelled"]) == 1


def test_reasons_are_short_enough_for_their_column() -> None:
    assert all(len(reason) <= 64 for reason in Reason)
