"""What to start, in which order, and how each child shows that it is ready. Values only."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One process.

    ready: asked every few milliseconds until it says True; None waits for ``READY=1`` on NOTIFY_SOCKET.
    step: it is no service but a step of the start: ready when it has ended with 0.
    silent_after_seconds: it says ``WATCHDOG=1`` more often than this, or it is restarted.
    stop_seconds: after the stop signal it has so long before SIGKILL.
    overlaps: once it says ``STOPPING=1`` its next process is started beside it, while it drains.
    inherits: file descriptors of ours that stay open in it, under the same numbers.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[], bool] | None = None
    ready_seconds: float = 60.0
    step: bool = False
    silent_after_seconds: float | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    stop_seconds: float = 10.0
    overlaps: bool = False
    inherits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """start: stages; one begins when all children of the one before are ready. stop: names, in stages too."""

    start: tuple[tuple[ChildSpec, ...], ...]
    stop: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        started = sorted(spec.name for stage in self.start for spec in stage if not spec.step)
        stopped = sorted(name for stage in self.stop for name in stage)
        if started != stopped:
            raise ValueError(f"started {started}, but stopped {stopped}")
