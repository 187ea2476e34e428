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
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from http.client import HTTPException, HTTPResponse
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from foundation import json_text
from foundation.http_client import refused_coding
from foundation.json_paths import Path, pointer
from foundation.json_text import PARSE_LOCK, JsonText
from foundation.long_texts import LongTexts, LongTextsTooLong, NoRoom, RestTooLong, TextTooLong
from gpus.errors import ConnectFailed, Interrupted, OutputNotStored, RunFailed, RunTimedOut, ServerLost
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


class FilesTooLarge(ResponseTooLarge):
    """The files in the answer are larger than the worker keeps."""


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
        long_texts: LongTexts | None = None,
    ) -> Response:
        """Send a request; see `Transport`. `deadline_seconds` covers connecting, sending and the whole
        answer."""
        began = time.monotonic()
        if abort is not None and abort.fired:
            raise Interrupted("Interrupted before the request was sent.")
        origin, target = split_url(url, ca_pem)
        head = request_head(method, target, origin, headers, body)
        message = _Message(method, head, body or b"", max_bytes, on_sent or _nothing, long_texts)
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
    long_texts: LongTexts | None = None

    def body_for(self, status: int) -> _Body:
        """Return what takes the body of an answer with this status."""
        if self.long_texts is not None and 200 <= status < 300:
            return _ShortBody(self.long_texts)
        return _WholeBody(self.max_bytes)

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
            body = message.body_for(head.status)
            response, stays = _read_body(connection, head, first[head.size :], body)
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


