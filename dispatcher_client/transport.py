"""One HTTP request, and its retries. Any failure without an answer is NoAnswer; any answer is an Answer."""

from __future__ import annotations

import http.client
import json
import random
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from .errors import DispatcherError, NoAnswer, Unavailable, read_json

_PIECE_BYTES = 65536


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


class _EveryStatus(urllib.request.HTTPErrorProcessor):
    """Returns every status as an answer, and follows no redirect: it would send the key to another host."""

    def http_response(
        self, request: urllib.request.Request, response: http.client.HTTPResponse
    ) -> http.client.HTTPResponse:
        return response

    https_response = http_response


class Http:
    """Sends requests. Thread-safe. Proxies come from the environment, as usual in Python."""

    def __init__(self, url: str, api_key: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError(f"the dispatcher's URL must be http(s)://host[:port], not {url!r}")
        if not (api_key.isascii() and api_key.isprintable()):
            raise ValueError("an API key must be printable ASCII")
        self._root = url.rstrip("/") + "/api/v1"
        self._authorization = f"Bearer {api_key}"
        self._opener = urllib.request.build_opener(_EveryStatus)

    def request(
        self,
        method: str,
        path: str,
        *,
        timeout_seconds: float,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request and return the answer. Raises NoAnswer.

        timeout_seconds: of each step, and of reading the whole answer."""
        until = time.monotonic() + timeout_seconds
        given = dict(headers or {})
        if body is not None:
            given["Content-Type"] = "application/json"
        with (
            self.opened(method, path, timeout_seconds=timeout_seconds, headers=given, body=body) as response,
            as_no_answer(),
        ):
            pieces = []
            while piece := response.read1(_PIECE_BYTES):
                pieces.append(piece)
                if time.monotonic() > until:
                    raise NoAnswer(f"the answer was not complete after {timeout_seconds:g} s")
            if response.length:
                raise NoAnswer(f"the answer was cut off: {response.length} bytes are missing")
            return Answer(response.status, lower_case(response), b"".join(pieces))

    @contextmanager
    def opened(
        self,
        method: str,
        path: str,
        *,
        timeout_seconds: float,
        headers: Mapping[str, str],
        body: Any = None,
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request; yield the response with status and headers, its body unread. Raises NoAnswer."""
        request = urllib.request.Request(
            self._root + path,
            method=method,
            data=None if body is None else json.dumps(body, allow_nan=False).encode(),
            headers={"Accept": "application/json", "Authorization": self._authorization, **headers},
        )
        with as_no_answer():
            response = self._opener.open(request, timeout=timeout_seconds)
        try:
            yield response
        finally:
            response.close()


@contextmanager
def as_no_answer() -> Iterator[None]:
    """Turn network errors in the block into NoAnswer."""
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswer(f"{type(error).__name__}: {error}") from error


def lower_case(response: http.client.HTTPResponse) -> dict[str, str]:
    """Return the headers with lower-case names."""
    return {name.lower(): value for name, value in response.getheaders()}


FIRST_PAUSE_SECONDS = 0.25
MAX_PAUSE_SECONDS = 10.0
MAX_RETRY_AFTER_SECONDS = 30.0
"""A longer Retry-After is not obeyed: it may be wrong."""

T = TypeVar("T")


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


def call_with_retries(once: Callable[[], T], *, retry_seconds: float) -> T:
    """Call `once` until it returns. Raises its last NoAnswer or Unavailable after `retry_seconds`; other
    errors at once."""
    until = time.monotonic() + retry_seconds
    tries = 0
    while True:
        tries += 1
        try:
            return once()
        except (NoAnswer, Unavailable) as error:
            pause = pause_after(error, tries)
            if time.monotonic() + pause > until:
                raise
        time.sleep(pause)
