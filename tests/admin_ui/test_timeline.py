"""A job's timeline: lanes from its events and its attempts' rows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from admin_ui.pages.job_timeline import MAX_WAITING, Timeline, timeline
from jobs.models import Attempt, Event
from tests.admin_ui.rows import NOW


def at(seconds: float) -> Any:
    return NOW + timedelta(seconds=seconds)


def attempt(number: int, start: float, end: float | None, state: str = "failed", **values: Any) -> Attempt:
    return Attempt(
        id=f"a{number}",
        job_id="j",
        number=number,
        state=state,
        server="gpu-1",
        slot=0,
        started_at=at(start),
        finished_at=None if end is None else at(end),
        **values,
    )


def events(*rows: tuple[str, float, int | None]) -> list[Event]:
    return [
        Event(job_id="j", seq=seq, type=kind, at=at(when), data={} if number is None else {"attempt": number})
        for seq, (kind, when, number) in enumerate(rows, start=1)
    ]


def drawn(line: Timeline) -> list[list[tuple[str, float]]]:
    return [[(bar.kind, bar.seconds) for bar in lane.bars] for lane in line.lanes]


def test_a_polled_attempt_has_bars_for_queued_sent_and_polling() -> None:
    line = timeline(
        [attempt(1, 2, 12, "completed")],
        events(("queued", 0, None), ("started", 2, 1), ("accepted", 3, 1), ("completed", 12, 1)),
        now=at(99),
    )
    assert drawn(line) == [[("queued", 2), ("sent", 1), ("polling", 9)]]
    assert [(bar.left, bar.width) for bar in line.lanes[0].bars] == [(0, 16.667), (16.667, 8.333), (25, 75)]
    assert (line.begin, line.end, line.is_squeezed) == (at(0), at(12), False)


def test_each_attempt_has_a_lane_that_begins_with_its_wait() -> None:
    line = timeline(
        [attempt(1, 1, 4), attempt(2, 9, 12, "refused"), attempt(3, 13, None, "sent")],
        events(
            ("queued", 0, None),
            ("started", 1, 1),
            ("retrying", 4, 1),
            ("queued", 8, None),
            ("started", 9, 2),
            ("requeued", 12, 2),
            ("started", 13, 3),
        ),
        now=at(15),
    )
    assert drawn(line) == [
        [("queued", 1), ("sent", 3)],
        [("pause", 4), ("queued", 1), ("sent", 3)],
        [("queued", 1), ("sent", 2)],
    ]
    assert [lane.is_live for lane in line.lanes] == [False, False, True]


def test_a_wait_without_an_attempt_has_its_own_lane_and_ends_with_the_job() -> None:
    waiting = timeline([], events(("queued", 0, None)), now=at(7))
    assert drawn(waiting) == [[("queued", 7)]]
    assert waiting.lanes[0].is_live
    over = timeline([], events(("queued", 0, None), ("failed", 5, None)), now=at(7))
    assert drawn(over) == [[("queued", 5)]]
    assert not over.lanes[0].is_live


def test_adoptions_and_cancel_requests_are_marked_at_their_times() -> None:
    line = timeline(
        [attempt(1, 0, 10, "cancelled")],
        [
            *events(("queued", 0, None), ("started", 0, 1), ("accepted", 1, 1)),
            Event(job_id="j", seq=4, type="adopted", at=at(5), data={"attempt": 1, "epoch": 2}),
            Event(job_id="j", seq=5, type="cancel_requested", at=at(8), data={}),
            *events(("cancelled", 10, 1)),
        ],
        now=at(10),
    )
    assert [(mark.kind, mark.text, mark.left) for mark in line.lanes[0].marks] == [
        ("adopted", "adopted epoch 2", 50),
        ("cancel_requested", "cancel requested", 80),
    ]


def test_marks_of_attempts_without_a_lane_are_left_out() -> None:
    rows = events(("adopted", 1, 1), ("retrying", 2, 1), ("queued", 3, None), ("started", 4, 2))
    line = timeline([attempt(2, 4, None, "sent")], rows, now=at(6))
    assert [lane.marks for lane in line.lanes] == [[]]
    assert drawn(line) == [[("pause", 1), ("queued", 1), ("sent", 2)]]


def test_a_long_wait_leaves_room_for_a_short_run() -> None:
    line = timeline(
        [attempt(1, 7200, 7205, "completed")],
        events(("queued", 0, None), ("started", 7200, 1), ("completed", 7205, 1)),
        now=at(9999),
    )
    wait, run = line.lanes[0].bars
    assert line.is_squeezed
    assert wait.width == pytest.approx(100 * MAX_WAITING)
    assert run.width == pytest.approx(100 * (1 - MAX_WAITING))
    assert (wait.seconds, run.seconds) == (7200, 5)


def test_attempts_without_events_and_an_empty_timeline_work() -> None:
    assert drawn(timeline([attempt(1, 0, 3, "lost")], [], now=at(9))) == [[("sent", 3)]]
    assert timeline([], [], now=at(0)).lanes == []


def test_bars_stay_on_the_track_when_clocks_disagree() -> None:
    line = timeline(
        [attempt(1, 5, 4, "completed")],
        events(("queued", 6, None), ("started", 5, 1), ("accepted", 9, 1), ("completed", 4, 1)),
        now=at(3),
    )
    for lane in line.lanes:
        for bar in lane.bars:
            assert 0 <= bar.left <= 100
            assert bar.seconds >= 0
