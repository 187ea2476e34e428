"""What a model's own code sees: a payload, a context, and the errors it may raise.

A handler is ``run(payload, ctx)`` or ``run(payload)``; it returns a JSON value. Any exception ends the run as
failed with its text; one that looks like a broken GPU ends it as a GPU fault.
"""

from __future__ import annotations

import importlib
import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpus.node.config import ConfigError

Handle = Callable[[Any, "RunContext"], Any]


class BadInput(Exception):
    """The payload can't be run, now or ever."""


class Cancelled(Exception):
    """The run was cancelled; raised by `RunContext.check`."""


class RunContext:
    """The run as its handler sees it. fault: what a simulator was ordered to do wrong, else None."""

    def __init__(
        self, *, model: str, job_id: str, attempt_id: str, fault: Mapping[str, Any] | None = None
    ) -> None:
        self.model, self.job_id, self.attempt_id, self.fault = model, job_id, attempt_id, fault
        self.progress: float | None = None
        self._cancelled = threading.Event()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def report(self, progress: float) -> None:
        """How much is done, 0 to 1; shown to whoever polls."""
        self.progress = min(1.0, max(0.0, progress))

    def check(self) -> None:
        """Call it between steps of the work: raises Cancelled once the run was cancelled."""
        if self.cancelled:
            raise Cancelled

    def wait(self, seconds: float | None) -> None:
        """Sleeps, None: for ever; raises Cancelled as soon as the run is cancelled."""
        if self._cancelled.wait(seconds):
            raise Cancelled

    def cancel(self) -> None:
        self._cancelled.set()


@dataclass(frozen=True, slots=True)
class Handler:
    """simulates: it takes faults on order (`simulator.takes_faults`)."""

    model: str
    handle: Handle
    simulates: bool = False


def load_handler(path: str, *, model: str = "") -> Handler:
    """Imports ``package.module:name``. Raises ConfigError with the reason."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ConfigError(f"a handler reads package.module:function, not {path!r}")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"handler {path!r} can't be loaded: {error}") from error
    if not callable(found):
        raise ConfigError(f"handler {path!r} is not a function")
    simulates = bool(getattr(found, "takes_faults", False))
    if _takes_context(found):
        return Handler(model, found, simulates)
    return Handler(model, lambda payload, ctx: found(payload), simulates)


def _takes_context(found: Callable[..., Any]) -> bool:
    try:
        inspect.signature(found).bind(None, None)
    except TypeError:
        return False
    return True
