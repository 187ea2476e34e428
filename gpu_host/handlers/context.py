"""A run as the model's code sees it: its folder, its output, its cancellation."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from gpu_host.handlers.errors import Cancelled
from gpu_host.handlers.files import CACHE_BYTES, INPUTS, InputCache, InputUnavailable, save_file
from gpus.protocol import Progress, parse_progress

INPUT_SECONDS = 60.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 5.0
Found = TypeVar("Found")


def keep_trying(
    attempt: Callable[[], Found],
    *,
    failures: tuple[type[Exception], ...],
    seconds: float,
    wait: Callable[[float], None],
) -> Found:
    """Return the result of `attempt`; after one of these failures, try again for so many seconds, with pauses
    that double. wait: sleeps, or raises Cancelled. Raises the last failure."""
    until, pause = time.monotonic() + seconds, FIRST_PAUSE_SECONDS
    while True:
        try:
            return attempt()
        except failures:
            if time.monotonic() >= until:
                raise
        wait(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


class RunContext:
    """The second argument of a model's `run`.

    model: the value that `load()` returned (None without one). output_dir: the run's own folder for files,
    made at first use, and removed some time after the run. job_id, attempt_id: empty if the caller is not a
    dispatcher. on_output: receives (kind, value) of `report`, `log` and `partial`; must not block for long.
    input_cache_bytes: of inputs that are kept for later runs, beside the folders of runs. input_seconds: how
    long an input is waited for while the store is away.
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
        input_cache_bytes: int = CACHE_BYTES,
        input_seconds: float = INPUT_SECONDS,
    ) -> None:
        self.model_name, self.job_id, self.attempt_id, self.model = model_name, job_id, attempt_id, model
        self.progress: Progress | None = None
        self._on_output = on_output
        self._input_cache_bytes, self._input_seconds = input_cache_bytes, input_seconds
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
    def made_output_dir(self) -> Path | None:
        """The folder, if the run has used it."""
        return self._output_dir if self._made else None

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def save(
        self,
        source: str | os.PathLike[str] | bytes | bytearray | memoryview,
        *,
        name: str = "",
        content_type: str = "",
    ) -> dict[str, Any]:
        """Keep a file, or bytes, as an output of the run; return the value that stands for it in the result.

        It becomes an artifact when the run has succeeded: the job's result then has the reference to it.
        name: for downloads, in any script; default: the path's. content_type: default: recognised from the
        bytes. A file must not be changed afterwards.
        """
        return save_file(source, self.output_dir, name=name, content_type=content_type)

    def path(self, value: Any) -> Path:
        """Return a file with the bytes of an artifact, which is kept for later runs too; do not change it.

        value: as in the payload, which has a signed URL in place of the reference. Waits for a minute while
        the store is away. Raises BadInput for anything else, InputUnavailable and Cancelled.
        """
        folder = self.output_dir
        cache = InputCache(folder.parent / INPUTS, self._input_cache_bytes)
        return keep_trying(
            lambda: cache.fetch(value, folder),
            failures=(InputUnavailable,),
            seconds=self._input_seconds,
            wait=self.wait,
        )

    def open(self, value: Any) -> BinaryIO:
        """Open an artifact of the payload for reading. Raises as `path`."""
        return self.path(value).open("rb")

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
