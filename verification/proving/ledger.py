"""A file of JSON lines: one process appends, others read the new lines."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Ledger:
    """Appends lines. They are complete and in the file when `write` returns; thread-safe."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def write(self, *lines: dict[str, Any]) -> None:
        """Append records, one JSON object per line, and flush. Thread-safe."""
        text = "".join(json.dumps(line) + "\n" for line in lines)
        with self._lock:
            self._file.write(text)
            self._file.flush()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield all complete lines; none if there is no file.

    A line that was cut off by SIGKILL is skipped, together with the text appended to it."""
    if path.exists():
        with path.open(encoding="utf-8", errors="replace") as file:
            for text in file:
                line = _parsed(text)
                if line is not None:
                    yield line


class Tail:
    """Reads the lines since the last `read`. For one reader."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def read(self) -> list[dict[str, Any]]:
        """Return the new complete lines."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        lines = (_parsed(text) for text in whole.decode(errors="replace").splitlines())
        return [line for line in lines if line is not None]


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None
