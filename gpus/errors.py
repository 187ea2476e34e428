"""What can go wrong on the way to a GPU, and what each kind costs.

An error knows its price, so that deciding (``jobs/domain/retry.py``) is a look at its attributes and never a
look at a message. The table is in ``docs/failures.md``.
"""

from __future__ import annotations

from enum import StrEnum

MAX_TRACEBACK = 3000
"""Characters that are kept of a model's traceback."""


class Verdict(StrEnum):
    """What the end of an attempt says of the server and the model that ran it."""

    NOTHING = ""
    """Busy, cancelled, interrupted, never sent."""
    ANSWERED = "answered"
    """Bad input: the server was there and judged it. Enough for one that is tried, no praise of others."""
    WELL = "well"
    SERVER = "server"
    MODEL = "model"
    EITHER = "either"
    """One of the two: the model if it happens on several servers, else the server."""


class GpuError(Exception):
    """The GPU server failed in an unknown way."""

    code = "server_error"
    counts = True
    """Whether the attempt uses up one try of the job's budget."""
    retryable = True
    """Whether another attempt may help at all."""
    elsewhere = False
    """Whether the next attempt should go to another server."""
    suspect = False
    """Whether the GPU may still be busy with the attempt: its slot is quarantined until proven free."""
    blames = Verdict.NOTHING
    """Whose failure this is, for the circuit breakers."""
    unfinished = False
    """Whether the run had begun and no result of it counts, by no word of the model's own: it was cut off, or
    its answer refused. A job that may run only once can't run again."""
    process_died = False
    """Whether the process that ran it is gone by its doing: counts towards poison."""
    repeats = False
    """Whether the same failure several times in a row says that no further attempt helps."""

    def __init__(
        self, message: str = "", *, retry_after_seconds: float | None = None, detail: str = ""
    ) -> None:
        """detail: for whoever looks at the attempt, a traceback; no part of what failures are grouped by."""
        super().__init__(message or (type(self).__doc__ or "").strip())
        self.retry_after_seconds = retry_after_seconds
        self.detail = detail

    @property
    def message(self) -> str:
        return str(self.args[0])


class GpuBusy(GpuError):
    """The GPU server is busy."""

    code = "busy"
    counts = False


class Interrupted(GpuError):
    """The worker had to let go of a healthy run (deploy, operator OFF, Redis or network gone)."""

    code = "interrupted"
    counts = False
    suspect = True


class ConnectFailed(GpuError):
    """The GPU server could not be reached; nothing was sent."""

    code = "connect"
    counts = False
    elsewhere = True
    blames = Verdict.SERVER


class ConnectRefused(ConnectFailed):
    """Nothing listens at the GPU server's address."""


class ConnectTimedOut(ConnectFailed):
    """The GPU server did not take the connection in time."""


class CredentialsRefused(GpuError):
    """The GPU server does not accept the headers that it is registered with; nothing ran."""

    code = "credentials_refused"
    counts = False
    elsewhere = True
    blames = Verdict.SERVER


class AccessForbidden(GpuError):
    """The GPU server, or a proxy before it, forbids the request; nothing ran."""

    code = CredentialsRefused.code  # what to do is the same; but a filter may forbid one payload alone
    elsewhere = True
    blames = Verdict.EITHER


class ServerLost(GpuError):
    """The GPU server was lost while it had the job."""

    code = "server_lost"
    blames = Verdict.EITHER
    elsewhere = True
    suspect = True


class ProcessDied(ServerLost):
    """The process that held the model died while it had the job; a new one takes its place."""

    suspect = False
    process_died = True


class OutOfMemory(GpuError):
    """The model ran out of memory."""

    code = "out_of_memory"
    elsewhere = True


class DoesNotFit(GpuError):
    """The model needs more memory than this GPU has: no fault of the job, which waits for a larger one."""

    code = "does_not_fit"
    counts = False
    elsewhere = True


class ModelMissing(GpuError):
    """The server does not have the model."""

    code = "model_missing"
    elsewhere = True
    blames = Verdict.EITHER


class GpuFault(GpuError):
    """The GPU itself is faulty (sticky CUDA error, Xid, out of memory)."""

    code = "gpu_fault"
    blames = Verdict.EITHER
    counts = False
    elsewhere = True
    suspect = True


class ServerFailed(GpuError):
    """The GPU server answered with an error of its own."""

    code = "server_error"
    blames = Verdict.EITHER
    repeats = True


class RunFailed(GpuError):
    """The model reported that the run failed."""

    code = "run_failed"
    blames = Verdict.MODEL
    repeats = True


class BadInput(GpuError):
    """The GPU server rejected the input."""

    code = "bad_input"
    retryable = False
    blames = Verdict.ANSWERED


class RunTimedOut(GpuError):
    """The run took longer than its model allows."""

    code = "timeout"
    blames = Verdict.EITHER
    suspect = True
    repeats = True


class RunCancelled(GpuError):
    """The run was cancelled."""

    code = "cancelled"
    counts = False
    retryable = False


class LeaseLost(GpuError):
    """The lease went to somebody else; whatever this run ends in does not count."""

    code = "lease_lost"
    counts = False
    suspect = True


class StaleFence(LeaseLost):
    """The server refused: it knows a later lease of this slot. Nothing of this attempt runs there."""

    suspect = False


ERRORS_BY_CODE: dict[str, type[GpuError]] = {
    error.code: error
    for error in (
        GpuBusy,
        Interrupted,
        ConnectFailed,
        CredentialsRefused,
        ServerLost,
        OutOfMemory,
        DoesNotFit,
        ModelMissing,
        GpuFault,
        ServerFailed,
        RunFailed,
        BadInput,
        RunTimedOut,
        RunCancelled,
        LeaseLost,
    )
}


class LeasingUnavailable(Exception):
    """Redis does not answer, or its index is being rebuilt; nothing is leased meanwhile."""


class LeasingFull(LeasingUnavailable):
    """Redis is at its maxmemory: it takes no more tickets; what it has is worked off."""


class LayoutNotInUse(LeasingUnavailable):
    """The fleet's index is used by processes of another key layout, or is being handed to them."""
