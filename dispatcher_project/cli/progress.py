"""A progress bar on stderr: redrawn in place on a terminal, silent elsewhere."""

from __future__ import annotations

import shutil
import time
from typing import TextIO

from dispatcher_project.cli.paint import age, bar, fitted, harmless

_BAR = 30


class Progress:
    """total: of things to do; may turn out larger or smaller."""

    def __init__(self, out: TextIO, total: int, what: str) -> None:
        self._out, self.total, self._what = out, total, what
        self._shown = out.isatty()
        self._began = time.monotonic()

    def to(self, done: int) -> None:
        if not self._shown:
            return
        share = done / self.total if self.total else 1.0
        passed = time.monotonic() - self._began
        left = passed / done * (self.total - done) if done else None
        line = f"{self._what} {bar(share, _BAR)} {done}/{self.total}  {age(left)} left"
        self._out.write(f"\r{fitted(harmless(line), shutil.get_terminal_size().columns - 1)}\x1b[K")
        self._out.flush()

    def end(self) -> None:
        if self._shown:
            self._out.write("\r\x1b[K")
            self._out.flush()
