"""A claimed attempt, on its way from the lease to the GPU."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from gpus.leasing.contract import Leases
from gpus.protocol import Endpoint, Lease, ModelSpec
from jobs.execution.attempt_run import AttemptRun
from jobs.execution.time_slice import Turn
from jobs.transitions import StartOutcome


class Beside(Protocol):
    """What the thread does while the run goes on (`jobs.execution.prefetch.Meanwhile`)."""

    turn: Turn | None

    def make_up(self) -> None: ...

    def tell_of(self, past: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Ready:
    """A run that has only to be sent."""

    run: AttemptRun
    meanwhile: Beside

    def begin(self, turn: Turn) -> None:
        """Its time counts from now on."""
        self.meanwhile.turn = turn
        self.run.begin()


@dataclass(frozen=True, slots=True)
class Claimed:
    """A lease with all that its run needs. started: the start's commit; None for an adopted attempt.

    job: the row's `OF_JOB`, and its payload (None when adopted).
    ran_seconds: for how long an adopted attempt ran before.
    must_wait: nothing is sent before the start is durable.
    ready: of a follower: its run, made while the one before it went on.
    """

    fleet: str
    leases: Leases
    lease: Lease
    job: Mapping[str, Any]
    spec: ModelSpec
    endpoint: Endpoint
    started: Future[StartOutcome] | None
    remote_id: str | None = None
    ran_seconds: float = 0.0
    must_wait: bool = False
    ready: Ready | None = None

    @property
    def refused(self) -> StartOutcome | None:
        """Why the database did not accept the start, as far as it has answered yet."""
        if self.started is None or not self.started.done():
            return None
        outcome = StartOutcome.JOB_MOVED if self.started.exception() else self.started.result()
        return None if outcome is StartOutcome.STARTED else outcome
