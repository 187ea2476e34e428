"""An `AsyncClient` with the blocking methods of `Client`, so that one test proves both."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from dispatcher_client import AsyncClient


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="client loop", daemon=True)
        self._thread.start()

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def close(self) -> None:
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()


class InLoop:
    def __init__(self, client: Any, loop: Loop) -> None:
        self._client = client
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if not callable(method):
            return InLoop(method, self._loop)

        def call(*arguments: Any, **options: Any) -> Any:
            called = method(*arguments, **options)
            return self._iterate(called) if inspect.isasyncgen(called) else self._loop.run(called)

        return call

    def _iterate(self, items: AsyncGenerator[Any, None]) -> Iterator[Any]:
        async def following() -> list[Any]:
            """The next item; none at the end."""
            return [item async for item in _first(items)]

        while item := self._loop.run(following()):
            yield item[0]


async def _first(items: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    try:
        yield await anext(items)
    except StopAsyncIteration:
        return


@contextmanager
def blocking_clients() -> Iterator[Any]:
    """Yields a function that makes clients, which are closed at the end."""
    loop, made = Loop(), []

    def new(*arguments: Any, **options: Any) -> InLoop:
        made.append(AsyncClient(*arguments, **options))
        return InLoop(made[-1], loop)

    try:
        yield new
    finally:
        for client in made:
            loop.run(client.close())
        loop.close()
