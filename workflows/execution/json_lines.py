"""Reads JSON lines from an artifact, in pieces: one JSON value per line, UTF-8, blank lines left out.

Memory is bounded by the longest line that is allowed and by a piece of the store's; no file is held whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from foundation.json_text import NotReadable, may_be_unstorable, read, storable

MEDIA_TYPES = frozenset(
    {
        "application/jsonl",
        "application/jsonlines",
        "application/json-lines",
        "application/ndjson",
        "application/x-jsonl",
        "application/x-jsonlines",
        "application/x-ndjson",
        "text/jsonl",
        "text/x-ndjson",
    }
)
STEP_BYTES, STEP_LINES = 4 * 1024 * 1024, 5_000
"""Of one step: it takes a tenth of a second, and other runs come in between."""
GROUP = 500
"""The place of every so many lines is kept, so that an item is found without reading from the beginning."""
_BOM = b"\xef\xbb\xbf"


class BadLine(ValueError):
    """A line can't be an item. number: of the line, from 1."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"line {number}: {why}")
        self.number = number


class TooManyLines(ValueError):
    """The file has more items than a map may have."""


@dataclass(slots=True)
class Scan:
    """How far a file was read. offset: of the next byte. line: lines before it. items: those that are not
    blank. starts: place of every `group`-th item: its offset and its line. is_over: there are no more.
    step_lines, step_bytes: about how much `read_on` reads.
    """

    offset: int = 0
    line: int = 0
    items: int = 0
    starts: list[tuple[int, int]] = field(default_factory=list)
    is_over: bool = False
    group: int = GROUP
    step_lines: int = STEP_LINES
    step_bytes: int = STEP_BYTES

    def read_on(self, chunks: Iterable[bytes], *, most_items: int, most_line_bytes: int) -> None:
        """Read the next part of a file. chunks: its bytes from `offset`. Raises BadLine, TooManyLines."""
        began, first_line = self.offset, self.line
        for line in _lines(chunks, self.offset, self.line, most_line_bytes):
            if line.text.strip():
                value_of(line)
                if self.items >= most_items:
                    raise TooManyLines
                if self.items % self.group == 0:
                    self.starts.append((line.offset, line.number))
                self.items += 1
            self.offset, self.line = line.end, line.number
            if self.offset - began >= self.step_bytes or self.line - first_line >= self.step_lines:
                return
        self.is_over = True


@dataclass(frozen=True, slots=True)
class Line:
    """A line. number: from 1. offset: of its first byte. end: of the byte behind it and its line end."""

    number: int
    offset: int
    end: int
    text: bytes


def items_from(
    chunks: Iterable[bytes],
    start: tuple[int, int],
    first: int,
    last: int,
    *,
    most_line_bytes: int,
    group: int = GROUP,
) -> dict[int, Any]:
    """Return the items first…last of a file by index. start: offset and line of the item with which their
    group begins; chunks: bytes from there. Raises BadLine."""
    found: dict[int, Any] = {}
    offset, number = start
    index = first - first % group
    for line in _lines(chunks, offset, number - 1, most_line_bytes):
        if not line.text.strip():
            continue
        if index >= first:
            found[index] = value_of(line)
        index += 1
        if index > last:
            break
    return found


def value_of(line: Line) -> Any:
    """Return the value of a line. Raises BadLine."""
    text = line.text.removeprefix(_BOM) if line.offset == 0 else line.text
    try:
        value = read(text)
    except NotReadable as error:
        raise BadLine(line.number, f"it is not JSON that can be read: {error}"[:300]) from None
    if may_be_unstorable(text) and storable(value) != value:
        raise BadLine(line.number, "it has a NUL or half a surrogate pair, which can't be stored")
    if b"\0" in text:
        raise BadLine(line.number, "it has a NUL, which can't be stored")
    return value


def _lines(chunks: Iterable[bytes], offset: int, number: int, most_bytes: int) -> Iterator[Line]:
    """Yield the lines; the last one may have no line end. Raises BadLine for one that is too long, as soon as
    so much of it was read."""
    rest = b""
    for chunk in chunks:
        parts = (rest + chunk).split(b"\n")
        rest = parts.pop()
        for text in parts:
            number += 1
            _check_length(text, number, most_bytes)
            yield Line(number, offset, offset + len(text) + 1, text)
            offset += len(text) + 1
        _check_length(rest, number + 1, most_bytes)
    if rest:
        yield Line(number + 1, offset, offset + len(rest), rest)


def _check_length(text: bytes, number: int, most_bytes: int) -> None:
    if len(text) > most_bytes:
        raise BadLine(
            number, f"it has more than {most_bytes} bytes; put long values into artifacts of their own"
        )
