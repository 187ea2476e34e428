"""Lines and server-sent events out of pieces of bytes, however they were cut. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpus.runners.transport import ResponseTooLarge


class Lines:
    """max_bytes: of one line; a longer one raises ResponseTooLarge, also while it has no end yet."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Whole lines, without their ends."""
        *ended, rest = piece.split(b"\n")
        for line in ended:
            whole = bytes(self._rest) + line if self._rest else line
            self._check(len(whole))
            self._rest.clear()
            yield whole.removesuffix(b"\r")
        if rest:
            self._rest += rest  # no list: of pieces of two bytes it would be twenty times as large
            self._check(len(self._rest))

    def end(self) -> bytes:
        """What came after the last line's end."""
        return bytes(self._rest).removesuffix(b"\r")

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            raise ResponseTooLarge(f"A line of the answer is longer than {self._max_bytes} bytes.")


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event of a ``text/event-stream``."""

    kind: str
    data: bytes


class ServerEvents:
    """max_bytes: of one event."""

    def __init__(self, max_bytes: int) -> None:
        self._lines = Lines(max_bytes)
        self._max_bytes = max_bytes
        self._kind, self._data, self._size = "", list[bytes](), 0

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """Comments, ids and events without data are left out."""
        for line in self._lines.feed(piece):
            event = self._take(line)
            if event is not None:
                yield event

    def end(self) -> Iterator[ServerEvent]:
        """The last event, where its empty line is missing."""
        for line in (self._lines.end(), b""):
            event = self._take(line)
            if event is not None:
                yield event

    def _take(self, line: bytes) -> ServerEvent | None:
        if not line:
            kind, data = self._kind, self._data
            self._kind, self._data, self._size = "", [], 0
            return ServerEvent(kind or "message", b"\n".join(data)) if data else None
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._size += len(value) + 1  # also an empty line is kept, and its end
            if self._size > self._max_bytes:
                raise ResponseTooLarge(f"An event of the answer is longer than {self._max_bytes} bytes.")
            self._data.append(value)
        elif name == b"event":
            self._kind = value.decode("utf-8", "replace")
        return None
