"""Equal attempts in a row, and their events, are folded into one row each."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from admin_ui.pages.job_folds import fold_events, fold_lanes
from admin_ui.pages.job_timeline import Lane, timeline
from jobs.models import Attempt, Event
from tests.admin_ui.rows import NOW


def attempt(number: int, error: str = "boom", *, code: str = "run_failed", **values: Any) -> Attempt:
    begin = NOW + timedelta(seconds=10 * number)
    given = {"state": "failed", "finished_at": begin + timedelta(seconds=number)} | values
    where = {"server": "gpu-1", "slot": number % 2}
    return Attempt(number=number, error_code=code, error_message=error, started_at=begin, **where, **given)


def lanes(*attempts: Attempt) -> list[Lane]:
    return timeline(attempts, [], now=NOW + timedelta(hours=1)).lanes


def shown(*attempts: Attempt) -> list[str]:
    return [row.numbers for row in fold_lanes(lanes(*attempts))]


def test_equal_attempts_after_the_first_are_one_row() -> None:
    first, rest = fold_lanes(lanes(*[attempt(number) for number in range(1, 23)]))
    assert (first.numbers, first.is_folded) == ("1", False)
    assert (rest.numbers, rest.is_folded) == ("2–22", True)
    assert (rest.same, rest.slots, rest.longest_run_seconds) == ("the same error, 21 times", "2 slots", 22)


def test_attempts_that_differ_are_rows_of_their_own() -> None:
    assert shown(attempt(1), attempt(2)) == ["1", "2"], "two are too few"
    assert shown(attempt(1), attempt(2, "bang"), attempt(3)) == ["1", "2", "3"]
    assert shown(attempt(1), attempt(2, code="timeout"), attempt(3)) == ["1", "2", "3"]
    running = attempt(4, "", code="", state="sent", finished_at=None)
    assert shown(attempt(1), attempt(2), attempt(3), running) == ["1", "2–3", "4"]


def test_tracebacks_do_not_separate_attempts() -> None:
    assert shown(*[attempt(number, f"boom\n\nTraceback {number}") for number in (1, 2, 3)]) == ["1", "2–3"]


def test_events_of_folded_attempts_are_one_row() -> None:
    attempts = [attempt(number) for number in range(1, 6)]
    kinds = [("queued", None)]
    for number in range(1, 6):
        kinds += [("started", number), ("retrying", number), ("queued", None)]
    events = [
        Event(seq=seq, type=kind, at=NOW + timedelta(seconds=seq), data={"attempt": number} if number else {})
        for seq, (kind, number) in enumerate(kinds)
    ]
    rows = fold_events(events, lanes(*attempts))
    assert [row.is_folded for row in rows] == [False] * 4 + [True] + [False] * 3
    assert rows[4].label == "started ×3, retrying ×3, queued ×3"
    assert [len(row.events) for row in rows] == [1, 1, 1, 1, 9, 1, 1, 1]
    assert [row.since for row in rows] == [None, 1, 1, 1, 1, 1, 1, 1]
