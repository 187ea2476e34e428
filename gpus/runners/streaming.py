"""HTTP/1.1 requests with a streamed answer, and parsers for lines and server-sent events.

Each request uses a connection of its own, closed at the end: a disconnect is how such servers stop a run. The
whole exchange has one deadline.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from http.client import HTTPException, HTTPResponse
from typing import Protocol

from foundation.network import ByteRateLimiter
from gpus.errors import ConnectFailed, Interrupted, RunTimedOut, ServerLost
from gpus.runners.base import Abort, Response
from gpus.runners.connections import Connection, SocketCloser, connect, reason
from gpus.runners.transport import OVERHEAD_BYTES, ResponseTooLarge, check_size, request_head, send, split_url

_READ_BYTES = 64 * 1024
BYTES_PER_SECOND = 32 * 1024 * 1024
"""Maximum rate at which a streamed answer is read; each piece counts for an extra KiB."""

OnPiece = Callable[[bytes], bool]
"""Receives the next piece of the body. Returns True to end the exchange; an exception ends it too."""
OnHead = Callable[[Response], OnPiece | None]
"""Receives the answer's status and headers. Returns the receiver of the body, or None to read it whole."""


class StreamTransport(Protocol):
    """Sends one HTTP request and streams the answer. Raises like `gpus.runners.base.Transport`.

    on_head: called once. max_bytes: of an answer that is read whole.
    """

    def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes,
        on_head: OnHead,
        connect_timeout_seconds: float,
        deadline_seconds: float,
        max_bytes: int,
        ca_pem: str | None = None,
        abort: Abort,
    ) -> Response: ...


class HttpStream:
    """`StreamTransport` over sockets. When `stream` returns or raises, the connection is closed."""

    def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes,
        on_head: OnHead,
        connect_timeout_seconds: float,
        deadline_seconds: float,
        max_bytes: int,
        ca_pem: str | None = None,
        abort: Abort,
    ) -> Response:
        began = time.monotonic()
        if abort.fired:
            raise Interrupted("Interrupted before the request was sent.")
        origin, target = split_url(url, ca_pem)
        head = request_head(method, target, origin, headers, body)
        deadline = began + deadline_seconds
        connection = connect(origin, deadline=min(began + connect_timeout_seconds, deadline), abort=abort)
        connection.begin(deadline)
        closer = SocketCloser(connection.sock)
        sent, failure = 0, None
        try:
            abort.set_reader(closer)
            sent, failure = send(connection, head + body)
            response = _read_answer(connection, method, on_head, max_bytes)
            if abort.fired:  # without a body length an aborted answer looks complete
                raise Interrupted()
            return response
        except (OSError, HTTPException) as error:
            if abort.fired:
                raise Interrupted() from error
            if isinstance(failure or error, TimeoutError):
                raise RunTimedOut("The server did not answer in time.") from error
            if failure is not None and sent <= len(head):
                why = f"The connection broke before the body was sent: {reason(failure)}"
                raise ConnectFailed(why) from error
            raise ServerLost(
                f"The connection broke before the answer was complete: {reason(error)}"
            ) from error
        finally:
            closer.release()
            abort.set_reader(None)
            connection.close()


def _read_answer(connection: Connection, method: str, on_head: OnHead, max_bytes: int) -> Response:
    answer = HTTPResponse(connection, method=method)  # type: ignore[arg-type]
    connection.allow(OVERHEAD_BYTES)
    answer.begin()
    if connection.ended:  # http.client accepts the end of the stream as the end of the head
        raise ConnectionError("it ended inside the answer's head")
    head = Response(answer.status, {name.lower(): value for name, value in answer.getheaders()})
    on_piece = on_head(head)
    connection.allow(math.inf if on_piece is not None else 2 * max_bytes + OVERHEAD_BYTES)
    if on_piece is None:
        return replace(head, body=_whole(answer, max_bytes))
    for piece in _pieces(answer):
        if on_piece(piece):
            break
    return head


def _whole(answer: HTTPResponse, max_bytes: int) -> bytes:
    whole = bytearray()
    for pieces, piece in enumerate(_pieces(answer), start=1):
        whole += piece
        check_size(len(whole), pieces, max_bytes)
    return bytes(whole)


def _pieces(answer: HTTPResponse) -> Iterator[bytes]:
    """The body's pieces as they arrive, at a limited rate so that an endless stream cannot use a whole
    core."""
    pace = ByteRateLimiter(BYTES_PER_SECOND, lambda: BYTES_PER_SECOND)
    while piece := answer.read1(_READ_BYTES):
        pace.take(len(piece))
        yield piece
    if answer.length:  # http.client does not raise for a body that ended early
        raise ConnectionError(f"the answer ended {answer.length} bytes early")


class Lines:
    """Splits a stream into lines. max_bytes: of one line, complete or not; beyond it raises
    ResponseTooLarge."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The lines that these bytes complete, without line ends."""
        *ended, rest = piece.split(b"\n")
        for line in ended:
            whole = bytes(self._rest) + line if self._rest else line
            self._check(len(whole))
            self._rest.clear()
            yield whole.removesuffix(b"\r")
        if rest:
            self._rest += rest  # not a list: with pieces of two bytes it would be twenty times as large
            self._check(len(self._rest))

    def end(self) -> bytes:
        """The bytes after the last line end."""
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
    """Parses a ``text/event-stream``. max_bytes: of one event."""

    def __init__(self, max_bytes: int) -> None:
        self._lines = Lines(max_bytes)
        self._max_bytes = max_bytes
        self._kind, self._data, self._size = "", list[bytes](), 0

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """The events that these bytes complete. Comments, ids and events without data are left out."""
        for line in self._lines.feed(piece):
            event = self._take(line)
            if event is not None:
                yield event

    def end(self) -> Iterator[ServerEvent]:
        """The last event, if its empty line is missing."""
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
            self._size += len(value) + 1  # with the line end
            if self._size > self._max_bytes:
                raise ResponseTooLarge(f"An event of the answer is longer than {self._max_bytes} bytes.")
            self._data.append(value)
        elif name == b"event":
            self._kind = value.decode("utf-8", "replace")
        return None
