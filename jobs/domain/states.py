"""The states of jobs and attempts and the legal moves between them; docs/reference/lifecycle.md is generated
from them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class JobState(StrEnum):
    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    RETRYING = "retrying"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class AttemptState(StrEnum):
    SENT = "sent"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    REFUSED = "refused"
    LOST = "lost"
    CANCELLED = "cancelled"


class IllegalMove(ValueError):
    """The move is neither in `JOB_MOVES` nor in `ATTEMPT_MOVES`."""


FINAL_JOB_STATES = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})
LIVE_ATTEMPT_STATES = frozenset({AttemptState.SENT, AttemptState.WAITING})


@dataclass(frozen=True, slots=True)
class Move:
    """A legal move of a job. event: type of the event that is written with it. why: for
    docs/reference/lifecycle.md."""

    source: JobState
    target: JobState
    event: str
    why: str


JOB_MOVES: tuple[Move, ...] = (
    Move(JobState.SCHEDULED, JobState.QUEUED, "queued", "its start time (`run_at`) has come"),
    Move(
        JobState.SCHEDULED, JobState.CANCELLED, "cancelled", "the client cancelled it before its start time"
    ),
    Move(JobState.SCHEDULED, JobState.FAILED, "failed", "its deadline passed before it was queued"),
    Move(JobState.QUEUED, JobState.RUNNING, "started", "a worker claimed a slot and the job's ticket"),
    Move(JobState.QUEUED, JobState.CANCELLED, "cancelled", "the client cancelled it before it ran"),
    Move(JobState.QUEUED, JobState.FAILED, "failed", "its deadline passed while it waited"),
    Move(JobState.RUNNING, JobState.COMPLETED, "completed", "the attempt returned a result"),
    Move(
        JobState.RUNNING,
        JobState.FAILED,
        "failed",
        "the error is not retryable, or the retry budget is used up",
    ),
    Move(
        JobState.RUNNING,
        JobState.RETRYING,
        "retrying",
        "the attempt failed; another one follows after the backoff",
    ),
    Move(
        JobState.RUNNING,
        JobState.QUEUED,
        "requeued",
        "the attempt was refused or interrupted; it is not charged",
    ),
    Move(
        JobState.RUNNING, JobState.CANCELLED, "cancelled", "a cancel was requested and the GPU is proven free"
    ),
    Move(
        JobState.RUNNING,
        JobState.CANCELLING,
        "cancelling",
        "a cancel was requested; the attempt ended, but its GPU is not proven free yet",
    ),
    Move(JobState.CANCELLING, JobState.CANCELLED, "cancelled", "the slot is proven free"),
    Move(JobState.RETRYING, JobState.QUEUED, "queued", "the backoff is over"),
    Move(JobState.RETRYING, JobState.CANCELLED, "cancelled", "the client cancelled it between attempts"),
    Move(JobState.RETRYING, JobState.FAILED, "failed", "its deadline passed between attempts"),
    Move(JobState.FAILED, JobState.QUEUED, "retried", "an operator retried the dead letter: a new round"),
)

_BY_ARROW: dict[tuple[str, str], Move] = {(move.source, move.target): move for move in JOB_MOVES}


def move_between(source: str, target: JobState) -> Move:
    """Return the move of a job from `source`, the state in its row. Raises IllegalMove."""
    move = _BY_ARROW.get((source, target))
    if move is None:
        raise IllegalMove(f"a job can't move from {source} to {target}")
    return move


def is_final(state: str) -> bool:
    return state in FINAL_JOB_STATES


ATTEMPT_MOVES: dict[str, frozenset[AttemptState]] = {
    AttemptState.SENT: frozenset(
        {
            AttemptState.WAITING,
            AttemptState.COMPLETED,
            AttemptState.FAILED,
            AttemptState.REFUSED,
            AttemptState.LOST,
            AttemptState.CANCELLED,
        }
    ),
    AttemptState.WAITING: frozenset(
        {
            AttemptState.COMPLETED,
            AttemptState.FAILED,
            AttemptState.REFUSED,
            AttemptState.LOST,
            AttemptState.CANCELLED,
        }
    ),
}


def check_attempt_move(source: str, target: AttemptState) -> None:
    """Check a move of an attempt. source: state in the attempt's row. Raises IllegalMove."""
    if target not in ATTEMPT_MOVES.get(source, ()):
        raise IllegalMove(f"an attempt can't move from {source} to {target}")
