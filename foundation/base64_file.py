"""Base64 and `data:` URIs that arrive in pieces, read as a file of their bytes, which is never held whole."""

from __future__ import annotations

import binascii
import io
from collections.abc import Callable, Iterator
from typing import Any

from foundation.data_uri import BadDataUri, decode_percent

Chunks = Callable[[], Iterator[bytes]]
"""Makes an iterator over the pieces of one ASCII text, from its beginning."""
_STANDARD = bytes.maketrans(b"-_", b"+/")
_BREAKS = b" \t\r\n"


def decoded(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the bytes of base64, or of its URL-safe alphabet; line breaks are left out. Raises BadDataUri."""
    waiting, is_over, read = b"", False, 0
    for chunk in chunks:
        data = waiting + chunk.translate(_STANDARD, _BREAKS)
        end = len(data) - len(data) % 4
        waiting = data[end:]
        if not data:
            continue
        if is_over:
            raise BadDataUri(f"the base64 goes on after its padding, behind {read} characters")
        if not end:
            continue
        try:
            yield binascii.a2b_base64(data[:end], strict_mode=True)
        except binascii.Error:
            raise BadDataUri(f"the text is not base64 (RFC 4648), behind {read} characters") from None
        read += end
        is_over = data[end - 1 : end] == b"="
        if is_over and waiting:
            raise BadDataUri(f"the base64 goes on after its padding, behind {read} characters")
    if waiting:
        raise BadDataUri(f"the base64 ends without its padding, after {read + len(waiting)} characters")


def unquoted(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the bytes of a percent-encoded text. Raises BadDataUri."""
    waiting = b""
    for chunk in chunks:
        data = waiting + chunk
        cut = data.rfind(b"%", max(0, len(data) - 2))
        end = len(data) if cut < 0 else cut
        waiting = data[end:]
        yield decode_percent(data[:end].decode("ascii"))
    yield decode_percent(waiting.decode("ascii"))


def without_first(chunks: Iterator[bytes], count: int) -> Iterator[bytes]:
    """Yield all but the first bytes."""
    for chunk in chunks:
        if count < len(chunk):
            yield chunk[count:]
        count = max(0, count - len(chunk))


class ChunkFile(io.RawIOBase):
    """A read-only file over an iterator of bytes. Seeking to the beginning makes a new iterator."""

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        self._reading: Iterator[bytes] = chunks()
        self._waiting = memoryview(b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go back to the beginning; other places are not supported."""
        if offset or whence != io.SEEK_SET:
            raise io.UnsupportedOperation("only the beginning can be sought")
        self._reading, self._waiting = self._chunks(), memoryview(b"")
        return 0

    def readinto(self, buffer: Any) -> int:
        while not self._waiting:
            chunk = next(self._reading, None)
            if chunk is None:
                return 0
            self._waiting = memoryview(chunk)
        count = min(len(buffer), len(self._waiting))
        buffer[:count] = self._waiting[:count]
        self._waiting = self._waiting[count:]
        return count


def as_file(chunks: Chunks) -> io.BufferedReader:
    """Return a buffered file of these pieces."""
    return io.BufferedReader(ChunkFile(chunks), 256 * 1024)
