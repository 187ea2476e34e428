"""A run as its model's code sees it."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_host.handlers.errors import Cancelled


class RunContext:
    """model: what `load()` returned (None without one). output_dir: the run's own folder for files, made when
    it is first asked for; whoever runs the handler removes it some time after the end. job_id, attempt_id:
    empty for callers that are no dispatcher.

    tell: hears (kind, value) of `report`, `log` and `partial`; must not block for long.
    """

    def __init__(
        self,
        *,
        model_name: str = "",
        job_id: str = "",
        attempt_id: str = "",
        model: Any = None,
        output_dir: Path | None = None,
        tell: Callable[[str, Any], None] | None = None,
    ) -> None:
        self.model_name, self.job_id, self.attempt_id, self.model = model_name, job_id, attempt_id, model
        self.progress: float | None = None
        self._tell = tell
        self._output_dir = output_dir
        self._made = False
        self._cancelled = threading.Event()

    @property
    def output_dir(self) -> Path:
        if self._output_dir is None:
            self._output_dir = Path(tempfile.mkdtemp(prefix="run-"))
        elif not self._made:
            self._output_dir.mkdir(parents=True, exist_ok=True)
        self._made = True
        return self._output_dir

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def report(self, progress: float) -> None:
        """How much is done, 0 to 1; it is also a sign of life for the watchdog."""
        self.progress = min(1.0, max(0.0, progress))
        self._report("progress", self.progress)

    def log(self, text: str, **fields: Any) -> None:
        """A line for the worker's log, with the job's id. fields: JSON values."""
        self._report("log", {"text": str(text), "fields": fields})

    def partial(self, value: Any) -> None:
        """A piece of the output before the end (a token, a preview): any JSON value."""
        self._report("partial", value)

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

    def _report(self, kind: str, value: Any) -> None:
        if self._tell is not None:
            self._tell(kind, value)
