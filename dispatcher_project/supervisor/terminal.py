"""What the supervisor shows: one short line per happening, with the child's name in its own colour."""

from __future__ import annotations

import re
import shutil
import sys
from typing import TextIO

from dispatcher_project.cli.screen import takes_colours
from dispatcher_project.cli.texts import harmless

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95)
_NAME_WIDTH = 11
_COLUMNS_WITHOUT_TERMINAL = 200
_GRAVE = re.compile(r"^(WARNING|ERROR|CRITICAL|Traceback)\b|\[(warning|error|critical) *\]")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


class Terminal:
    """verbose: every line of every child; otherwise only those that speak of a warning or an error."""

    def __init__(self, *, verbose: bool = False, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._verbose = verbose
        self._coloured = takes_colours(self._out)
        self._names: list[str] = []

    def say(self, name: str, text: str) -> None:
        """A happening: always shown."""
        self._line(name, text)

    def child_said(self, name: str, line: str) -> None:
        if self._verbose or _GRAVE.search(line):
            line = harmless(_ESCAPES.sub("", line))  # models print what they like
            room = self._columns() - _NAME_WIDTH - 3
            self._line(name, line if len(line) <= room else f"{line[: max(room - 1, 0)]}…")

    def plain(self, text: str) -> None:
        """Text as it is, such as the closing summary."""
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
        except (OSError, ValueError):  # the terminal is gone: the log files remain
            pass
        except UnicodeEncodeError:
            self._out.write(text.encode("ascii", "replace").decode())
