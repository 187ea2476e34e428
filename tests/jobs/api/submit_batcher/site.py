"""Sends requests to the deployed ASGI site, with and without the submit batcher, on an event loop."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from a2wsgi import WSGIMiddleware

from dispatcher_project.web.asgi_gateway import AsgiGateway
from dispatcher_project.web.headers import Utf8Handler
from dispatcher_project.web.request_limits import ResponseDeadline, unless_given_up
from dispatcher_project.web.submit_batcher import SUBMIT, SubmitBatcher, SubmitHandler

JOB = {"model": "zimg", "payload": {"prompt": "a sunset"}}
_JOB_ID = re.compile(rb"[0-9A-HJKMNP-TV-Z]{26}")
BatchHandler = Callable[[Sequence[Any]], Any]


@dataclass(frozen=True)
class Ask:
    """A request. headers: added to those of every client; None removes one of these."""

    body: Any = field(default_factory=lambda: JOB)
    headers: Mapping[str, str | None] = field(default_factory=dict)
    method: str = "POST"
    path: str = SUBMIT
    query: bytes = b""
    more: Sequence[tuple[str, str]] = ()

    def raw(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()

    def scope(self, key: str) -> dict[str, Any]:
        raw = self.raw()
        named: dict[str, str | None] = {
            "host": "localhost",
            "authorization": f"Bearer {key}",
            "content-type": "application/json",
            "content-length": str(len(raw)),
            "user-agent": "a client",
            **self.headers,
        }
        fields = [(name, value) for name, value in named.items() if value is not None] + list(self.more)
        return {
            "type": "http", "method": self.method, "path": self.path, "raw_path": self.path.encode(),
            "query_string": self.query, "http_version": "1.1", "client": ("127.0.0.1", 5), "scheme": "http",
            "server": ("127.0.0.1", 80), "root_path": "",
            "headers": [(name.encode(), value.encode("latin1")) for name, value in fields],
        }  # fmt: skip


@dataclass
class Response:
    """One response."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)

    def plain(self) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """The response without values that differ per job; headers by name."""
        headers = sorted((name, _JOB_ID.sub(b"<id>", value)) for name, value in self.headers)
        return self.status, headers, _JOB_ID.sub(b"<id>", self.body)


class Site:
    """The site. handler: None: that of production. is_batching: False: without the batcher. limits: of the
    batcher."""

    def __init__(
        self,
        handler: BatchHandler | None = None,
        *,
        is_batching: bool = True,
        seconds: float = 60.0,
        **limits: int,
    ) -> None:
        self.viewed = 0
        self.groups: list[int] = []
        self.threads = WSGIMiddleware(cast("Any", unless_given_up(self._view)), workers=4)
        self._django = Utf8Handler()
        self._handler = handler or SubmitHandler()
        behind = cast("Any", self.threads)
        self.batcher = SubmitBatcher(behind, self._count, **limits) if is_batching else None
        self._gateway = AsgiGateway(
            ResponseDeadline(self.batcher or behind, seconds), lambda: cast("Any", None)
        )

    def ask(self, key: str, *asks: Ask) -> list[Response]:
        """Send all requests concurrently."""
        return asyncio.run(self._all([(key, ask) for ask in asks]))

    def ask_as(self, *asks: tuple[str, Ask]) -> list[Response]:
        """Send (key, request) pairs concurrently."""
        return asyncio.run(self._all(asks))

    def ask_in_turn(self, key: str, *waves: Sequence[Ask], then: Callable[[], Any]) -> list[Response]:
        """Send each wave after the responses to the previous one, call `then` after the last, and wait for
        the batch handlers."""

        async def all_waves() -> list[Response]:
            result = [one for wave in waves for one in await self._all([(key, ask) for ask in wave])]
            then()
            while self.batcher is not None and self.batcher._busy:
                await asyncio.sleep(0.01)
            return result

        return asyncio.run(all_waves())

    def close(self) -> None:
        self.threads.executor.shutdown()
        if self.batcher is not None:
            self.batcher.close()

    async def _all(self, asks: Sequence[tuple[str, Ask]]) -> list[Response]:
        return await asyncio.gather(*(self._one(key, ask) for key, ask in asks))

    async def _one(self, key: str, ask: Ask) -> Response:
        result, parts = Response(), [ask.raw()]

        async def receive() -> dict[str, Any]:
            if parts:
                return {"type": "http.request", "body": parts.pop(), "more_body": False}
            return await asyncio.Future()  # the client stays connected

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                result.status, result.headers = message["status"], list(message["headers"])
            result.body += message.get("body", b"")

        await asyncio.wait_for(self._gateway(ask.scope(key), receive, send), 60)
        return result

    def _count(self, group: Sequence[Any]) -> Any:
        self.groups.append(len(group))
        return self._handler(group)

    def _view(self, environ: Any, start_response: Any) -> Any:
        self.viewed += 1
        return self._django(environ, start_response)


def job(**more: Any) -> Ask:
    return Ask({**JOB, **more})


def with_headers(**headers: str | None) -> Ask:
    return Ask(headers={name.replace("_", "-"): value for name, value in headers.items()})
