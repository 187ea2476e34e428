"""The transport for asyncio, with httpx (`pip install 'gpu-dispatcher-client[async]'`)."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import httpx

from .errors import NoAnswer
from .transport import MAX_ANSWER_BYTES, FilePart, OpenAnswer, Request, RunCall, SignedRequest, Transport

T = TypeVar("T")


class HttpxTransport(Transport):
    """For one event loop. Keeps connections until `close`."""

    def __init__(self, url: str, api_key: str, *, max_answer_bytes: int = MAX_ANSWER_BYTES) -> None:
        super().__init__(url, api_key, max_answer_bytes=max_answer_bytes)
        # each job that is waited for or streamed occupies a connection
        self._client = httpx.AsyncClient(limits=httpx.Limits(max_keepalive_connections=20))

    @asynccontextmanager
    async def opened(self, request: Request) -> AsyncIterator[OpenAnswer]:
        async with self._answer_to(
            request.method,
            self.root + request.path,
            content=None if request.body is None else json.dumps(request.body, allow_nan=False).encode(),
            headers=self.headers_of(request),
            timeout=request.timeout_seconds,
        ) as answer:
            yield answer

    @asynccontextmanager
    async def opened_at(
        self, signed: SignedRequest, timeout_seconds: float, body: FilePart | None = None
    ) -> AsyncIterator[OpenAnswer]:
        async with self._answer_to(
            signed.method,
            signed.url,
            content=None if body is None else _file_chunks(body),
            headers={**signed.headers, "Accept-Encoding": "identity"},
            timeout=timeout_seconds,
        ) as answer:
            yield answer

    @asynccontextmanager
    async def _answer_to(self, method: str, url: str, **parts: Any) -> AsyncIterator[OpenAnswer]:
        """Send a request; close its answer at the end. parts: of `httpx.AsyncClient.build_request`."""
        with _as_no_answer():
            sent = self._client.build_request(method, url, **parts)
            response = await self._client.send(sent, stream=True, follow_redirects=False)
        try:
            headers = {name.lower(): value for name, value in response.headers.items()}
            yield OpenAnswer(response.status_code, headers, _pieces(response))
        finally:
            await response.aclose()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def use_files(self, work: Callable[[RunCall], T]) -> T:
        loop, is_cancelled = asyncio.get_running_loop(), threading.Event()

        def run(call: Coroutine[Any, Any, Any]) -> Any:
            if is_cancelled.is_set():
                call.close()
                raise NoAnswer("cancelled")
            return asyncio.run_coroutine_threadsafe(call, loop).result()

        try:
            return await asyncio.to_thread(work, run)
        finally:
            is_cancelled.set()

    async def close(self) -> None:
        await self._client.aclose()


async def _file_chunks(part: FilePart) -> AsyncIterator[bytes]:
    """The file is read in a thread, a piece at a time."""
    chunks = part.chunks()
    while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
        yield chunk


async def _pieces(response: httpx.Response) -> AsyncIterator[bytes]:
    with _as_no_answer():
        async for piece in response.aiter_raw():
            yield piece


@contextmanager
def _as_no_answer() -> Iterator[None]:
    """Turn network errors in the block into NoAnswer."""
    try:
        yield
    except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError, EOFError) as error:
        raise NoAnswer(f"{type(error).__name__}: {error}") from error
