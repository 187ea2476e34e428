"""Xid events: what the driver reports of a GPU in its log, and which of them mean that the GPU is sick.

By NVIDIA's catalog (docs.nvidia.com/deploy/xid-errors, "Analyzing Xid Errors with the Xid Catalog"): those
whose immediate action is to reset the GPU or to restart the machine, and 48 and 74, whose workflows may end
in that. Most others are a run's own doing or follow from it (13, 31, 43, 45, 68: an exception, a page fault,
a process that ended), are contained in the process that had them (94), or tell what the driver mended (63,
92). Two are left out though the catalog asks for a reset: 109 (a context switch timed out), which NVIDIA's
own device plugin for Kubernetes counts as an application's error, and 155, which links raise on their way to
sleep.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

SICK: Mapping[int, str] = {
    46: "it stopped processing",
    48: "a double-bit ECC error",
    62: "a micro-controller of it halted",
    64: "a row of its memory could not be remapped",
    74: "an NVLink error",
    79: "it has fallen off the bus",
    95: "an uncontained memory error",
    110: "a security fault",
    119: "its system processor does not answer",
    120: "an error of its system processor",
    136: "an NVLink could not be trained",
    140: "an ECC error that could not be handled",
    143: "it could not be initialised",
    151: "a key rotation failed",
    156: "a part of it is to be retired by a reset",
    158: "a fatal time-out",
}
ANY_INSTANCE = 0xFFFFFFFF
"""NVML's word for an event that is of no one MIG instance."""
_AT_ONCE = 256


def sick_by(xids: Mapping[int, int]) -> str:
    """In words; empty: by none of them."""
    return ", ".join(f"Xid {xid} ({SICK[xid]})" for xid in xids if xid in SICK)


class XidEvents:
    """Counts a card's events from now on, where it tells of them. nv: `pynvml`. card: a handle; that of a MIG
    instance tells of none. instance: only its events and those of no one instance; None: all. counts: where
    they are counted."""

    def __init__(self, nv: Any, card: Any, instance: int | None, counts: Counter[int]) -> None:
        self._nv, self._instance, self._counts = nv, instance, counts
        self._set: Any = None
        try:
            self._set = nv.nvmlEventSetCreate()
            nv.nvmlDeviceRegisterEvents(card, nv.nvmlEventTypeXidCriticalError, self._set)
        except nv.NVMLError:  # an old card, a guest, no permission: it does not tell
            self.close()

    def look(self) -> None:
        """Never waits."""
        for _ in range(_AT_ONCE if self._set is not None else 0):
            try:
                event = self._nv.nvmlEventSetWait_v2(self._set, 0)
            except self._nv.NVMLError:  # a time-out: there is no more; else the readings tell what is wrong
                return
            if event.eventType & self._nv.nvmlEventTypeXidCriticalError and self._is_ours(event):
                self._counts[int(event.eventData)] += 1

    def close(self) -> None:
        events, self._set = self._set, None
        if events is not None:
            with suppress(self._nv.NVMLError):
                self._nv.nvmlEventSetFree(events)

    def _is_ours(self, event: Any) -> bool:
        return self._instance is None or event.gpuInstanceId in (self._instance, ANY_INSTANCE)
