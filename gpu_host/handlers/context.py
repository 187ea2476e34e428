"""A run as the model's code sees it: its folder, its output, its cancellation."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_host.handlers.errors import Cancelled
from gpus.protocol import Progress, parse_progress


class RunContext:
    """The second argument of a model's `run`.

    model: the value that `load()` returned (None without one). output_dir: the run's own folder for files,
    made at first use, and removed some time after the run. job_id, attempt_id: empty if the caller is not a
    dispatcher. on_output: receives (kind, value) of `report`, `log` and `partial`; must not block for long.
    """

    def __init__(
        self,
        *,
        model_name: str = "",
        job_id: str = "",
        attempt_id: str = "",
        model: Any = None,
        output_dir: Path | None = None,
        on_output: Callable[[str, Any], None] | None = None,
    ) -> None:
        self.model_name, self.job_id, self.attempt_id, self.model = model_name, job_id, attempt_id, model
        self.progress: Progress | None = None
        self._on_output = on_output
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

    def report(self, progress: float, text: str = "") -> None:
        """Report progress, 0 to 1, with a line about it for the job's client, such as "step 8 of 20".

        The watchdog also takes it as a sign of life."""
        found = parse_progress({"value": float(progress), "text": text})
        if found is not None:
            self.progress = found
            self._send("progress", found.as_json())

    def log(self, text: str, **fields: Any) -> None:
        """Write a line to the worker's log, with the job's id. fields: JSON values."""
        self._send("log", {"text": str(text), "fields": fields})

    def partial(self, value: Any) -> None:
        """Send a part of the output before the end (a token, a preview): any JSON value."""
        self._send("partial", value)

    def check(self) -> None:
        """Raise Cancelled if the run was cancelled. Call it between steps of the work."""
        if self.cancelled:
            raise Cancelled

    def wait(self, seconds: float | None) -> None:
        """Sleep; None: for ever. Raises Cancelled as soon as the run is cancelled."""
        if self._cancelled.wait(seconds):
            raise Cancelled

    def cancel(self) -> None:
        """Mark the run as cancelled."""
        self._cancelled.set()

    def _send(self, kind: str, value: Any) -> None:
        if self._on_output is not None:
            self._on_output(kind, value)
