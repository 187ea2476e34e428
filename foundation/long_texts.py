"""Long texts of a JSON document that arrives in pieces: they go to a temporary file, and marks stand for them
in the document.

The file has no name, so nothing of it remains after the process, however that ends. A text in it is raw, as
it stood between its quotes.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from foundation.json_paths import Path
from foundation.json_text import NotReadable

LONG_BYTES = 16 * 1024
"""A longer text goes to the file."""
_WINDOW_BYTES = LONG_BYTES // 2
"""A text that is longer than `LONG_BYTES` begins and ends in different windows."""
_READ_BYTES = 64 * 1024
_LONGEST_ESCAPE = 12
# groups are not possessive: before 3.11.5 Python matches some of these wrongly (gh-106052)
_WHOLE_TEXTS = re.compile(rb'(?:[^"]*+"(?:[^"\\]++|\\.)*")*', re.DOTALL)
_IN_TEXT = re.compile(rb'(?:[^"\\]++|\\.)*', re.DOTALL)
_WHOLE_ESCAPES = re.compile(
    r"(?:[^\\]++|\\u[dD][89abAB][^\\]{2}\\u[^\\]{4}|\\u(?![dD][89abAB])[^\\]{4}|\\[^u])*", re.DOTALL
)


class RestTooLong(Exception):
    """The document without its long texts exceeds its limit."""


class LongTextsTooLong(Exception):
    """The long texts exceed their limit."""


class NoRoom(Exception):
    """The temporary folder does not take the texts."""


class TextTooLong(Exception):
    """A long text can't be put back: the document would exceed its limit. path: its place. length: of it, in
    bytes."""

    def __init__(self, path: Path, length: int) -> None:
        super().__init__(f"a text of {length} bytes")
        self.path, self.length = path, length


class LongTexts:
    """The long texts of one document. max_rest: of the document without them, in bytes; spare: that it may
    have beyond; max_long: of them all.

    `feed` and `finish` read the document; then the texts can be read from any thread.
    """

    def __init__(self, *, max_rest: int, max_long: int, spare: int = 0) -> None:
        self.max_rest, self.max_long, self.spare = max_rest, max_long, spare
        self._rest = bytearray()
        self._file: IO[bytes] | None = None
        self._ends: list[int] = []
        self._size = 0
        self._mark = secrets.token_hex(16)
        self._text: bytearray | None = None
        """The text that is being read, while it is short; None: outside of texts, or in a long one."""
        self._is_long = self._ends_escaped = False
        self.restored_bytes = 0

    @property
    def max_bytes(self) -> int:
        """Of the whole document."""
        return self.max_rest + self.spare + self.max_long

    @property
    def rest_bytes(self) -> int:
        """Bytes of the document without the texts that are still in the file."""
        return len(self._rest) + self.restored_bytes

    def __bool__(self) -> bool:
        """Return True if the document has long texts."""
        return bool(self._ends)

    # -- reading the document ------------------------------------------------------------------

    def feed(self, piece: bytes) -> None:
        """Read the next bytes. Raises RestTooLong, LongTextsTooLong and NoRoom."""
        first = 0
        while first < len(piece):
            in_long = self._is_long and piece.find(b'"', first) < 0
            end = len(piece) if in_long else first + _WINDOW_BYTES
            self._read_window(piece[first:end])
            first = end
        if len(self._rest) + len(self._text or b"") > self.max_rest + self.spare:
            raise RestTooLong

    def finish(self) -> bytes:
        """Return the document, with a mark in place of each long text. Raises NoRoom."""
        self._rest += self._text or b""  # a document that ends inside of a text is not JSON
        self._text = None
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                raise _no_room(error) from None
        return bytes(self._rest)

    def _read_window(self, window: bytes) -> None:
        at = 0
        while at < len(window):
            if self._text is not None or self._is_long:
                at = self._read_text(window, at)
            else:
                found = _WHOLE_TEXTS.match(window, at)
                assert found is not None
                quote = window.find(b'"', found.end())
                end = len(window) if quote < 0 else quote + 1
                self._rest += window[at:end]
                self._text = None if quote < 0 else bytearray()
                at = end

    def _read_text(self, window: bytes, at: int) -> int:
        """Read a text on; return the position behind it, or the window's end."""
        begin = at
        if self._ends_escaped:
            at, self._ends_escaped = at + 1, False
        found = _IN_TEXT.match(window, at)
        assert found is not None
        end = found.end()
        is_over = end < len(window) and window[end : end + 1] == b'"'
        if not is_over and end < len(window):  # a backslash that is the last byte
            self._ends_escaped, end = True, len(window)
        self._add(window[begin:end])
        if not is_over:
            return end
        if self._is_long:
            self._rest += f"{self._mark}{len(self._ends)}".encode()
            self._ends.append(self._size)
        else:
            self._rest += self._text or b""
        self._rest += b'"'
        self._text, self._is_long = None, False
        return end + 1

    def _add(self, part: bytes) -> None:
        """Add a part of a text."""
        if self._text is not None:
            self._text += part
            if len(self._text) <= LONG_BYTES:
                return
            part, self._text, self._is_long = bytes(self._text), None, True
        self._size += len(part)
        if self._size > self.max_long:
            raise LongTextsTooLong
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=_READ_BYTES)  # noqa: SIM115  closed by `close`
            self._file.write(part)
        except OSError as error:
            raise _no_room(error) from None

    # -- reading the texts ---------------------------------------------------------------------

    def find(self, value: Any) -> LongText | None:
        """Return the long text that a string of the document stands for; None if it is a string itself."""
        if type(value) is not str or not value.startswith(self._mark):
            return None
        number = int(value[len(self._mark) :])
        first = self._ends[number - 1] if number else 0
        return LongText(self, first, self._ends[number] - first)

    def restored(self, value: Any, *, most: int | None = None, under: Path = ()) -> Any:
        """Return a value of the document with its long texts put back, as a copy.

        most: `rest_bytes` may become; None: `max_rest` and the spare. under: the place of the value. Raises
        TextTooLong and NotReadable. Recursion is as deep as the value.
        """
        if not self:
            return value
        return self._restored(value, under, self.max_rest + self.spare if most is None else most)

    def _restored(self, value: Any, path: Path, most: int) -> Any:
        if type(value) is str:
            found = self.find(value)
            if found is None:
                return value
            if self.rest_bytes + found.length > most:
                raise TextTooLong(path, found.length)
            self.restored_bytes += found.length
            return found.text()
        if type(value) is list:
            return [self._restored(one, (*path, at), most) for at, one in enumerate(value)]
        if type(value) is dict:
            if any(self.find(key) is not None for key in value):
                raise NotReadable(f"the name of a member has more than {LONG_BYTES} bytes")
            return {key: self._restored(one, (*path, key), most) for key, one in value.items()}
        return value

    def read(self, first: int, length: int) -> bytes:
        """Return bytes of the file."""
        assert self._file is not None
        return os.pread(self._file.fileno(), length, first)

    def close(self) -> None:
        """Remove the file; the texts can't be read any more."""
        if self._file is not None:
            self._file.close()


