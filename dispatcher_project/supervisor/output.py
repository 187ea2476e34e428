"""The children's output: log files of bounded size, and the terminal, with one line per event and each
child's name in a colour of its own."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import TextIO

from dispatcher_project.cli.screen import harmless, takes_colours

MAX_BYTES = 5_000_000
KEPT = 2


class LogFile:
    """A log file, rotated at `max_bytes`: ``name`` becomes ``name.1``, ``name.1`` becomes ``name.2``, and so
    on; the oldest is deleted.

    On a full disk output is dropped, and a line with the number of missing bytes follows once there is space.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES, kept: int = KEPT) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._kept = kept
        self._dropped = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._open()

    def write(self, data: bytes) -> None:
        try:
            self._append(data)
        except OSError:
            self._dropped += len(data)

    def _append(self, data: bytes) -> None:
        if self._file.closed:  # an earlier call could not open the next file
            self._open()
        if self._size and self._size + len(data) > self._max_bytes:
            self._rotate()
        if self._dropped:
            data = b"(%d bytes are missing here: the disk was full)\n%b" % (self._dropped, data)
        left = memoryview(data)
        while left:  # a nearly full disk accepts a part only
            written = self._file.write(left)
            self._size += written
            left = left[written:]
            self._dropped = 0

    def tail(self, lines: int) -> list[str]:
        """Return the last lines of this run; a line of ours follows them if the disk is full."""
        with self.path.open("rb") as file:
            file.seek(max(self._begun, os.fstat(file.fileno()).st_size - 64_000))
            found = file.read().decode(errors="replace").splitlines()[-lines:]
        if self._dropped:
            found.append(f"({self._dropped} bytes are missing: the disk of {self.path.parent} is full)")
        return found

    def close(self) -> None:
        self._file.close()

    def _open(self) -> None:
        self._file = self.path.open("ab", buffering=0)
        self._size = os.fstat(self._file.fileno()).st_size
        self._begun = self._size

    def _rotate(self) -> None:
        self._file.close()
        for number in range(self._kept, 0, -1):
            older = self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        self._open()

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}") if number else self.path


_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95)
_NAME_WIDTH = 11
_COLUMNS_WITHOUT_TERMINAL = 200
_GRAVE = re.compile(r"^(WARNING|ERROR|CRITICAL|Traceback)\b|\[(warning|error|critical) *\]")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


class Terminal:
    """Writes events and lines of children. verbose: all lines of children; else only warnings and errors."""

    def __init__(self, *, verbose: bool = False, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._verbose = verbose
        self._coloured = takes_colours(self._out)
        self._names: list[str] = []

    def say(self, name: str, text: str) -> None:
        """Show an event."""
        self._line(name, text)

    def child_line(self, name: str, line: str) -> None:
        """Show a line of a child's output, if it is a warning or an error, or always with `verbose`."""
        if self._verbose or _GRAVE.search(line):
            line = harmless(_ESCAPES.sub("", line))  # models may print control characters
            room = self._columns() - _NAME_WIDTH - 3
            self._line(name, line if len(line) <= room else f"{line[: max(room - 1, 0)]}…")

    def plain(self, text: str) -> None:
        """Show text unchanged, such as the summary after the start."""
        self._write(f"{text}\n")

    def _line(self, name: str, text: str) -> None:
        if name not in self._names:
            self._names.append(name)
        label = f"{name:<{_NAME_WIDTH}}"
        if self._coloured:
            label = f"\x1b[{_COLOURS[self._names.index(name) % len(_COLOURS)]}m{label}\x1b[0m"
        self._write(f"{label} │ {text}\n")

    def _columns(self) -> int:
        return shutil.get_terminal_size().columns if self._out.isatty() else _COLUMNS_WITHOUT_TERMINAL

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except (OSError, ValueError):  # the terminal was closed: the log files remain
            pass
        except UnicodeEncodeError:
            self._out.write(text.encode("ascii", "replace").decode())
