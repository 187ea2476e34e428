"""The states of a job and of an attempt, who may move where, and why. docs/reference/lifecycle.md is made
from this."""

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


FINAL_JOB_STATES = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})
LIVE_ATTEMPT_STATES = frozenset({AttemptState.SENT, AttemptState.WAITING})


@dataclass(frozen=True, slots=True)
class Move:
    """One arrow of the state diagram. event: the type written to the job's event log with it."""

    source: JobState
    target: JobState
    event: str
    why: str


JOB_MOVES: tuple[Move, ...] = (
    Move(JobState.SCHEDULED, JobState.QUEUED, "queued", "the time it was submitted for has come"),
    Move(JobState.SCHEDULED, JobState.CANCELLED, "cancelled", "the client cancelled before its time"),
    Move(JobState.SCHEDULED, JobState.FAILED, "failed", "its deadline passed before it stood in line"),
    Move(JobState.QUEUED, JobState.RUNNING, "started", "a worker claimed a slot and this ticket"),
    Move(JobState.QUEUED, JobState.CANCELLED, "cancelled", "the client cancelled before it ran"),
    Move(JobState.QUEUED, JobState.FAILED, "failed", "its deadline passed while it waited"),
    Move(JobState.RUNNING, JobState.COMPLETED, "completed", "the attempt brought a result"),
    Move(
        JobState.RUNNING, JobState.FAILED, "failed", "no further attempt may help, or the budget is used up"
    ),
    Move(
        JobState.RUNNING,
        JobState.RETRYING,
        "retrying",
        "the attempt failed; another one follows after a pause",
    ),
    Move(
        JobState.RUNNING,
        JobState.QUEUED,
        "requeued",
        "the attempt was refused or interrupted; it cost nothing",
    ),
    Move(
        JobState.RUNNING, JobState.CANCELLED, "cancelled", "cancel was asked for and the GPU is proven free"
    ),
    Move(
        JobState.RUNNING,
        JobState.CANCELLING,
        "cancelling",
        "cancel was asked for; the attempt ended, and nothing proves the GPU free of it yet",
    ),
    Move(JobState.CANCELLING, JobState.CANCELLED, "cancelled", "the slot is proven free"),
    Move(JobState.RETRYING, JobState.QUEUED, "queued", "the pause is over"),
    Move(JobState.RETRYING, JobState.CANCELLED, "cancelled", "the client cancelled between attempts"),
    Move(JobState.RETRYING, JobState.FAILED, "failed", "its deadline passed between attempts"),
    Move(JobState.FAILED, JobState.QUEUED, "retried", "an operator retried the dead letter: a new round"),
)

_BY_ARROW: dict[tuple[str, str], Move] = {(move.source, move.target): move for move in JOB_MOVES}


def move_between(source: str, target: JobState) -> Move:
    """The arrow, or KeyError: the table is the law. source: as the job's row has it."""
    return _BY_ARROW[source, target]


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


class IllegalMove(ValueError):
    """`ATTEMPT_MOVES` does not have this move of an attempt."""


def check_attempt_move(source: str, target: AttemptState) -> None:
    """source: as the attempt's row has it. Raises IllegalMove."""
    if target not in ATTEMPT_MOVES.get(source, ()):
        raise IllegalMove(f"an attempt does not move from {source} to {target}")