@dataclass(frozen=True, slots=True)
class LongText:
    """A text in the file. length: of its raw bytes."""

    _texts: LongTexts
    _first: int
    length: int

    def text(self) -> str:
        """Return the whole text. Raises NotReadable if it is not a text of JSON."""
        raw = self._texts.read(self._first, self.length)
        try:
            return str(json.loads(b'"%b"' % raw))
        except ValueError as error:
            raise NotReadable(str(error)) from None

    def chunks(self) -> Iterator[bytes]:
        """Yield the text in pieces. Raises NotReadable if it is not a text of JSON, or not ASCII."""
        waiting, left = "", self.length
        while left:
            raw = self._texts.read(self._first + self.length - left, min(left, _READ_BYTES))
            left -= len(raw)
            if not raw.isascii():
                raise NotReadable("the text has characters beyond ASCII")
            if not waiting and b"\\" not in raw:
                yield raw
                continue
            piece = waiting + raw.decode("ascii")
            found = _WHOLE_ESCAPES.match(piece)
            assert found is not None
            end = found.end() if left else len(piece)
            waiting = piece[end:]
            if len(waiting) > _LONGEST_ESCAPE:
                raise NotReadable("the text has a malformed escape")
            yield _unescaped(piece[:end])


def _unescaped(piece: str) -> bytes:
    try:
        return str(json.loads(f'"{piece}"')).encode("ascii")
    except ValueError:
        raise NotReadable("the text has malformed escapes, or characters beyond ASCII") from None


def _no_room(error: OSError) -> NoRoom:
    return NoRoom(os.strerror(error.errno) if error.errno else "it can't be written")
