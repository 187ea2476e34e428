"""Which exceptions and texts are a GPU's own failure. Pure.

A text counts only where the GPU's libraries put it: at its beginning, behind at most the names of exceptions
that they raise. A text that quotes such words (a prompt, a log line) says nothing of the GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

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
