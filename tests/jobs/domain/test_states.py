"""The legal moves of jobs and attempts."""

from __future__ import annotations

import pytest

from jobs.domain.states import (
    ATTEMPT_MOVES,
    JOB_MOVES,
    LIVE_ATTEMPT_STATES,
    AttemptState,
    IllegalMove,
    JobState,
    check_attempt_move,
    move_between,
)

LEGAL_OF_JOBS = {(move.source, move.target): move for move in JOB_MOVES}
ILLEGAL_OF_JOBS = [
    pair for source in JobState for target in JobState if (pair := (source, target)) not in LEGAL_OF_JOBS
]

LEGAL = [(source, target) for source, targets in ATTEMPT_MOVES.items() for target in targets]
ILLEGAL = [
    pair for source in AttemptState for target in AttemptState if (pair := (source, target)) not in LEGAL
]


def test_a_jobs_moves_in_the_table_are_legal() -> None:
    assert {
        (source, target): move_between(source, target) for source, target in LEGAL_OF_JOBS
    } == LEGAL_OF_JOBS


@pytest.mark.parametrize(("source", "target"), sorted(ILLEGAL_OF_JOBS))
def test_a_jobs_moves_outside_the_table_are_refused(source: JobState, target: JobState) -> None:
    with pytest.raises(IllegalMove, match=f"a job can't move from {source} to {target}"):
        move_between(source, target)


@pytest.mark.parametrize(("source", "target"), sorted(LEGAL))
def test_moves_in_the_table_are_legal(source: AttemptState, target: AttemptState) -> None:
    check_attempt_move(source, target)


@pytest.mark.parametrize(("source", "target"), sorted(ILLEGAL))
def test_moves_outside_the_table_are_refused(source: AttemptState, target: AttemptState) -> None:
    with pytest.raises(IllegalMove, match=f"from {source} to {target}"):
        check_attempt_move(source, target)


def test_only_live_attempts_can_change_state() -> None:
    assert set(ATTEMPT_MOVES) == LIVE_ATTEMPT_STATES
