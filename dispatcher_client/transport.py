"""What passes between the calls and the network, and when a request is retried.

`dispatcher_client.urllib_transport` blocks; `dispatcher_client.httpx_transport` runs under asyncio."""

from __future__ import annotations

import math
import random
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from .errors import AnswerTooLarge, DispatcherError, NoAnswer, Unavailable, read_json

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Default bound of one answer, and of one event of a stream."""

_FILE_CHUNK_BYTES = 256 * 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request. path: below the API's root. body: a JSON value; None: no body. timeout_seconds: of
    each step, and of reading the whole answer."""

    method: str
    path: str
    timeout_seconds: float
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer. headers: names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json_object(self) -> dict[str, Any]:
        """Return the body as a JSON object. Raises NoAnswer: the body was cut off, or is not the
        dispatcher's."""
        try:
            document = read_json(self.body)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            start = self.body[:80].decode(errors="replace")
            raise NoAnswer(f"{self.status} with a body that is not a JSON object: {start!r}")
        return document


@dataclass(frozen=True, slots=True)
class OpenAnswer:
    """An HTTP answer whose body is still being read. pieces: raises NoAnswer if the body is cut off."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request to any host that needs no API key, and gets none. Raises NoAnswer for a URL that is not of
    HTTP: a dispatcher's answer must not make the client open its own files."""

    method: str
    url: str
    headers: Mapping[str, str]

    def __post_init__(self) -> None:
        if not _is_http_url(self.url):
            raise NoAnswer(f"the dispatcher gave no http(s) URL of a file: {self.url!r:.200}")


@dataclass(frozen=True, slots=True)
class FilePart:
    """Bytes of a file as a request's body. first: position of the first one. on_progress: is called with the
    position in the file behind the bytes that were read, and `of`."""

    path: Path
    first: int
    length: int
    on_progress: Callable[[int, int], None] | None = None
    of: int = 0

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes. Raises EOFError if the file became shorter."""
        left = self.length
        with self.path.open("rb") as file:
            file.seek(self.first)
            while left:
                chunk = file.read(min(_FILE_CHUNK_BYTES, left))
                if not chunk:
                    raise EOFError(f"{self.path} became shorter while it was sent")
                left -= len(chunk)
                yield chunk
                if self.on_progress is not None:
                    self.on_progress(self.first + self.length - left, self.of)


class Transport(ABC):
    """The I/O of a client with one API key. max_answer_bytes: a longer answer raises AnswerTooLarge.

    Proxies come from the environment, as usual in Python."""

    def __init__(self, url: str, api_key: str, *, max_answer_bytes: int = MAX_ANSWER_BYTES) -> None:
        if not _is_http_url(url):
            raise ValueError(f"the dispatcher's URL must be http(s)://host[:port], not {url!r}")
        if urlsplit(url).path.rstrip("/").endswith("/api/v1"):
            raise ValueError(f"the client adds /api/v1 itself: give the URL without it, not {url!r}")
        if not (api_key.isascii() and api_key.isprintable()):
            raise ValueError("an API key must be printable ASCII")
        self.root = url.rstrip("/") + "/api/v1"
        self.max_answer_bytes = max_answer_bytes
        self._authorization = f"Bearer {api_key}"

    async def request(self, request: Request) -> Answer:
        """Send a request and return the answer. Raises NoAnswer, AnswerTooLarge."""
        began = time.monotonic()
        async with self.opened(request) as answer:
            body = await self.whole_body(answer, request.timeout_seconds, began)
            return Answer(answer.status, answer.headers, body)

    async def whole_body(self, answer: OpenAnswer, timeout_seconds: float, began: float) -> bytes:
        """Return the body of an answer. began: monotonic time of its request. Raises NoAnswer,
        AnswerTooLarge."""
        until = began + timeout_seconds
        pieces, size = [], 0
        async for piece in answer.pieces:
            pieces.append(piece)
            size += len(piece)
            if size > self.max_answer_bytes:
                raise AnswerTooLarge(self.max_answer_bytes)
            if time.monotonic() > until:
                raise NoAnswer(f"the answer was not complete after {timeout_seconds:g} s")
        return b"".join(pieces)

    @abstractmethod
    def opened(self, request: Request) -> AbstractAsyncContextManager[OpenAnswer]:
        """Send a request; yield the answer with its body unread. Raises NoAnswer."""

    @abstractmethod
    def opened_at(
        self, signed: SignedRequest, timeout_seconds: float, body: FilePart | None = None
    ) -> AbstractAsyncContextManager[OpenAnswer]:
        """Send a signed request, without the API key; yield the answer with its body unread.

        timeout_seconds: of each step. Raises NoAnswer."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...

    @abstractmethod
    async def use_files(self, work: Callable[[RunCall], T]) -> T:
        """Return the result of code that blocks on files. `work` gets a function that runs calls of this
        transport."""

    def headers_of(self, request: Request) -> dict[str, str]:
        """Return all headers of a request."""
        content = {} if request.body is None else {"Content-Type": "application/json"}
        return {
            "Accept": "application/json",
            "Accept-Encoding": "identity",  # so that max_answer_bytes bounds memory too
            "Authorization": self._authorization,
            **content,
            **request.headers,
        }


