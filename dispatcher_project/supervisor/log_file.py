"""A child's output in a file of bounded size."""

from __future__ import annotations

import os
from pathlib import Path

MAX_BYTES = 5_000_000
KEPT = 2


class LogFile:
    """Appends; at `max_bytes` the file becomes ``name.1``, that one ``name.2``; older ones go.

    What the disk has no room for is dropped, and the file says so once there is room again.
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
        if self._file.closed:  # where an earlier call could not open the next one
            self._open()
        if self._size and self._size + len(data) > self._max_bytes:
            self._rotate()
        if self._dropped:
            data = b"(%d bytes are missing here: the disk had no room)\n%b" % (self._dropped, data)
        left = memoryview(data)
        while left:  # a nearly full disk takes a part, and refuses the rest
            written = self._file.write(left)
            self._size += written
            left = left[written:]
            self._dropped = 0

    def tail(self, lines: int) -> list[str]:
        """The last lines of this run, as text."""
        with self.path.open("rb") as file:
            file.seek(max(self._begun, os.fstat(file.fileno()).st_size - 64_000))
            return file.read().decode(errors="replace").splitlines()[-lines:]

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
