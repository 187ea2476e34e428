"""What can go wrong on the way to a GPU, and what each kind costs; which exceptions and texts are a GPU's own
failure.

An error knows its price, so that deciding (``jobs/domain/retry.py``) is a look at its attributes and never a
look at a message. The table is in ``docs/reference/failures.md``. A text counts only where the GPU's
libraries put it: at its beginning, behind at most the names of exceptions that they raise. A text that
quotes such words (a prompt, a log line) says nothing of the GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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


REDIS_AWAY = "Redis does not answer"
"""As answers, pages and explanations say it."""


class LeasingUnavailable(Exception):
    """Redis does not answer, or its index is being rebuilt; nothing is leased meanwhile."""


class LeasingFull(LeasingUnavailable):
    """Redis is at its maxmemory: it takes no more tickets; what it has is worked off."""


class LayoutNotInUse(LeasingUnavailable):
    """The fleet's index is used by processes of another key layout, or is being handed to them."""


GPU_ERRORS = frozenset({"AcceleratorError", "CUDARuntimeError", "CUDADriverError", "CudaAPIError"})
"""Exceptions that are raised for nothing else: torch's, CuPy's, Numba's."""
_LIBRARIES = frozenset(
    {
        "torch",
        "cupy",
        "cupy_backends",
        "pycuda",
        "numba",
        "jax",
        "jaxlib",
        "onnxruntime",
        "tensorflow",
        "cuda",
    }
)
_RAISED = "|".join(
    ("RuntimeError", "InternalError", "XlaRuntimeError", "OutOfMemoryError", *sorted(GPU_ERRORS))
)
_BEFORE = rf"\s*(?:(?:(?:\w+\.)*(?:{_RAISED})|INTERNAL|UNKNOWN|RESOURCE_EXHAUSTED): )*"
_STICKY = re.compile(
    rf"{_BEFORE}(?i:(?:CUDA|HIP) error(?=:|$)|CUDA failure|CUDA_ERROR_|cudaError|cuBLAS|cuDNN error"
    r"|CUDNN_STATUS|device-side assert|an illegal memory access|unspecified launch failure|NVRM: Xid|Xid\b)"
)
_OUT_OF_MEMORY = re.compile(rf"{_BEFORE}(?i:(?:(?:CUDA|HIP|MPS backend) )?out of memory)")
_MOST_LINKS = 10


def tells_sticky_fault(text: str) -> bool:
    """Whether it is the message of an error after which the CUDA context is lost."""
    return _STICKY.match(text) is not None


def tells_out_of_memory(text: str) -> bool:
    """Whether it is the message of a GPU that has no memory left."""
    return _OUT_OF_MEMORY.match(text) is not None


def is_sticky_fault(error: BaseException) -> bool:
    """Whether the exception, or one that it was raised upon, is a lost CUDA context: by its class, or by its
    message where it is a bare RuntimeError (as torch raises) or of a GPU library."""
    return any(_is_one(link) for link in _links(error))


def is_of_gpu_library(error: BaseException) -> bool:
    """Whether its message may be a GPU's."""
    return type(error) is RuntimeError or type(error).__module__.partition(".")[0] in _LIBRARIES


def _is_one(error: BaseException) -> bool:
    if GPU_ERRORS.intersection(kind.__name__ for kind in type(error).__mro__):
        return True
    return is_of_gpu_library(error) and tells_sticky_fault(_said(error))


def _links(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(_MOST_LINKS):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # an author's `__str__` may raise too
        return ""
