"""``python -m benchmarks.suite.gpu_server PORT``: the simulated GPU server that every contender works on.

Results are judged by its log, so it must cost little and record exactly when a slot was taken and freed: one
thread, one event loop, nothing written while jobs run. (The node of `gpu_host/node` takes a thread for each
connection.)

    POST /run…       {"job": 7, "seconds": 0.02}: takes a slot, answers when the time is over
    POST /apart      as /run, the answer's head and body in two pieces, as Python's `http.server` sends them
    POST /async…     the same, answers at once; GET /status/<job> returns its state
    POST /callback   a dispatcher's callback, logged with its time
    GET  /health     as docs/reference/gpu_protocol.md has it

A request without a free slot gets 503 and is counted. While the gate is shut a run takes its slot and waits;
its time begins when the gate opens: so contenders are warm and their queues are full before the clock runs.
Orders come on stdin, one JSON object a line, each answered by one line (`gpu.py`). Standard library.

A run gets the slot that has been free for longest: the same for contenders that name slots and for those that
don't.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections import deque
from typing import Any

_OK, _ACCEPTED, _BUSY, _UNKNOWN = b"200 OK", b"202 Accepted", b"503 Busy", b"404 Not Found"
_HEAD_END = b"\r\n\r\n"


class GpuServer:
    """Slots, gate and log."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._boot_id = os.urandom(8).hex()
        self.reset(slots=1, gate=False)

    # -- orders ------------------------------------------------------------------------------------------

    def reset(self, *, slots: int, gate: bool) -> None:
        """Start a new log. gate: shut."""
        self._slots = slots
        self._free: deque[int] = deque(range(slots))
        self._gate_shut = gate
        self._held: list[tuple[list[Any], float, _Connection | None]] = []
        self._runs: list[list[Any]] = []
        self._active: dict[str, tuple[str, str]] = {}
        self._ended: dict[str, bool] = {}
        self._refused = self._count_ended = self._polls = 0
        self._callbacks: list[tuple[str, float]] = []

    def execute(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carry out an order; return its answer."""
        what = order["do"]
        if what == "begin":
            self.reset(slots=order["slots"], gate=order["gate"])
        elif what == "open":
            self._open_gate()
        elif what == "log":
            return {"runs": self._runs, "refused": self._refused, "callbacks": self._callbacks}
        return {
            "held": len(self._held),
            "began": len(self._runs),
            "ended": self._count_ended,
            "callbacks": len(self._callbacks),
            "polls": self._polls,
        }

    def _open_gate(self) -> None:
        self._gate_shut = False
        now = time.monotonic()
        for line, seconds, connection in self._held:
            line[1] = now
            self._loop.call_later(seconds, self._end, line, connection)
        self._held.clear()

    # -- requests ----------------------------------------------------------------------------------------

    def answer(self, connection: _Connection, head: bytes, body: bytes) -> None:
        """Answer one request."""
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0]
        if method == b"POST" and path.startswith((b"/run", b"/apart", b"/async")):
            if path.startswith(b"/apart"):
                connection.write_separately()
            self._run(connection, head, body, at_once=path.startswith(b"/async"))
        elif method == b"POST" and path.startswith(b"/callback"):
            self._callbacks.append((json.loads(body).get("job_id", ""), time.monotonic()))
            connection.send(_OK, b"{}")
        elif method == b"GET" and path.startswith(b"/status/"):
            self._status(connection, path[8:].decode())
        elif path.startswith(b"/health"):
            connection.send(_OK, json.dumps(self._health()).encode())
        elif path.startswith(b"/cancel"):
            connection.send(_OK, b'{"status": "not_running", "running": false}')
        else:
            connection.send(_UNKNOWN, b"{}")

    def _run(self, connection: _Connection, head: bytes, body: bytes, *, at_once: bool) -> None:
        if not self._free:
            self._refused += 1
            connection.send(_BUSY, b'{"status": "busy"}')
            return
        order = json.loads(body)
        name = _header(head, b"x-job-id") or str(order["job"])
        line: list[Any] = [order["job"], time.monotonic(), 0.0, self._free.popleft(), name]
        self._runs.append(line)
        self._active[name] = name, _header(head, b"x-attempt")
        heard_by = None if at_once else connection
        if self._gate_shut:
            self._held.append((line, order["seconds"], heard_by))
        else:
            self._loop.call_later(order["seconds"], self._end, line, heard_by)
        if at_once:
            self._ended[name] = False
            connection.send(_ACCEPTED, json.dumps({"status": "processing", "job_id": name}).encode())

    def _end(self, line: list[Any], connection: _Connection | None) -> None:
        line[2] = time.monotonic()
        self._count_ended += 1
        self._free.append(line[3])  # free before the answer is sent: the next job may follow at once
        self._active.pop(line[4], None)
        if connection is None:
            self._ended[line[4]] = True
        else:
            connection.send(_OK, b'{"status": "success", "result": {"job": %d}}' % line[0])

    def _status(self, connection: _Connection, name: str) -> None:
        self._polls += 1
        state = self._ended.get(name)
        if state is None:
            connection.send(_UNKNOWN, b"{}")
        elif state:
            connection.send(_OK, b'{"status": "success", "result": {}}')
        else:
            connection.send(_OK, b'{"status": "processing"}')

    def _health(self) -> dict[str, Any]:
        return {
            "status": "ok",
            "active_jobs": len(self._active),
            "max_concurrent": self._slots,
            "direct_queue": 0,
            "boot_id": self._boot_id,
            "jobs": [{"job_id": job, "attempt": attempt} for job, attempt in self._active.values()],
        }


class _Connection(asyncio.Protocol):
    """HTTP/1.1 with Content-Length and persistent connections: all that the contenders use."""

    def __init__(self, server: GpuServer) -> None:
        self._server = server
        self._received = b""
        self._apart = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(_HEAD_END)) >= 0:
            head = self._received[:end]
            whole = end + 4 + int(_header(head, b"content-length") or 0)
            if len(self._received) < whole:
                return
            body, self._received = self._received[end + 4 : whole], self._received[whole:]
            self._server.answer(self, head, body)

    def write_separately(self) -> None:
        """Send head and body separately from now on, with Nagle's algorithm, which asyncio turns off."""
        if self._transport is not None:
            self._apart = True
            open_socket: socket.socket = self._transport.get_extra_info("socket")
            open_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)

    def send(self, status: bytes, body: bytes) -> None:
        if self._transport is None:
            return
        head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (
            status,
            len(body),
        )
        if self._apart:
            self._transport.write(head)
            self._transport.write(body)
        else:
            self._transport.write(head + body)


def _header(head: bytes, name: bytes) -> str:
    at = head.lower().find(b"\r\n" + name + b":")
    if at < 0:
        return ""
    value = head[at + len(name) + 3 :].partition(b"\r\n")[0]
    return value.strip().decode("latin-1")


async def serve(port: int) -> None:
    """Serve until stdin ends."""
    loop = asyncio.get_running_loop()
    server = GpuServer(loop)
    listener = await loop.create_server(lambda: _Connection(server), "127.0.0.1", port, backlog=2048)
    orders = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    _say({"port": port})
    while line := await orders.readline():
        _say(server.execute(json.loads(line)))
    listener.close()


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
