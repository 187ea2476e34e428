"""Reads what a model process writes past Python's streams (libraries in C, its children), line by line."""

from __future__ import annotations

import fcntl
import os
import selectors
import struct
import termios
import threading
import time
from collections.abc import Callable
from typing import IO

from foundation.log_lines import MAX_LINE_CHARS, overwritten, safe_text
from foundation.network import ByteRateLimiter
from foundation.signed_urls import SignatureFilter

BYTES_PER_SECOND = 4 * 1024 * 1024
"""A model that writes faster blocks in its write."""
LINES_PER_SECOND = 50
SETTLE_SECONDS = 0.05
_READ_BYTES = 64 * 1024

OnLine = Callable[[str, str], None]
"""Receives the stream (stdout or stderr) and a line."""


class ProcessOutput:
    """The output of one process. `read` runs in a thread until both streams are closed.

    on_line: up to `LINES_PER_SECOND`; one more line counts the others.
    """

    def __init__(self, stdout: IO[bytes], stderr: IO[bytes], on_line: OnLine) -> None:
        self._files = {"stdout": stdout, "stderr": stderr}
        self._on_line = on_line
        self._lock = threading.Lock()
        """Held from the read of bytes until their lines are passed on."""
        self._rest = {"stdout": b"", "stderr": b""}
        self._signatures = {name: SignatureFilter() for name in self._files}
        self._second, self._lines, self._dropped = 0, 0, 0
        self._is_over = False
        self._waits_from = 0.0

    def read(self) -> None:
        """Pass lines on until the process has ended."""
        pace = ByteRateLimiter(BYTES_PER_SECOND, lambda: BYTES_PER_SECOND)
        with selectors.DefaultSelector() as ready:
            for name, file in self._files.items():
                ready.register(file, selectors.EVENT_READ, name)
            while ready.get_map():
                for key, _ in ready.select():
                    with self._lock:
                        data = os.read(key.fd, _READ_BYTES)
                        self._take(key.data, data)
                    if not data:
                        ready.unregister(key.fileobj)
                    pace.take(len(data))
        with self._lock:
            self._is_over = True
            for name in self._files:
                self._pass_rest(name)
            self._pass_dropped()
        for file in self._files.values():
            file.close()

    def settle(self) -> None:
        """Wait until what was written so far is passed on, lines without an end too: `SETTLE_SECONDS` at
        most, and not while more is written than is read."""
        if time.monotonic() < self._waits_from:
            return
        until = time.monotonic() + SETTLE_SECONDS
        while True:
            with self._lock:
                if self._is_over or self._dropped:
                    return
                if not any(_unread(file) for file in self._files.values()):
                    for name in self._files:
                        self._pass_rest(name)
                    return
            if time.monotonic() >= until:
                self._waits_from = until + 1.0
                return
            time.sleep(0.001)

    def _take(self, name: str, data: bytes) -> None:
        self._count_second()
        *whole, rest = data.split(b"\n")
        if whole:
            whole[0] = self._rest[name] + whole[0]
            self._rest[name] = b""
        room = max(0, LINES_PER_SECOND - self._lines)
        for line in whole[:room]:
            self._pass(name, line + b"\n")
        if len(whole) > room:
            self._signatures[name] = SignatureFilter()
        self._lines += len(whole)
        self._dropped += max(0, len(whole) - room)
        # a longer rest is dropped, and of its end no more is known: a line of gigabytes takes no memory
        self._rest[name] = (self._rest[name] + rest)[: 4 * MAX_LINE_CHARS]

    def _count_second(self) -> None:
        now = int(time.monotonic())
        if now != self._second:
            self._pass_dropped()
            self._second, self._lines = now, 0

    def _pass_dropped(self) -> None:
        dropped, self._dropped = self._dropped, 0
        if dropped:
            self._on_line("stderr", f"… {dropped} lines more")

    def _pass_rest(self, name: str) -> None:
        rest, self._rest[name] = self._rest[name], b""
        if rest:
            self._pass(name, rest)

    def _pass(self, name: str, line: bytes) -> None:
        is_whole, line = line.endswith(b"\n"), line[: 4 * MAX_LINE_CHARS]
        text = self._signatures[name].filter(line.decode(errors="replace"))
        if is_whole:
            self._signatures[name] = SignatureFilter()
        text = overwritten(text.removesuffix("\n"))
        self._on_line(name, safe_text(text.rstrip()))


def _unread(file: IO[bytes]) -> int:
    """Return the number of bytes that can be read without waiting."""
    (count,) = struct.unpack("i", fcntl.ioctl(file.fileno(), termios.FIONREAD, b"\0\0\0\0"))
    return int(count)
