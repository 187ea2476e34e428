"""Errors of runs and leases with their cost, and recognition of GPU faults in exceptions and texts.

An error class has its cost as attributes, so that ``jobs/domain/retry.py`` decides by them and never by a
message. The table is in ``docs/reference/failures.md``. An error text of a GPU library counts only at the
beginning of a message, after at most the names of exceptions; the same words quoted elsewhere (a prompt, a
log line) do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum

from foundation.signed_urls import without_signatures

MAX_TRACEBACK = 3000
"""Maximum length of a stored traceback, in characters."""


class Verdict(StrEnum):
    """Evidence of an attempt's end about its server and model, for the circuit breakers
    (`gpus/leasing/lua/includes/circuit.lua`)."""

    NOTHING = ""
    """No evidence: busy, cancelled, interrupted, never sent."""
    ANSWERED = "answered"
    """Bad input: the server works. Closes a half-open circuit of the server; does not reset other
    failures."""
    WELL = "well"
    SERVER = "server"
    MODEL = "model"
    EITHER = "either"
    """A fault of the model if it happens on several servers, else of the server."""


class GpuError(Exception):
    """The GPU server failed in an unknown way."""

    code = "server_error"
    counts = True
    """Whether the attempt counts as one of the job's tries."""
    retryable = True
    """Whether another attempt may succeed."""
    elsewhere = False
    """Whether the next attempt should go to another server."""
    suspect = False
    """Whether the GPU may still be busy with the attempt: its slot is quarantined until proven free."""
    blames = Verdict.NOTHING
    """Which part failed, for the circuit breakers."""
    unfinished = False
    """Whether the run had begun and was cut off, or its answer refused. A job that may run only once is not
    retried."""
    process_died = False
    """Whether the run killed its process; counts towards detection of poison jobs."""
    of_client = False
    """Whether the client's input caused it, so that neither a retry nor an operator helps."""
    repeats = False
    """Whether the same failure several times in a row proves that no further attempt helps."""

    def __init__(
        self, message: str = "", *, retry_after_seconds: float | None = None, detail: str = ""
    ) -> None:
        """message: "": the class docstring. detail: a traceback, stored with the attempt; not used for
        grouping. Servers may quote the URLs of their inputs in both: their signatures are left out."""
        super().__init__(without_signatures(message) or (type(self).__doc__ or "").strip())
        self.retry_after_seconds = retry_after_seconds
        self.detail = without_signatures(detail)

    @property
    def message(self) -> str:
        return str(self.args[0])


class GpuBusy(GpuError):
    """The GPU server is busy."""

    code = "busy"
    counts = False


class Interrupted(GpuError):
    """The worker abandoned a healthy run (deploy, server switched off, Redis or network lost)."""

    code = "interrupted"
    counts = False
    suspect = True


class ConnectFailed(GpuError):
    """The GPU server could not be reached; no request was sent."""

    code = "connect"
    counts = False
    elsewhere = True
    blames = Verdict.SERVER


class ConnectRefused(ConnectFailed):
    """The GPU server's address refuses connections."""


class ConnectTimedOut(ConnectFailed):
    """The GPU server did not accept the connection in time."""


class CredentialsRefused(GpuError):
    """The GPU server does not accept the headers that it is registered with; the job did not run."""

    code = "credentials_refused"
    counts = False
    elsewhere = True
    blames = Verdict.SERVER


class AccessForbidden(GpuError):
    """The GPU server, or a proxy before it, forbids the request; the job did not run."""

    code = CredentialsRefused.code  # the remedy is the same; unlike it, a filter may forbid a single payload
    elsewhere = True
    blames = Verdict.EITHER


class ServerLost(GpuError):
    """The GPU server was lost while it had the job."""

    code = "server_lost"
    blames = Verdict.EITHER
    elsewhere = True
    suspect = True


class ProcessDied(ServerLost):
    """The model's process died while it ran the job; a new one is started."""

    suspect = False
    process_died = True


class OutOfMemory(GpuError):
    """The model ran out of memory."""

    code = "out_of_memory"
    elsewhere = True


class DoesNotFit(GpuError):
    """The model needs more memory than this GPU has; the job waits for a larger one."""

    code = "does_not_fit"
    counts = False
    elsewhere = True


class ModelMissing(GpuError):
    """The server does not have the model."""

    code = "model_missing"
    elsewhere = True
    blames = Verdict.EITHER


class GpuFault(GpuError):
    """The GPU is faulty (sticky CUDA error, Xid; over HTTP also out of memory)."""

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


class OutputNotStored(GpuError):
    """The run's outputs could not be stored."""

    code = "output_not_stored"
    unfinished = True


class OutputRefused(GpuError):
    """The run's outputs exceed a limit."""

    code = "output_refused"
    retryable = False
    unfinished = True


class OutputInvalid(GpuError):
    """The run's result is not what its model declares: files, or a schema."""

    code = "output_invalid"
    retryable = False
    unfinished = True
    blames = Verdict.MODEL


class BadInput(GpuError):
    """The GPU server rejected the input."""

    code = "bad_input"
    retryable = False
    of_client = True
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
    """Another worker holds the lease; the result of this run does not count."""

    code = "lease_lost"
    counts = False
    suspect = True


class StaleFence(LeaseLost):
    """The server has seen a later lease of this slot and refused the run; it does not run there."""

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
        OutputNotStored,
        OutputRefused,
        OutputInvalid,
        BadInput,
        RunTimedOut,
        RunCancelled,
        LeaseLost,
    )
}


REDIS_AWAY = "Redis does not answer"
"""The text in answers, pages and explanations."""


class LeasingUnavailable(Exception):
    """Redis does not answer, or its index is being rebuilt; no lease is granted meanwhile."""


class LeasingFull(LeasingUnavailable):
    """Redis is at its maxmemory: it refuses new tickets; waiting jobs are still processed."""


class LayoutNotInUse(LeasingUnavailable):
    """The fleet's index is used by processes of another key layout, or is being switched to it."""


GPU_ERRORS = frozenset({"AcceleratorError", "CUDARuntimeError", "CUDADriverError", "CudaAPIError"})
"""Exceptions for GPU faults only, of torch, CuPy and Numba."""
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
_MAX_CAUSES = 10


def is_sticky_fault_text(text: str) -> bool:
    """Whether an error message reports a lost CUDA context."""
    return _STICKY.match(text) is not None


def is_out_of_memory_text(text: str) -> bool:
    """Whether an error message reports that the GPU is out of memory."""
    return _OUT_OF_MEMORY.match(text) is not None


def is_sticky_fault(error: BaseException) -> bool:
    """Whether an exception, or one of its causes, reports a lost CUDA context.

    By its class, or by its message if it is a plain RuntimeError (as raised by torch) or of a GPU library.
    """
    return any(_is_one(link) for link in _links(error))


def is_of_gpu_library(error: BaseException) -> bool:
    """Whether the exception's message may come from a GPU library."""
    return type(error) is RuntimeError or type(error).__module__.partition(".")[0] in _LIBRARIES


def _is_one(error: BaseException) -> bool:
    if GPU_ERRORS.intersection(kind.__name__ for kind in type(error).__mro__):
        return True
    return is_of_gpu_library(error) and is_sticky_fault_text(_text_of(error))


def _links(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(_MAX_CAUSES):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # `__str__` of model code may raise
        return ""
