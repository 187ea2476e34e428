"""Runs of a GPU on this machine: their orders, their ends, and the errors that these mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from gpu_host.handlers.errors import Failure
from gpu_host.local.frames import Frame
from gpu_host.local.output_limiter import OutputLimiter
from gpus.errors import (
    BadInput,
    ConnectFailed,
    GpuError,
    GpuFault,
    Interrupted,
    ModelMissing,
    OutOfMemory,
    RunFailed,
    RunTimedOut,
    ServerFailed,
    ServerLost,
)


@dataclass(frozen=True, slots=True)
class Order:
    """limit_seconds: of the run itself, once its model is loaded. tell: receives its progress and output."""

    attempt: str
    job: str
    model: str
    payload: Any
    limit_seconds: float
    max_result_bytes: int = 16 * 1024 * 1024
    tell: Callable[[str, Any], None] = field(default=lambda kind, value: None, compare=False)

    def frame(self, output_root: Path) -> Frame:
        """As the process is told to run it."""
        return {
            "do": "run",
            "attempt": self.attempt,
            "job": self.job,
            "model": self.model,
            "payload": self.payload,
            "output_dir": str(output_root / self.attempt),
            "max_result_bytes": self.max_result_bytes,
        }


class Stopped(StrEnum):
    """How a run that was asked to stop came to its end."""

    NOT_RUNNING = "not_running"
    OBEYED = "obeyed"
    KILLED = "killed"
    NOT_GONE = "not_gone"
    """Its process was killed and is still there: it may hold the GPU."""


@dataclass(eq=False, slots=True)
class Run:
    """A run in a process. send: to that very process. error, result: its end, once `over`. last_sign: when it
    was last heard. cancel_sent: it was asked to stop."""

    order: Order
    send: Callable[[Frame], None]
    began: float
    last_sign: float = 0.0
    progress: float | None = None
    cancel_sent: bool = False
    over: bool = False
    result: Any = None
    error: GpuError | None = None
    limiter: OutputLimiter = field(default_factory=OutputLimiter)
    """The process has one, too; its code need not go through it."""

    def end(self, *, result: Any = None, error: GpuError | None = None) -> None:
        """End the run; only the first call counts."""
        if not self.over:
            self.over, self.result, self.error = True, result, error


@dataclass(slots=True)
class Verdicts:
    """Why a process is being ended by us: what that means for its runs. others: for those not named."""

    named: dict[str, GpuError] = field(default_factory=dict)
    others: GpuError | None = None

    def joined(self, later: Verdicts) -> Verdicts:
        """What was said first of a run holds."""
        return Verdicts({**later.named, **self.named}, self.others or later.others)


_KINDS: dict[str, type[GpuError]] = {
    "bad_input": BadInput,
    "gpu_fault": GpuFault,
    "out_of_memory": OutOfMemory,
}
_LET_DOWN: dict[str, type[GpuError]] = {
    kind.code: kind for kind in (ConnectFailed, ServerLost, ServerFailed, ModelMissing, RunTimedOut)
}


def error_of(said: Failure, *, cancelled: bool = False) -> GpuError:
    """A handler's failure at its price. cancelled: it was asked to stop; one that says so without having
    been asked would come back for ever if it cost nothing."""
    if said.code == "cancelled":
        if cancelled:
            heeded = interrupted("It heeded its cancel.")
            heeded.unfinished = True
            return heeded
        said = Failure("run_failed", "The model's code raised Cancelled, and nobody had cancelled it.")
    kind = _KINDS.get(said.code) or _LET_DOWN.get(said.code, RunFailed)
    error = kind(said.text, detail=said.trace)
    error.suspect = False  # it ended, in a process that we hold
    error.unfinished = said.unfinished
    if said.code in _LET_DOWN:
        error.elsewhere = True  # that server is of this machine
    return error


def interrupted(why: str) -> Interrupted:
    """Return the error of a run that was stopped by no fault of its own, and does not run any more."""
    error = Interrupted(why)
    error.suspect = False
    return error


def timeout_errors(order: Order) -> tuple[RunTimedOut, RunTimedOut]:
    """Return the errors of a run past its limit: if it obeys its cancel, and if it must be killed."""
    late = RunTimedOut(f"The run took longer than {order.limit_seconds:.0f} s.")
    late.suspect, late.unfinished = False, True
    killed = RunTimedOut(f"{late.message} It did not heed its cancel and was killed.")
    killed.suspect, killed.process_died = False, True
    return late, killed
