"""Whether the GPU really computes: a few bytes written by it and read back, by the driver's own library.

Framework-free: the primary context that it uses is the one which torch and others share.
"""

from __future__ import annotations

import ctypes
from typing import Any

_BYTES = 4096
_PATTERN = 0x5A


def run_a_kernel() -> str:
    """On the first GPU that this process sees. Empty: it works; else why not. Blocks if the GPU hangs."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver library (libcuda.so.1)"
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    back = (ctypes.c_ubyte * _BYTES)()
    steps: list[tuple[str, tuple[Any, ...]]] = [
        ("cuInit", (0,)),
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
        ("cuCtxSetCurrent", (context,)),
        ("cuMemAlloc_v2", (ctypes.byref(memory), ctypes.c_size_t(_BYTES))),
        ("cuMemsetD8_v2", (memory, ctypes.c_ubyte(_PATTERN), ctypes.c_size_t(_BYTES))),
        ("cuMemcpyDtoH_v2", (back, memory, ctypes.c_size_t(_BYTES))),
        ("cuMemFree_v2", (memory,)),
    ]
    for name, arguments in steps:
        status = getattr(cuda, name)(*arguments)
        if status != 0:
            return f"{name} failed: CUDA error {status}"
    return (
        ""
        if bytes(back) == bytes([_PATTERN]) * _BYTES
        else "the GPU's memory holds something else than was written"
    )
