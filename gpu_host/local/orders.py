"""Runs of a GPU on this machine: their orders, how they end, and the errors for that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from gpu_host.handlers.errors import Failure
from gpu_host.handlers.files import CACHE_BYTES
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
    """A run to carry out. limit_seconds: of the run itself, once its model is loaded. on_output: receives its
    progress and output as (kind, value)."""

    attempt: str
    job: str
    model: str
    payload: Any
    limit_seconds: float
    max_result_bytes: int = 16 * 1024 * 1024
    input_cache_bytes: int = CACHE_BYTES
    on_output: Callable[[str, Any], None] = field(default=lambda kind, value: None, compare=False)

    def frame(self, output_root: Path) -> Frame:
        """Return the frame that starts the run in the process."""
        return {
            "do": "run",
            "attempt": self.attempt,
            "job": self.job,
            "model": self.model,
            "payload": self.payload,
            "output_dir": str(output_root / self.attempt),
            "max_result_bytes": self.max_result_bytes,
            "input_cache_bytes": self.input_cache_bytes,
        }


class Stopped(StrEnum):
    """The outcome of a request to stop a run."""

    NOT_RUNNING = "not_running"
    OBEYED = "obeyed"
    KILLED = "killed"
    NOT_GONE = "not_gone"
    """Its process was killed and has not exited: it may still use the GPU."""


@dataclass(eq=False, slots=True)
class Run:
    """A run in a process. send: to that process. error, result: set once `over`. last_sign: time of its last
    frame. cancel_sent: it was asked to stop."""

    order: Order
    send: Callable[[Frame], None]
    began: float
    last_sign: float = 0.0
    cancel_sent: bool = False
    over: bool = False
    result: Any = None
    error: GpuError | None = None
    limiter: OutputLimiter = field(default_factory=OutputLimiter)
    """The process has a limiter too, but model code can write to the pipe without it."""

    def end(self, *, result: Any = None, error: GpuError | None = None) -> None:
        """End the run; only the first call counts."""
        if not self.over:
            self.over, self.result, self.error = True, result, error


@dataclass(slots=True)
class EndErrors:
    """The errors of the runs of a process that is being ended. by_attempt: of these runs; others: of all
    others."""

    by_attempt: dict[str, GpuError] = field(default_factory=dict)
    others: GpuError | None = None

    def joined(self, later: EndErrors) -> EndErrors:
        """Return both; for a run in both, the first error counts."""
        return EndErrors({**later.by_attempt, **self.by_attempt}, self.others or later.others)


_ERRORS: dict[str, type[GpuError]] = {
    "bad_input": BadInput,
    "gpu_fault": GpuFault,
    "out_of_memory": OutOfMemory,
}
_UPSTREAM_ERRORS: dict[str, type[GpuError]] = {
    kind.code: kind for kind in (ConnectFailed, ServerLost, ServerFailed, ModelMissing, RunTimedOut)
}


def error_of(said: Failure, *, cancelled: bool = False) -> GpuError:
    """Return the error for a handler's failure.

    cancelled: the run was asked to stop. Without that, a handler that reports a cancel would be retried for
    ever at no cost."""
    if said.code == "cancelled":
        if cancelled:
            stopped = interrupted("It stopped after its cancel.")
            stopped.unfinished = True
            return stopped
        said = Failure("run_failed", "The model's code raised Cancelled without a cancel.")
    kind = _ERRORS.get(said.code) or _UPSTREAM_ERRORS.get(said.code, RunFailed)
    error = kind(said.text, detail=said.trace)
    error.suspect = False  # the run has ended: its process is ours
    error.unfinished = said.unfinished
    if said.code in _UPSTREAM_ERRORS:
        error.elsewhere = True  # that server runs on this machine
    return error


def interrupted(why: str) -> Interrupted:
    """Return the error of a run that was stopped through no fault of its own and has ended."""
    error = Interrupted(why)
    error.suspect = False
    return error


def timeout_errors(order: Order) -> tuple[RunTimedOut, RunTimedOut]:
    """Return the errors of a run past its limit: if it obeys its cancel, and if it must be killed."""
    late = RunTimedOut(f"The run took longer than {order.limit_seconds:.0f} s.")
    late.suspect, late.unfinished = False, True
    killed = RunTimedOut(f"{late.message} It did not stop after its cancel and was killed.")
    killed.suspect, killed.process_died = False, True
    return late, killed