def _is_http_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:  # such as an open bracket
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc)


RunCall = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a call from code that is not async, and returns its result."""


_KEY = re.compile(r"[\x21-\x7e]{1,255}\Z")


def key_of_request(given: Any) -> str:
    """Return an idempotency key: the given one, or a new one for None. Raises ValueError."""
    if given is not None and not _KEY.match(given):
        raise ValueError("an idempotency key has 1 to 255 printable ASCII characters without spaces")
    return given or uuid.uuid4().hex


FIRST_PAUSE_SECONDS = 0.25
MAX_PAUSE_SECONDS = 10.0
MAX_RETRY_AFTER_SECONDS = 30.0
"""A longer Retry-After is not obeyed: it may be wrong."""


def pause_seconds(
    tries: int, requested: float | None = None, chance: Callable[[], float] = random.random
) -> float:
    """Return the pause after so many tries, with jitter.

    requested: a server's Retry-After; the pause is at least that and up to half as much again, so that
    clients that were rejected together don't return together."""
    if requested is not None and requested > 0:
        return min(requested, MAX_RETRY_AFTER_SECONDS) * (1 + chance() / 2)
    longest: float = min(FIRST_PAUSE_SECONDS * 2 ** min(tries - 1, 16), MAX_PAUSE_SECONDS)
    return longest * (1 + chance()) / 2


def pause_after(error: DispatcherError, tries: int) -> float:
    """Return the pause after an error."""
    requested = error.retry_after_seconds if isinstance(error, Unavailable) else None
    if isinstance(error, Unavailable) and error.status == 429 and error.is_documented and requested:
        return requested * (1 + random.random() / 10)  # exact: a quota ends at midnight
    return pause_seconds(tries, requested)


class Progress:
    """The time at which bytes of a transfer last moved, from which `retry_seconds` count.

    most_tries: number of tries whose progress counts, for a transfer that each try begins again."""

    def __init__(self, most_tries: float = math.inf) -> None:
        self._tries_left = most_tries
        self._moved_at: float | None = None

    def moved(self) -> None:
        self._moved_at = time.monotonic()

    def of_try(self) -> float | None:
        """Return when bytes last moved in the try that has ended; None if no byte moved, or if the progress
        of `most_tries` has been counted."""
        at, self._moved_at = self._moved_at, None
        if at is None or self._tries_left < 1:
            return None
        self._tries_left -= 1
        return at


async def call_with_retries(
    once: Callable[[], Awaitable[T]],
    *,
    retry_seconds: float,
    sleep: Callable[[float], Awaitable[None]],
    progress: Progress | None = None,
) -> T:
    """Call `once` until it returns. Raises its last NoAnswer or Unavailable `retry_seconds` after the first
    try, or after the last progress; other errors at once."""
    until = time.monotonic() + retry_seconds
    tries = 0
    while True:
        tries += 1
        try:
            return await once()
        except (NoAnswer, Unavailable) as error:
            if progress is not None and (moved_at := progress.of_try()) is not None:
                until, tries = moved_at + retry_seconds, 1
            pause = pause_after(error, tries)
            if time.monotonic() + pause > until:
                raise
        await sleep(pause)
