"""The exceptions that a model's code may raise, and the failure class of any exception. Pure."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from gpus.errors import MAX_TRACEBACK, is_of_gpu_library, is_out_of_memory_text, is_sticky_fault

MAX_TEXT = 500


class BadInput(Exception):
    """The payload can never be run."""


class Cancelled(Exception):
    """The run was cancelled; raised by `RunContext.check`."""


class TransientGpuError(Exception):
    """The GPU failed this run; a retry here or on another GPU may succeed."""


class OutOfMemory(Exception):
    """The run needs more memory than is free now."""


class UpstreamError(Exception):
    """A server that the model calls failed its run. code: of `gpus.errors`. unfinished: the run had begun,
    and its outcome is unknown."""

    def __init__(self, text: str, *, code: str, unfinished: bool = False) -> None:
        super().__init__(text)
        self.code, self.unfinished = code, unfinished


class ContractError(ValueError):
    """The model's code breaks the contract; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How a handler failed. code: bad_input, gpu_fault, out_of_memory, run_failed, cancelled, or that of an
    `UpstreamError`.

    trace: the traceback, only its last lines if it is long. sticky: the process can't use its GPU any more.
    unfinished: see `UpstreamError`."""

    code: str
    text: str
    trace: str = ""
    sticky: bool = False
    unfinished: bool = False


def failure_of(error: BaseException) -> Failure:
    """Return the failure for an exception, by its class (`torch.OutOfMemoryError` by name: torch is not
    imported here), or by its text if a GPU's library wrote that (`gpus.errors`)."""
    if isinstance(error, Cancelled):
        return Failure("cancelled", "The run was cancelled.")
    trace, message = _trace_of(error), _text_of(error)
    if isinstance(error, BadInput):
        return Failure("bad_input", message[:MAX_TEXT], trace)
    if isinstance(error, UpstreamError):
        return Failure(error.code, message[:MAX_TEXT], trace, unfinished=error.unfinished)
    text = f"{type(error).__name__}: {message}"[:MAX_TEXT]
    if isinstance(error, (OutOfMemory, MemoryError)) or type(error).__name__ == "OutOfMemoryError":
        return Failure("out_of_memory", text, trace)
    if isinstance(error, TransientGpuError):
        return Failure("gpu_fault", text, trace)
    if is_of_gpu_library(error) and is_out_of_memory_text(message):
        return Failure("out_of_memory", text, trace)
    if is_sticky_fault(error):
        return Failure("gpu_fault", text, trace, sticky=True)
    return Failure("run_failed", text, trace)


def storable(text: str) -> str:
    """Escape NULs and half surrogate pairs, which databases reject."""
    return text.replace("\0", "\\x00").encode(errors="backslashreplace").decode()


def _text_of(error: BaseException) -> str:
    """Return the message of an exception; an author's `__str__` may raise too."""
    try:
        return storable(str(error))
    except BaseException as worse:
        return f"<the text can't be read: {type(worse).__name__}>"


def _trace_of(error: BaseException) -> str:
    try:
        return storable("".join(traceback.format_exception(error)))[-MAX_TRACEBACK:]
    except BaseException as worse:
        return f"<the traceback can't be read: {type(worse).__name__}>"
