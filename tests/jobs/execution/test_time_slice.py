"""A task keeps its thread for short jobs, unless other wakes may wait for it; a long job is a task of its
own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs.execution.slot_loop import SHORT_SLICES, TimeSlice, random_short_slices
from tests.jobs.execution.by_hand import Hands, by_hand

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize(
    ("worked", "ran", "is_wanted", "is_over"),
    [
        (0.9, 0.9, True, False),
        (1.0, 0.5, True, True),
        (1.0, 0.5, False, False),
        (1.0, 1.0, False, True),
        (30.0, 30.0, False, True),
        (SHORT_SLICES - 0.1, 0.5, False, False),
        (SHORT_SLICES, 0.5, False, True),
    ],
)
def test_the_end_of_a_time_slice(worked: float, ran: float, is_wanted: bool, is_over: bool) -> None:
    turn = TimeSlice(1.0, 100.0, lambda: is_wanted)
    assert turn.is_over(100.0 + worked, ran) is is_over


def test_threads_that_began_together_do_not_hand_back_together() -> None:
    turns = {random_short_slices() for _ in range(8)}
    assert len(turns) == 8
    assert all(SHORT_SLICES * 0.75 <= one <= SHORT_SLICES * 1.25 for one in turns)


@pytest.fixture
def hands(harness, settings, monkeypatch) -> Hands:
    settings.DISPATCHER = replace(settings.DISPATCHER, hand_back_seconds=1.0, worker_threads=2)
    monkeypatch.setattr("jobs.execution.gpu_worker.random_short_slices", lambda: SHORT_SLICES)
    hands = by_hand(harness)
    hands.gpu.seconds = 0.5
    for _ in range(60):
        hands.submit()
    return hands


def test_short_jobs_share_a_task_while_there_are_threads(hands: Hands) -> None:
    assert len(hands.worker.work("m")) == 2 * SHORT_SLICES


def test_with_all_threads_busy_a_task_hands_back_after_a_second(hands: Hands) -> None:
    hands.worker.threads = 1
    assert len(hands.worker.work("m")) == 2
    hands.worker.threads = 2
    assert len(hands.worker.work("m")) == 2 * SHORT_SLICES, "a task that ended counts no more"


def test_a_long_job_is_a_task_of_its_own(hands: Hands) -> None:
    hands.gpu.seconds = 1.0
    assert len(hands.worker.work("m")) == 1


def test_only_an_end_whose_slot_has_a_next_job_waits_to_be_written_with_others(harness) -> None:
    """With the next job's start; only the client waits for an idle slot's end."""
    hands = by_hand(harness)
    hands.gpu.seconds = 0.1
    first, second = hands.submit(), hands.submit()
    hands.worker.work("m")
    assert hands.gpu.sent == [first.id, second.id]
    a_start, an_end, the_next_start, the_last_end = True, True, True, False
    assert hands.writer.gathered == [a_start, an_end, the_next_start, the_last_end]
