"""``python -m benchmarks.suite.http_load``: clients that post, in a process of their own.

Orders come on stdin, one JSON object a line: ``{"do": "closed" | "open", "url", "headers", "body",
"connections", "seconds", "rate"}``; the answer says how long each took that was answered as wanted (seconds),
what else came, and how late each request of an open loop left.

closed: each connection posts again as soon as it was answered, `connections` of them. open: requests become
due at random moments, `rate` a second in the mean, whatever became of those before; the time counts from the
moment a request was due, so that a server that stalls is charged for everybody who would have come meanwhile.
It is charged for our own lateness too, on a machine that both of us share: therefore that is told.

It costs little (one event loop, no client library), because it shares the machine with what it measures.
Standard library only.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

_HEAD_END = b"\r\n\r\n"
_PATIENCE_SECONDS = 30.0


class HangsUp(Exception):
    """The server closed the connection."""


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self._heard = b""
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(HangsUp())

    def data_received(self, data: bytes) -> None:
        self._heard += data
        end = self._heard.find(_HEAD_END)
        if end < 0:
            return
        head = self._heard[:end].lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].partition(b"\r\n")[0]) if at >= 0 else 0
        if at < 0 and not self._heard.endswith(b"0\r\n\r\n"):  # chunked
            return
        if len(self._heard) - end - 4 >= length:
            self._heard = b""
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(int(head[9:12]))

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    async def post(self, request: bytes) -> int:
        """The status. Raises HangsUp, TimeoutError."""
        if self._transport is None:
            raise HangsUp
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await asyncio.wait_for(self._answer, _PATIENCE_SECONDS)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


@dataclass(slots=True)
class Load:
    """host, port, request: whom to send what."""

    host: str
    port: int
    request: bytes
    took: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    other: Counter[str] = field(default_factory=Counter)
    idle: list[Connection] = field(default_factory=list)

    async def connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, self.host, self.port)
        return connection

    async def post(self, connection: Connection, due: float) -> None:
        try:
            status = await connection.post(self.request)
        except (HangsUp, TimeoutError) as error:
            connection.close()
            self.other[type(error).__name__] += 1
            return
        if 200 <= status < 300:
            self.took.append(time.monotonic() - due)
        else:
            self.other[str(status)] += 1

    async def closed(self, connections: int, seconds: float, most: int = 0) -> None:
        """most: requests in all, however much time is left; 0 for no such limit."""
        until, sent = time.monotonic() + seconds, 0

        async def go_on() -> None:
            nonlocal sent
            connection = await self.connect()
            while (now := time.monotonic()) < until and not (most and sent >= most):
                sent += 1
                await self.post(connection, now)
                if not connection.is_open:
                    connection = await self.connect()
            connection.close()

        await asyncio.gather(*(go_on() for _ in range(connections)))

    async def open(self, rate: float, seconds: float) -> None:
        chance = random.Random(1)
        under_way: set[asyncio.Task[None]] = set()
        due = begin = time.monotonic()
        while due - begin < seconds:
            pause = due - time.monotonic()
            if pause > 0:
                await asyncio.sleep(pause)
            task = asyncio.ensure_future(self._one(due))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            due += chance.expovariate(rate)
        if under_way:
            await asyncio.wait(under_way)
        for connection in self.idle:
            connection.close()

    async def _one(self, due: float) -> None:
        connection = self.idle.pop() if self.idle else await self.connect()
        if not connection.is_open:
            connection = await self.connect()
        self.late.append(time.monotonic() - due)
        await self.post(connection, due)
        if connection.is_open:
            self.idle.append(connection)


async def obey(order: dict[str, Any]) -> dict[str, Any]:
    parts = urlsplit(order["url"])
    body = order["body"].encode()
    lines = [f"POST {parts.path} HTTP/1.1", f"Host: {parts.netloc}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in order["headers"].items()]
    request = ("\r\n".join(lines) + "\r\n\r\n").encode() + body
    load = Load(parts.hostname or "", parts.port or 80, request)
    begin = time.monotonic()
    if order["do"] == "closed":
        await load.closed(order["connections"], order["seconds"], order.get("most", 0))
    else:
        await load.open(order["rate"], order["seconds"])
    seconds = time.monotonic() - begin
    return {"took": load.took, "late": load.late, "other": dict(load.other), "seconds": seconds}


def main() -> None:
    _say({})
    for line in sys.stdin:
        _say(asyncio.run(obey(json.loads(line))))


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
