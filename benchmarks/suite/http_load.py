"""``python -m benchmarks.suite.http_load``: a load generator for POSTs, in a process of its own.

Orders come on stdin, one JSON object a line: ``{"do": "closed" | "open", "url", "headers", "body",
"connections", "seconds", "rate"}``; the answer has the seconds of each request that was answered as expected,
counts of all other answers, and how late each request of an open loop was sent.

closed: each of `connections` posts again as soon as it was answered. open: requests become due at random
moments, `rate` a second on average, independent of earlier answers; the time counts from the moment a request
was due, so that a stalled server is charged for all requests of that time. Lateness of this process counts
too, on a machine that both share: therefore it is reported.

It costs little (one event loop, no client library), because it shares the machine with the system under test.
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
_WAIT_SECONDS = 30.0


class ConnectionClosed(Exception):
    """The server closed the connection."""


class Connection(asyncio.Protocol):
    """A connection for one request at a time."""

    def __init__(self) -> None:
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionClosed())

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(_HEAD_END)
        if end < 0:
            return
        head = self._received[:end].lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].partition(b"\r\n")[0]) if at >= 0 else 0
        if at < 0 and not self._received.endswith(b"0\r\n\r\n"):  # chunked
            return
        if len(self._received) - end - 4 >= length:
            self._received = b""
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(int(head[9:12]))

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    async def post(self, request: bytes) -> int:
        """Send a request; return the status. Raises ConnectionClosed, TimeoutError."""
        if self._transport is None:
            raise ConnectionClosed
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await asyncio.wait_for(self._answer, _WAIT_SECONDS)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


@dataclass(slots=True)
class Load:
    """The connections and counts of one order. host, port, request: the target and the bytes to send."""

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
        """Send one request and record its outcome."""
        try:
            status = await connection.post(self.request)
        except (ConnectionClosed, TimeoutError) as error:
            connection.close()
            self.other[type(error).__name__] += 1
            return
        if 200 <= status < 300:
            self.took.append(time.monotonic() - due)
        else:
            self.other[str(status)] += 1

    async def closed(self, connections: int, seconds: float, most: int = 0) -> None:
        """Post on each connection again and again. most: limit of requests in all; 0 for none."""
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
        """Post at random moments, independent of answers."""
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


async def execute(order: dict[str, Any]) -> dict[str, Any]:
    """Carry out an order; return its figures."""
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
        _say(asyncio.run(execute(json.loads(line))))


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
