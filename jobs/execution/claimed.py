"""A claimed attempt, on its way from the lease to the GPU."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from gpus.leasing.contract import Leases
from gpus.protocol import Endpoint, Lease, ModelSpec
from jobs.execution.attempt_run import AttemptRun
from jobs.execution.time_slice import TimeSlice
from jobs.transitions import StartOutcome


class RunHook(Protocol):
    """What the slot's thread does during a run (`jobs.execution.prefetch.Prefetch`)."""

    time_slice: TimeSlice | None

    def finish_deferred(self) -> None: ...

    def defer_end(self, ended: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Ready:
    """A prefetched run: made completely, and not sent yet."""

    run: AttemptRun
    prefetch: RunHook

    def begin(self, time_slice: TimeSlice) -> None:
        """Start the run's clock."""
        self.prefetch.time_slice = time_slice
        self.run.begin()


@dataclass(frozen=True, slots=True)
class Claimed:
    """A lease with all that its run needs. started: the start's commit; None for an adopted attempt.

    job: the row's `OF_JOB`, and its payload (None when adopted).
    ran_seconds: for how long an adopted attempt ran before.
    must_wait: nothing is sent before the start is durable.
    ready: the run of a prefetched attempt, made while the slot's current run goes on.
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
