"""What a `LocalGpu` is told, and what it asks of whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Patience(Protocol):
    """`gpus.runners.base.Abort`, as far as a wait here needs it."""

    @property
    def fired(self) -> bool: ...
    def set_reader(self, end_read: Callable[[], None] | None) -> None: ...


GPU_LIBRARY_MB = 1000.0


@dataclass(frozen=True, slots=True)
class Knobs:
    """budget_mb: at most so much of the device's memory; None: all. back_seconds, back_mb: how soon and how
    exactly an unload gives its memory back. cancel_seconds: what a handler gets to heed a cancel.
    sample_seconds: what stays after runs is measured at most that often. library_mb: what libraries may keep
    for good in each process once models have run (kernels, workspaces), beside the driver's context; each
    model's first unload there may show a part of it."""

    budget_mb: float | None = None
    back_seconds: float = 10.0
    back_mb: float = 100.0
    cancel_seconds: float = 5.0
    library_mb: float = 0.0
    least_leak_mb: float = 128.0
    sample_seconds: float = 1.0
