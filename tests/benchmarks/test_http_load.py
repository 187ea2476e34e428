"""The load generator: its counts, and an open loop that waits for no answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from benchmarks.suite.http_load import Connection, Load, execute

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ANSWER = b"HTTP/1.1 %d X\r\nContent-Length: 2\r\n\r\n{}"


def load(serve: Serve, **order: object) -> dict:
    async def run() -> dict:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            return await execute(
                {"url": f"http://127.0.0.1:{port}/submit", "headers": {"A": "b"}, "body": "{}", **order}
            )

    return asyncio.run(run())


def answering(*statuses: int) -> tuple[Serve, list[bytes]]:
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.read(65536):
            heard.append(head)
            writer.write(ANSWER % statuses[min(len(heard), len(statuses)) - 1])

    return serve, heard


def test_a_closed_loop_continues_and_counts_refusals():
    serve, heard = answering(202, 503, 202)
    found = load(serve, do="closed", connections=1, seconds=60.0, most=5)
    assert found["other"] == {"503": 1}
    assert (len(found["took"]), len(heard)) == (4, 5)
    assert (
        heard[0]
        == b"POST /submit HTTP/1.1\r\nHost: %s\r\nContent-Length: 2\r\nA: b\r\n\r\n{}"
        % (heard[0].split(b"Host: ")[1].split(b"\r\n")[0])
    )


def test_a_closed_loop_ends_when_its_time_is_up():
    serve, heard = answering(202)
    found = load(serve, do="closed", connections=3, seconds=0.01)
    assert len(found["took"]) == len(heard)


def test_closed_connections_are_counted_and_reopened():
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.close()

    found = load(serve, do="closed", connections=2, seconds=60.0, most=6)
    assert (found["took"], found["other"]) == ([], {"ConnectionClosed": 6})


def test_an_open_loop_does_not_wait_for_missing_answers():
    stalled = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        asyncio.get_running_loop().call_later(0.3, stalled.set)
        await stalled.wait()  # the first ones wait for one another: none is answered before
        writer.write(ANSWER % 202)

    found = load(serve, do="open", rate=200.0, seconds=0.1)
    assert max(found["took"]) >= 0.29
    assert len(found["took"]) > 5  # it did not wait for the first one before it sent the others


def test_an_open_loop_reports_how_late_its_requests_were_sent(monkeypatch):
    """Connecting takes time here: the server is charged for that, too."""
    serve, heard = answering(202)
    connect = Load.connect

    async def slowly(self: Load) -> Connection:
        await asyncio.sleep(0.1)
        return await connect(self)

    monkeypatch.setattr(Load, "connect", slowly)
    found = load(serve, do="open", rate=100.0, seconds=0.05)
    assert len(found["late"]) == len(found["took"]) == len(heard)
    assert max(found["took"]) > max(found["late"]) > 0.09
