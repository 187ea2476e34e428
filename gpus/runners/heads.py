"""The head of an ordinary answer, read at once; everything else is left to `http.client`.

A GPU server's answer is nearly always one piece that begins with a short head and says how long its body is.
`http.client` reads it line by line and takes it for a mail, which costs more than the rest of the exchange.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_BEGINNING = re.compile(rb"HTTP/1\.1 ([2-9]\d\d)(?: [^\r\n]*)?\r\n")
_LINE = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\r\n\0]*?)[ \t]*")
_END = b"\r\n\r\n"
_WITHOUT_BODY = (204, 304)
MAX_LINES = 100
MAX_DIGITS = 15


@dataclass(frozen=True, slots=True)
class Head:
    """headers: lower-case names. size: of the head, in bytes; length: of the body."""

    status: int
    headers: dict[str, str]
    size: int
    length: int


def ordinary_head(piece: bytes) -> Head | None:
    """Of an answer's first piece: HTTP/1.1, whole, with a length, on a connection that stays. None: it is
    something else, or not whole yet."""
    beginning = _BEGINNING.match(piece)
    end = piece.find(_END)
    if beginning is None or end < 0:
        return None
    status = int(beginning[1])
    lines = piece[beginning.end() : end].decode("latin-1").split("\r\n") if end > beginning.end() else []
    headers: dict[str, str] = {}
    for line in lines[:MAX_LINES]:
        found = _LINE.fullmatch(line)
        if found is None or (name := found[1].lower()) in headers:
            return None
        headers[name] = found[2]
    length = headers.get("content-length", "")
    if (
        len(lines) > MAX_LINES
        or status in _WITHOUT_BODY
        or "transfer-encoding" in headers
        or headers.get("connection", "keep-alive").lower() != "keep-alive"
        or not (length.isascii() and length.isdigit() and len(length) <= MAX_DIGITS)
    ):
        return None
    return Head(status, headers, end + len(_END), int(length))
