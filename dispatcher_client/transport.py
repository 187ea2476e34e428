"""One HTTP request, and when to try it again. Whatever goes wrong on the way is NoAnswer; whatever the
server says is an Answer."""

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
    """headers: names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json_object(self) -> dict[str, Any]:
        """Raises NoAnswer: half an answer, or somebody else's."""
        try:
            told = read_json(self.body)
        except ValueError:
            told = None
        if not isinstance(told, dict):
            start = self.body[:80].decode(errors="replace")
            raise NoAnswer(f"{self.status} with a body that is no JSON object: {start!r}")
        return told


class _EveryStatus(urllib.request.HTTPErrorProcessor):
    """No status is an error, and no redirect is followed: it would take the key to another host."""

    def http_response(
        self, request: urllib.request.Request, response: http.client.HTTPResponse
    ) -> http.client.HTTPResponse:
        return response

    https_response = http_response


class Http:
    """Safe to share between threads. Proxies come from the environment, as everywhere in Python."""

    def __init__(self, url: str, api_key: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError(f"the dispatcher's URL is http(s)://host[:port], not {url!r}")
        if not (api_key.isascii() and api_key.isprintable()):
            raise ValueError("an API key is printable ASCII")
        self._root = url.rstrip("/") + "/api/v1"
        self._authorization = f"Bearer {api_key}"
        self._opener = urllib.request.build_opener(_EveryStatus)

    def ask(
        self,
        method: str,
        path: str,
        *,
        timeout_seconds: float,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """timeout_seconds: for each step and for reading the answer as a whole. Raises NoAnswer."""
        until = time.monotonic() + timeout_seconds
        given = dict(headers or {})
        if body is not None:
            given["Content-Type"] = "application/json"
        with (
            self.opened(method, path, timeout_seconds=timeout_seconds, headers=given, body=body) as response,
            no_answer_if_broken(),
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
        """Its status and headers are there, its body is yet to be read. Raises NoAnswer."""
        request = urllib.request.Request(
            self._root + path,
            method=method,
            data=None if body is None else json.dumps(body, allow_nan=False).encode(),
            headers={"Accept": "application/json", "Authorization": self._authorization, **headers},
        )
        with no_answer_if_broken():
            response = self._opener.open(request, timeout=timeout_seconds)
        try:
            yield response
        finally:
            response.close()


@contextmanager
def no_answer_if_broken() -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswer(f"{type(error).__name__}: {error}") from error


def lower_case(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 10.0
LONGEST_RETRY_AFTER_SECONDS = 30.0
"""What a server asks for beyond this is not obeyed: it may be wrong."""

T = TypeVar("T")


def pause_seconds(
    tries: int, asked_for: float | None = None, chance: Callable[[], float] = random.random
) -> float:
    """After so many tries. Never less than the server asked for, and up to half as much again, so that
    clients that were turned away together don't come back together."""
    if asked_for is not None and asked_for > 0:
        return min(asked_for, LONGEST_RETRY_AFTER_SECONDS) * (1 + chance() / 2)
    longest: float = min(FIRST_PAUSE_SECONDS * 2 ** min(tries - 1, 16), LONGEST_PAUSE_SECONDS)
    return longest * (1 + chance()) / 2


def pause_after(error: DispatcherError, tries: int) -> float:
    asked_for = error.retry_after_seconds if isinstance(error, Unavailable) else None
    if isinstance(error, Unavailable) and error.status == 429 and error.is_documented and asked_for:
        return asked_for * (1 + random.random() / 10)  # the dispatcher knows when: a quota ends at midnight
    return pause_seconds(tries, asked_for)


def insist(once: Callable[[], T], *, retry_seconds: float) -> T:
    """Calls it until it returns; no try begins later than `retry_seconds`. Raises what the last try raised:
    NoAnswer or Unavailable then, any other error at once."""
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
