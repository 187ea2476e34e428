"""The failure class of exceptions of a model's code."""

from __future__ import annotations

import pytest

from gpu_host.handlers import BadInput, Cancelled, OutOfMemory, TransientGpuError
from gpu_host.handlers.errors import failure_of


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


class AcceleratorError(RuntimeError):
    """Named as torch's."""


def raised_upon(error: Exception) -> Exception:
    try:
        try:
            raise error
        except Exception:
            raise LookupError("no image")  # noqa: B904
    except LookupError as wrapped:
        return wrapped


@pytest.mark.parametrize(
    ("error", "code", "sticky"),
    [
        (BadInput("prompt is missing"), "bad_input", False),
        (Cancelled(), "cancelled", False),
        (TransientGpuError("again"), "gpu_fault", False),
        (OutOfMemory("no room"), "out_of_memory", False),
        (MemoryError(), "out_of_memory", False),
        (OutOfMemoryError("tried to allocate"), "out_of_memory", False),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "out_of_memory", False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "gpu_fault", True),
        (RuntimeError("CUDA error: device-side assert triggered"), "gpu_fault", True),
        (ValueError("shape"), "run_failed", False),
        (AcceleratorError("whatever it says"), "gpu_fault", True),
        (raised_upon(RuntimeError("CUDA error: unknown")), "gpu_fault", True),
        (ValueError("the prompt quotes 'CUDA error: x'"), "run_failed", False),
        (ValueError("CUDA error: is the whole prompt"), "run_failed", False),
        (RuntimeError("the caption 'CUDA error' is too short"), "run_failed", False),
        (KeyError("out of memory"), "run_failed", False),
    ],
)
def test_every_exception_has_a_class(error, code, sticky):
    failure = failure_of(error)
    assert (failure.code, failure.sticky) == (code, sticky)


def test_the_traceback_is_kept():
    try:
        raise ValueError("deep inside")
    except ValueError as error:
        failure = failure_of(error)
    assert failure.text == "ValueError: deep inside"
    assert "test_errors.py" in failure.trace


@pytest.mark.parametrize("kind", [BadInput, OutOfMemory, TransientGpuError, ValueError])
def test_a_text_that_databases_reject_is_escaped_and_keeps_its_class(kind):
    plain, odd = failure_of(kind("a")), failure_of(kind("a\0b\ud800"))
    assert odd.code == plain.code
    assert odd.text.endswith(r"a\x00b\ud800")
    assert "\0" not in odd.trace
    odd.trace.encode()
