"""The blocking transport, with the standard library alone. Its `async` functions block where others would be
suspended, so `run_blocking` runs a call in one step and needs no event loop."""

from __future__ import annotations

import http.client
import json
import time
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar, cast

from .errors import NoAnswer
from .transport import MAX_ANSWER_BYTES, FilePart, OpenAnswer, Request, RunCall, SignedRequest, Transport

_PIECE_BYTES = 65536

T = TypeVar("T")


class UrllibTransport(Transport):
    """Thread-safe; keeps no connection."""

    def __init__(self, url: str, api_key: str, *, max_answer_bytes: int = MAX_ANSWER_BYTES) -> None:
        super().__init__(url, api_key, max_answer_bytes=max_answer_bytes)
        self._opener = urllib.request.build_opener(_EveryStatus)

    @asynccontextmanager
    async def opened(self, request: Request) -> AsyncIterator[OpenAnswer]:
        sent = urllib.request.Request(
            self.root + request.path,
            method=request.method,
            data=None if request.body is None else json.dumps(request.body, allow_nan=False).encode(),
            headers=self.headers_of(request),
        )
        with _as_no_answer():
            response = self._opener.open(sent, timeout=request.timeout_seconds)
        try:
            headers = {name.lower(): value for name, value in response.getheaders()}
            yield OpenAnswer(response.status, headers, _pieces(response))
        finally:
            response.close()

    @asynccontextmanager
    async def opened_at(
        self, signed: SignedRequest, timeout_seconds: float, body: FilePart | None = None
    ) -> AsyncIterator[OpenAnswer]:
        headers = {**signed.headers, "Accept-Encoding": "identity"}
        data = None
        if body is not None:
            data = body.chunks() if body.length else b""
            headers.setdefault("Content-Type", "application/octet-stream")
        sent = urllib.request.Request(signed.url, method=signed.method, data=data, headers=headers)
        with _as_no_answer():
            response = self._opener.open(sent, timeout=timeout_seconds)
        try:
            named = {name.lower(): value for name, value in response.getheaders()}
            yield OpenAnswer(response.status, named, _pieces(response))
        finally:
            response.close()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def use_files(self, work: Callable[[RunCall], T]) -> T:
        return work(run_blocking)


async def _pieces(response: http.client.HTTPResponse) -> AsyncIterator[bytes]:
    with _as_no_answer():
        while piece := response.read1(_PIECE_BYTES):
            yield piece
    if response.length:
        raise NoAnswer(f"the answer was cut off: {response.length} bytes are missing")


class _EveryStatus(urllib.request.HTTPErrorProcessor):
    """Returns every status as an answer, and follows no redirect: it would send the key to another host."""

    def http_response(
        self, request: urllib.request.Request, response: http.client.HTTPResponse
    ) -> http.client.HTTPResponse:
        return response

    https_response = http_response


@contextmanager
def _as_no_answer() -> Iterator[None]:
    """Turn network errors in the block into NoAnswer."""
    try:
        yield
    except (OSError, EOFError, http.client.HTTPException) as error:
        raise NoAnswer(f"{type(error).__name__}: {error}") from error


def run_blocking(call: Awaitable[T]) -> T:
    """Return the result of a call over a blocking transport."""
    steps = call.__await__()
    try:
        next(steps)
    except StopIteration as ended:
        return cast("T", ended.value)
    raise RuntimeError("a call over a blocking transport was suspended")


def iterate_blocking(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yield the items of an async generator over a blocking transport."""
    try:
        while True:
            try:
                item = run_blocking(anext(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        run_blocking(items.aclose())
