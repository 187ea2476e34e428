"""HTTP/1.1 requests to GPU servers under one deadline, with exact errors; and safe parsing of JSON answers.

No request is sent twice: if the server may have received it, the error is `ServerLost`. Redirects are not
followed. An ordinary answer, whose short head has a content length, is parsed here; others are left to
`http.client`, which parses the head as e-mail and costs more than the rest of the exchange. JSON that no
database can store is refused.

Large answers are parsed one at a time per process, and never while a transaction is open. Two million values
come in 4 to 10 MB and take up to 150 MB as objects, and every slot of a worker may have such an answer; so a
large result is kept as text. Parsing holds the GIL for up to a second: a writer that waited for it inside a
transaction would lock SQLite for all processes.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from http.client import HTTPException, HTTPResponse
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from foundation import json_text
from foundation.json_text import PARSE_LOCK, JsonText
from gpus.errors import ConnectFailed, Interrupted, RunFailed, RunTimedOut, ServerLost
from gpus.runners.base import Abort, Finished, Response
from gpus.runners.connections import BrokenAnswer, Connection, Origin, Pool, SocketCloser, connect, reason

_BEGINNING = re.compile(rb"HTTP/1\.1 ([2-9]\d\d)(?: [^\r\n]*)?\r\n")
_LINE = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):([^\r\n\0]*)")
_END = b"\r\n\r\n"
_WITHOUT_BODY = (204, 304)
MAX_LINES = 100
MAX_DIGITS = 15
_READ_BYTES = 64 * 1024
_FIRST_BYTES = 8 * 1024
"""Size of the first read. Each waiting thread holds this buffer; most answers are shorter."""
FREE_CHUNKS = 1024
MIN_CHUNK_BYTES = 64
"""Minimum average chunk size beyond FREE_CHUNKS, because each chunk costs a worker as much as a KiB."""
OVERHEAD_BYTES = 1024 * 1024
"""Allowed bytes for heads, chunk sizes and trailers, besides twice the body."""
_BREAKS = re.compile(r"[\r\n\0]")
_PATH_SAFE = "/%:@!$&'()*+,;=~-._"


@dataclass(frozen=True, slots=True)
class Head:
    """Head of an ordinary answer. headers: lower-case names. size: of the head, in bytes; length: of the
    body."""

    status: int
    headers: dict[str, str]
    size: int
    length: int


def parse_simple_head(piece: bytes) -> Head | None:
    """Parse the head of an ordinary answer: HTTP/1.1, complete, with a content length and keep-alive.

    piece: the first bytes read. Returns None for another kind of answer, or an incomplete head.
    """
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
        headers[name] = found[2].strip(" \t")
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


class ResponseTooLarge(RunFailed):
    """The answer is larger than the model allows."""

    unfinished = True


class HttpTransport:
    """`gpus.runners.base.Transport` over sockets, with keep-alive. pool: None: a pool of its own."""

    def __init__(self, pool: Pool | None = None) -> None:
        self._pool = pool or Pool()

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        connect_timeout_seconds: float,
        deadline_seconds: float,
        max_bytes: int,
        ca_pem: str | None = None,
        abort: Abort | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> Response:
        """Send a request; see `Transport`. `deadline_seconds` covers connecting, sending and the whole
        answer."""
        began = time.monotonic()
        if abort is not None and abort.fired:
            raise Interrupted("Interrupted before the request was sent.")
        origin, target = split_url(url, ca_pem)
        head = request_head(method, target, origin, headers, body)
        message = _Message(method, head, body or b"", max_bytes, on_sent or _nothing)
        deadline = began + deadline_seconds
        kept = self._pool.take(origin)
        if kept is not None:
            with contextlib.suppress(_Stale):
                return self._exchange(kept, origin, message, deadline=deadline, abort=abort)
        message.call_on_sent()
        patience = time.monotonic() + connect_timeout_seconds
        fresh = connect(origin, deadline=min(patience, deadline), abort=abort)
        return self._exchange(fresh, origin, message, deadline=deadline, abort=abort)

    def _exchange(
        self,
        connection: Connection,
        origin: Origin,
        message: _Message,
        *,
        deadline: float,
        abort: Abort | None,
    ) -> Response:
        connection.begin(deadline)
        closer = SocketCloser(connection.sock)
        keep = False
        try:
            if abort is not None:
                abort.set_reader(closer)
            response, keep = _send_and_receive(connection, message, abort)
        finally:
            closer.release()
            if abort is not None:
                abort.set_reader(None)
                keep = keep and not abort.fired  # the abort may have shut the socket down
            if keep:
                self._pool.keep(origin, connection)
            else:
                connection.close()
        return response


class _Stale(Exception):
    """A pooled connection sent no byte of the body: the server cannot have acted, so a new connection may be
    used."""


def _nothing() -> None: ...


@dataclass(slots=True)
class _Message:
    """A request. on_sent: replaced by a no-op once called."""

    method: str
    head: bytes
    body: bytes
    max_bytes: int
    on_sent: Callable[[], None]

    def call_on_sent(self) -> None:
        """Call `on_sent` unless it was called before."""
        on_sent, self.on_sent = self.on_sent, _nothing
        on_sent()


def _send_and_receive(
    connection: Connection, message: _Message, abort: Abort | None
) -> tuple[Response, bool]:
    """Returns the response, and whether the connection can be reused."""
    sent, failure = send(connection, message.head + message.body)
    if failure is None:
        message.call_on_sent()
    try:
        first = connection.read(_FIRST_BYTES)
        head = parse_simple_head(first)
        if head is not None:
            response, stays = _read_body(connection, head, first[head.size :], message.max_bytes)
        else:
            connection.push_back(first)
            response, stays = _read_with_http_client(connection, message)
    except (OSError, HTTPException) as error:
        if abort is not None and abort.fired:
            raise Interrupted() from error
        if isinstance(failure or error, TimeoutError):
            raise RunTimedOut("The server did not answer in time.") from error
        if failure is not None and sent <= len(message.head):
            if connection.reused:
                raise _Stale from error
            raise ConnectFailed(
                f"The connection broke before the body was sent: {reason(failure)}"
            ) from error
        raise ServerLost(f"The connection broke before the answer was complete: {reason(error)}") from error
    return response, failure is None and stays


def send(connection: Connection, data: bytes) -> tuple[int, OSError | None]:
    """Send the data. Returns the number of bytes sent, and the error that stopped it, or None.

    After an error the server may still have answered (413, 401).
    """
    sent = 0
    view = memoryview(data)
    try:
        while sent < len(data):
            sent += connection.send(view[sent:])
    except OSError as error:
        return sent, error
    connection.quick_ack()
    return sent, None


def _read_body(connection: Connection, head: Head, body: bytes, max_bytes: int) -> tuple[Response, bool]:
    """Read the rest of an ordinary answer. body: its bytes that came with the head."""
    if head.length > max_bytes:
        raise too_large(max_bytes)
    pieces, missing = [body], head.length - len(body)
    while missing > 0:
        piece = connection.read(min(missing, _READ_BYTES))
        if not piece:
            raise ConnectionError(f"the answer ended {missing} bytes early")
        pieces.append(piece)
        missing -= len(piece)
    # bytes after the body answer no request: such a connection is not reused
    return Response(head.status, head.headers, b"".join(pieces)[: head.length]), missing == 0


def _read_with_http_client(connection: Connection, message: _Message) -> tuple[Response, bool]:
    """Read an answer with `http.client`."""
    answer = HTTPResponse(connection, method=message.method)  # type: ignore[arg-type]
    connection.allow(2 * message.max_bytes + OVERHEAD_BYTES)
    answer.begin()
    if connection.ended:  # http.client accepts the end of the stream as the end of the head
        raise ConnectionError("it ended inside the answer's head")
    headers = {name.lower(): value for name, value in answer.getheaders()}
    body = _read(answer, message.max_bytes)
    return Response(answer.status, headers, body), not answer.will_close and not connection.dropped


def too_large(max_bytes: int) -> ResponseTooLarge:
    """The error for an answer beyond its size limit."""
    return ResponseTooLarge(f"The answer is larger than {max_bytes} bytes.")


def check_size(size: int, pieces: int, max_bytes: int) -> None:
    """Raise ResponseTooLarge or BrokenAnswer for an answer of this size and number of pieces so far."""
    if size > max_bytes:
        raise too_large(max_bytes)
    if pieces > FREE_CHUNKS + size // MIN_CHUNK_BYTES:
        raise BrokenAnswer(f"The answer has chunks of less than {MIN_CHUNK_BYTES} bytes on average.")


def _read(answer: HTTPResponse, max_bytes: int) -> bytes:
    if answer.length is not None and answer.length > max_bytes:
        raise too_large(max_bytes)
    whole, pieces = bytearray(), 0
    read = answer.read1 if answer.chunked else answer.read  # one chunk per read, to count the chunks
    while piece := read(_READ_BYTES):
        whole += piece
        pieces += 1
        check_size(len(whole), pieces, max_bytes)
    if answer.length:  # read piece by piece, http.client does not raise for a body that ended early
        raise ConnectionError(f"the answer ended {answer.length} bytes early")
    return bytes(whole)


@lru_cache(maxsize=1024)
def split_url(url: str, ca_pem: str | None) -> tuple[Origin, str]:
    """The origin and the request target of a URL. Raises ConnectFailed for a bad URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConnectFailed(f"{url!r} is not a URL: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConnectFailed(f"{url!r} is not an http:// or https:// URL")
    origin = Origin(
        parts.scheme,
        parts.hostname,
        port or (443 if parts.scheme == "https" else 80),
        (ca_pem or None) if parts.scheme == "https" else None,
    )
    target = quote(parts.path or "/", safe=_PATH_SAFE)
    return origin, target + (f"?{quote(parts.query, safe=_PATH_SAFE + '?')}" if parts.query else "")


def request_head(
    method: str, target: str, origin: Origin, headers: Mapping[str, str], body: bytes | None
) -> bytes:
    """The head of a request. Raises ConnectFailed for headers that HTTP does not allow."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {origin.host_header}", "Accept-Encoding: identity"]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    for name, value in headers.items():
        if not name or ":" in name or _BREAKS.search(name) or _BREAKS.search(value):
            raise ConnectFailed(f"The request header {name!r} contains characters that HTTP does not allow.")
        lines.append(f"{name}: {value}")
    try:
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    except UnicodeEncodeError as error:
        raise ConnectFailed("A request header contains characters that HTTP does not allow.") from error


T = TypeVar("T")
SMALL_BYTES = 64 * 1024
SMALL_VALUES = 10_000
"""An answer with fewer JSON values is parsed at once; long texts and images have few values."""
_ANSWERS = threading.Lock()
"""Acquired for large answers before `PARSE_LOCK`, so that a transaction waits for at most one of them."""


class Unreadable(RunFailed):
    """The answer does not follow the protocol."""


def read_json(body: bytes) -> Any:
    """Parse JSON from outside.

    Raises Unreadable for invalid JSON, NaN or infinite numbers, text that cannot be stored, or values beyond
    `json_text.Bounds`.
    """
    try:
        value = json_text.read(body)
        if json_text.may_be_unstorable(body):
            if isinstance(value, dict) and "logs" in value:
                value["logs"] = json_text.storable(value["logs"])
            _check_texts(value)
    except json_text.TooMuch as error:
        raise Unreadable(f"The answer can't be read: {error}.") from error
    except ValueError as error:
        raise Unreadable(f"The answer is not JSON that can be stored: {error}") from error
    return value


def check_storable(value: Any) -> None:
    """Raise Unreadable for a JSON value that cannot be stored."""
    try:
        _check_texts(value)
    except RecursionError:
        raise Unreadable("The result is nested too deep.") from None
    except ValueError as error:
        raise Unreadable(f"The result is not JSON that can be stored: {error}") from error


def _check_texts(value: Any) -> None:
    if isinstance(value, str):
        value.encode()  # half a surrogate pair raises UnicodeEncodeError, a ValueError
        if "\0" in value:
            raise ValueError("a text contains a NUL character")
    elif isinstance(value, list):
        for item in value:
            _check_texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_texts(key)
            _check_texts(item)


def read_one_at_a_time(body: bytes, read: Callable[[], T]) -> T:
    """Call `read`; for a large body only one at a time per process.

    For a large body a result becomes a `JsonText`, and an error releases the parsed values.
    """
    if not _is_large(body):
        return read()
    with _ANSWERS, PARSE_LOCK:
        try:
            outcome = read()
        except Exception as error:
            _clear(error)
            raise
        if isinstance(outcome, Finished):
            return replace(outcome, result=JsonText.of(outcome.result))  # type: ignore[return-value]
        return outcome


def _is_large(body: bytes) -> bool:
    """Whether the body may have many JSON values, by the upper bound of `json_text`."""
    return len(body) >= SMALL_BYTES and sum(map(body.count, (b",", b"[", b"{"))) >= SMALL_VALUES


def _clear(error: BaseException | None) -> None:
    """Clear the frames of an error, because it is kept until the run's end is committed."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