class _WholeBody:
    """A body as it is sent."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._whole = bytearray()
        self.add: Callable[[bytes], None] = self._whole.extend

    def too_large(self) -> ResponseTooLarge:
        return too_large(self.max_bytes)

    def response(self, status: int, headers: Mapping[str, str]) -> Response:
        return Response(status, headers, bytes(self._whole))


class _ShortBody:
    """A body whose long texts go to a file."""

    def __init__(self, long_texts: LongTexts) -> None:
        self.max_bytes = long_texts.max_bytes
        self._long_texts = long_texts

    def add(self, piece: bytes) -> None:
        try:
            self._long_texts.feed(piece)
        except RestTooLong:
            raise too_large(self._long_texts.max_rest) from None
        except LongTextsTooLong:
            raise files_too_large(self._long_texts.max_long) from None
        except NoRoom as error:
            raise no_room(error) from None

    def too_large(self) -> ResponseTooLarge:
        return files_too_large(self._long_texts.max_long)

    def response(self, status: int, headers: Mapping[str, str]) -> Response:
        try:
            body = self._long_texts.finish()
        except NoRoom as error:
            raise no_room(error) from None
        return Response(status, headers, body, self._long_texts if self._long_texts else None)


_Body = _WholeBody | _ShortBody


def _read_body(connection: Connection, head: Head, first: bytes, body: _Body) -> tuple[Response, bool]:
    """Read the rest of an ordinary answer. first: the bytes that came with its head."""
    if head.length > body.max_bytes:
        raise body.too_large()
    body.add(first[: head.length])
    missing = head.length - len(first)
    while missing > 0:
        piece = connection.read(min(missing, _READ_BYTES))
        if not piece:
            raise ConnectionError(f"the answer ended {missing} bytes early")
        body.add(piece)
        missing -= len(piece)
    # bytes after the body answer no request: such a connection is not reused
    return body.response(head.status, head.headers), missing == 0


def _read_with_http_client(connection: Connection, message: _Message) -> tuple[Response, bool]:
    """Read an answer with `http.client`."""
    answer = HTTPResponse(connection, method=message.method)  # type: ignore[arg-type]
    connection.allow(2 * message.max_bytes + OVERHEAD_BYTES)
    answer.begin()
    if message.long_texts is not None:
        connection.allow(2 * message.body_for(answer.status).max_bytes + OVERHEAD_BYTES)
    if connection.ended:  # http.client accepts the end of the stream as the end of the head
        raise ConnectionError("it ended inside the answer's head")
    headers = {name.lower(): value for name, value in answer.getheaders()}
    body = message.body_for(answer.status)
    _read(answer, body)
    return body.response(answer.status, headers), not answer.will_close and not connection.dropped


def too_large(max_bytes: int) -> ResponseTooLarge:
    """The error for an answer beyond its size limit."""
    return ResponseTooLarge(
        f"The answer is larger than {max_bytes} bytes (max_response_bytes of the model). If files in it are "
        "that large, name their places by output_files."
    )


def files_too_large(max_bytes: int) -> FilesTooLarge:
    """The error for an answer whose long texts exceed their limit."""
    return FilesTooLarge(
        f"The texts of files in the answer have more than {max_bytes} bytes (DISPATCHER_ANSWER_FILE_BYTES)."
    )


def no_room(error: NoRoom) -> OutputNotStored:
    """The error of an answer for whose files this host has no room."""
    return OutputNotStored(
        f"The worker's temporary folder (TMPDIR) does not take the answer's files: {error}."
    )


def check_size(size: int, pieces: int, max_bytes: int) -> None:
    """Raise ResponseTooLarge or BrokenAnswer for an answer of this size and number of pieces so far."""
    if size > max_bytes:
        raise too_large(max_bytes)
    if pieces > FREE_CHUNKS + size // MIN_CHUNK_BYTES:
        raise BrokenAnswer(f"The answer has chunks of less than {MIN_CHUNK_BYTES} bytes on average.")


def _read(answer: HTTPResponse, body: _Body) -> None:
    if answer.length is not None and answer.length > body.max_bytes:
        raise body.too_large()
    size = pieces = 0
    read = answer.read1 if answer.chunked else answer.read  # one chunk per read, to count the chunks
    while piece := read(_READ_BYTES):
        body.add(piece)
        size += len(piece)
        pieces += 1
        check_size(size, pieces, body.max_bytes)
    if answer.length:  # read piece by piece, http.client does not raise for a body that ended early
        raise ConnectionError(f"the answer ended {answer.length} bytes early")


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
        if not name or ":" in name or _BREAKS.search(name + value):
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


def check_plain(response: Response) -> None:
    """Raise Unreadable for a compressed answer, which was not asked for."""
    if coding := refused_coding(response.headers.get("content-encoding")):
        raise Unreadable(f"The answer is compressed ({coding}); the request accepts no encoding.")


def read_parts(response: Response, files_in: Callable[[Mapping[str, Any]], Container[str]]) -> Any:
    """Parse the JSON of an answer; its long texts are put back, but for those of the parts of an object that
    may hold files. files_in: names of these parts.

    Raises Unreadable and ResponseTooLarge.
    """
    check_plain(response)
    body, texts = read_json(response.body), response.long_texts
    if texts is None:
        return body
    if not isinstance(body, dict):
        return restored(body, texts)
    skipped = files_in(body)
    return {
        name: part if name in skipped else restored(part, texts, under=(name,), is_strict=name != "logs")
        for name, part in body.items()
    }


def restored(value: Any, texts: LongTexts, *, under: Path = (), is_strict: bool = True) -> Any:
    """Return a part of an answer with its long texts put back. under: its place. is_strict: refuse texts that
    can't be stored; else they are escaped.

    Raises Unreadable and ResponseTooLarge.
    """
    try:
        found = texts.restored(value, under=under)
    except TextTooLong as error:
        raise ResponseTooLarge(
            f"The answer is larger than {texts.max_rest} bytes (max_response_bytes of the model): the text "
            f"at {pointer(error.path) or '/'} has {error.length}. If it is a file, name its place by "
            "output_files."
        ) from None
    except json_text.NotReadable as error:
        raise Unreadable(f"The answer can't be read: {error}.") from None
    if not is_strict:
        return json_text.storable(found)
    check_storable(found)
    return found


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
