"""The legal moves of attempts."""

from __future__ import annotations

import pytest

from jobs.domain.states import (
    ATTEMPT_MOVES,
    LIVE_ATTEMPT_STATES,
    AttemptState,
    IllegalMove,
    check_attempt_move,
)

LEGAL = [(source, target) for source, targets in ATTEMPT_MOVES.items() for target in targets]
ILLEGAL = [
    pair for source in AttemptState for target in AttemptState if (pair := (source, target)) not in LEGAL
]


@pytest.mark.parametrize(("source", "target"), sorted(LEGAL))
def test_moves_in_the_table_are_legal(source: AttemptState, target: AttemptState) -> None:
    check_attempt_move(source, target)


@pytest.mark.parametrize(("source", "target"), sorted(ILLEGAL))
def test_moves_outside_the_table_are_refused(source: AttemptState, target: AttemptState) -> None:
    with pytest.raises(IllegalMove, match=f"from {source} to {target}"):
        check_attempt_move(source, target)


def test_only_live_attempts_can_change_state() -> None:
    assert set(ATTEMPT_MOVES) == LIVE_ATTEMPT_STATES
