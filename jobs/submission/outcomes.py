"""What became of a submit, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpus.leasing.values import StartsIn
from jobs.domain.errors import Refused
from jobs.domain.states import JobState, is_final
from jobs.models import Job


class Outcome(StrEnum):
    LEASED = "leased"
    """A slot was free and nobody ahead (a forecast: the lease is the worker's), or it runs already."""
    QUEUED = "queued"
    SCHEDULED = "scheduled"
    """Its time has not come: it is not in the line yet."""
    FINISHED = "finished"
    """Only of a replayed request: the job is over."""


class WaitReason(StrEnum):
    """Why a submitted job does not start at once."""

    BUSY = "busy"
    """Its slots are taken, or others go first."""
    NO_CAPACITY = "no_capacity"
    """No healthy server runs its model, or circuits keep it from all of them."""
    LATER_START = "later_start"


@dataclass(frozen=True, slots=True)
class Submitted:
    """position: estimated place in line, from 1; None if unknown. replayed: an earlier request made it.
    wait_reason: None where it does not wait, or nobody knows why. starts: None where it starts now, or nobody
    can know when."""

    job: Job
    outcome: Outcome
    position: int | None
    replayed: bool
    wait_reason: WaitReason | None = None
    starts: StartsIn | None = None


Item = Submitted | Refused


@dataclass(frozen=True, slots=True)
class SubmittedBatch:
    """One item per request, in order. replayed: the whole batch had been accepted before."""

    items: tuple[Item, ...]
    replayed: bool


def outcome_of(job: Job) -> Outcome:
    """Of a job as it stands."""
    return outcome_in(JobState(job.state))


def outcome_in(state: JobState) -> Outcome:
    """Of a job in this state."""
    if is_final(state):
        return Outcome.FINISHED
    if state is JobState.SCHEDULED:
        return Outcome.SCHEDULED
    return Outcome.LEASED if state is JobState.RUNNING else Outcome.QUEUED
