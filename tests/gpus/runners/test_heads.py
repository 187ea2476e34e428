"""An ordinary head is parsed like by `http.client`; other heads are left to it."""

from __future__ import annotations

import io
from http.client import HTTPResponse
from typing import Any

import pytest

from gpus.runners.transport import MAX_LINES, parse_simple_head

ORDINARY = [
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 503 Busy\r\nretry-after:  7 \r\ncontent-length:0\r\nConnection: Keep-Alive\r\n\r\n",
    b"HTTP/1.1 404 \r\nContent-Length: 10\r\nX-Latin: caf\xe9\r\n\r\nhalf",
    b"HTTP/1.1 200\r\nContent-Length: 1\r\nx-empty:\r\nServer: a:b c\r\n\r\nx",
]
OTHERS = {
    "no head": b"",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n",
    "an older protocol": b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "another protocol": b"SSH-2.0-OpenSSH_9.9\r\nContent-Length: 2\r\n\r\n",
    "an announcement": b"HTTP/1.1 100 Continue\r\nContent-Length: 2\r\n\r\n",
    "no content": b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n",
    "no change": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "chunks with a length": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
    "up to the end": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{}",
    "to be closed": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 20\r\n\r\n{}",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}",
    "a length in words": b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\n{}",
    "other digits": b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n{}",
    "a huge length": b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n{}",
    "a folded line": b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\n{}",
    "a line that is no header": b"HTTP/1.1 200 OK\r\nhello\r\nContent-Length: 2\r\n\r\n{}",
    "a name with a space": b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\n{}",
    "a bare line feed": b"HTTP/1.1 200 OK\r\nX: a\nContent-Length: 3\r\nContent-Length: 2\r\n\r\n{}",
    "a bare carriage return": b"HTTP/1.1 200 OK\r\nX: a\rb\r\nContent-Length: 2\r\n\r\n{}",
    "too many lines": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"
    + b"".join(b"X-%d: 1\r\n" % n for n in range(MAX_LINES))
    + b"\r\n{}",
}


class Wire:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> Any:
        return io.BytesIO(self._data)


@pytest.mark.parametrize("piece", ORDINARY, ids=range(len(ORDINARY)))
def test_heads_are_read_as_by_http_client(piece: bytes) -> None:
    known = HTTPResponse(Wire(piece))  # type: ignore[arg-type]
    known.begin()
    head = parse_simple_head(piece)
    assert head is not None
    assert (head.status, head.length) == (known.status, known.length)
    assert head.headers == {name.lower(): value.strip() for name, value in known.getheaders()}
    assert piece[head.size :] == piece.partition(b"\r\n\r\n")[2]
    assert not known.will_close


@pytest.mark.parametrize("piece", OTHERS.values(), ids=OTHERS)
def test_unusual_heads_are_left_to_http_client(piece: bytes) -> None:
    assert parse_simple_head(piece) is None


@pytest.mark.parametrize("piece", ORDINARY, ids=range(len(ORDINARY)))
def test_a_head_that_is_not_whole_yet_is_left_to_others(piece: bytes) -> None:
    size = piece.index(b"\r\n\r\n") + 4
    assert all(parse_simple_head(piece[:end]) is None for end in range(size))
