"""``python -m verification.proving.proxy name=host:port …``: a TCP proxy that fails on request.

Prints ``{name: port}`` when it listens, then takes orders on stdin, one JSON object a line: ``{"do":
"silence", "name": …}``: no byte is forwarded any more, in either direction; connections stay, new ones are
accepted and stay silent; bytes buffered by the kernels flow on after ``heal``. ``cut``: every connection is
reset. ``close``: the same, and new ones are refused until ``heal``. ``aim``, with a ``port``: new connections
go to that port of this machine. ``slow``, with ``seconds``: each piece of bytes is forwarded so much later.
``hold``, with a ``request`` (regular expression of its first line) and ``bytes``: of the next such request so
many bytes are forwarded, and the others wait until ``forward_held``; ``held`` answers how many requests wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import struct
import sys
from typing import Any, cast

_RESET = struct.pack("ii", 1, 0)
_BUFFER_BYTES = 256 * 1024


class _Side(asyncio.Protocol):
    """One end of a connection; `peer` is the other."""

    def __init__(self, route: _Route, peer: _Side | None = None) -> None:
        self.route, self.peer = route, peer
        self.transport: asyncio.Transport | None = None
        self.is_caller = peer is None
        self.forwards: int | None = None
        """Bytes that a held request may still forward; None: it is not held."""
        self.choked = self.lost = False
        self.delayed = 0
        """Pieces of bytes that are not forwarded yet."""
        self._early, self.waiting = bytearray(), bytearray()
        self._due_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=_BUFFER_BYTES)
        self.route.sides.add(self)
        self.set_reading()
        if self.peer is None:
            self.route.tasks.add(task := asyncio.ensure_future(self._reach()))
            task.add_done_callback(self.route.tasks.discard)

    async def _reach(self) -> None:
        """Connect to the target for a new caller; a silent route connects later."""
        await self.route.open.wait()
        loop = asyncio.get_running_loop()
        try:
            _, peer = await loop.create_connection(lambda: _Side(self.route, self), *self.route.target)
        except OSError:
            self.abort()
            return
        self.peer = peer
        if self._early and peer.transport is not None:
            peer.transport.write(bytes(self._early))
            self._early.clear()
        peer.follow()
        self.set_reading()

    def data_received(self, data: bytes) -> None:
        if self.is_caller and self.route.should_hold(data):
            self.forwards = self.route.forwards
            self.route.held.append(self)
        if self.forwards is not None:
            data, rest = data[: self.forwards], data[self.forwards :]
            self.forwards -= len(data)
            self.waiting += rest
            if not self.forwards:
                self.set_reading()
        if data:
            self._pass_on(data)

    def forward_held(self) -> None:
        """Forward what a held request has sent, and all that follows."""
        self.forwards = None
        data, self.waiting = bytes(self.waiting), bytearray()
        if data:
            self._pass_on(data)
        self.set_reading()

    def _pass_on(self, data: bytes) -> None:
        if self.peer is not None and self.peer.transport is not None:
            if self.route.delay_seconds or self.delayed:
                self._forward_later(data)
            else:
                self.peer.transport.write(data)
        else:  # the first releases of Python 3.11 read on despite a pause in `connection_made`
            self._early += data

    def _forward_later(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        # no piece overtakes an earlier one, also when the route is healed
        self._due_at = max(self._due_at + 1e-6, loop.time() + self.route.delay_seconds)
        self.delayed += 1
        loop.call_at(self._due_at, self._forward, data)

    def _forward(self, data: bytes) -> None:
        self.delayed -= 1
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.write(data)
            self.peer.follow()

    def pause_writing(self) -> None:
        self._let_peer_read(False)

    def resume_writing(self) -> None:
        self._let_peer_read(True)

    def connection_lost(self, error: Exception | None) -> None:
        self.route.sides.discard(self)
        self.lost = True
        if self.peer is not None:
            self.peer.follow()

    def follow(self) -> None:
        """Close after the other end has; a silent route does so only once it is healed."""
        if (
            self.peer is not None
            and self.peer.lost
            and not self.peer.delayed
            and self.transport is not None
            and self.route.open.is_set()
        ):
            self.transport.close()

    def _let_peer_read(self, may: bool) -> None:
        if self.peer is not None:
            self.peer.choked = not may
            self.peer.set_reading()

    def set_reading(self) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        if self.route.open.is_set() and not self.choked and self.peer is not None and self.forwards != 0:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def abort(self) -> None:
        if self.transport is not None:
            with contextlib.suppress(OSError):
                self.transport.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, _RESET
                )
            self.transport.abort()


class _Route:
    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.sides: set[_Side] = set()
        self.tasks: set[asyncio.Future[None]] = set()
        self.open = asyncio.Event()
        self.open.set()
        self.port = 0
        self.delay_seconds = 0.0
        self.held: list[_Side] = []
        self.forwards = 0
        self._wanted: re.Pattern[bytes] | None = None
        self._server: asyncio.Server | None = None

    def hold(self, request: str, forwards: int) -> None:
        """Hold the next such request once so many of its bytes are forwarded."""
        self._wanted, self.forwards = re.compile(request.encode()), forwards

    def should_hold(self, data: bytes) -> bool:
        """Return True once, for data that begin with the request that is to be held."""
        if self._wanted is None or not self._wanted.match(data):
            return False
        self._wanted = None
        return True

    def forward_held(self) -> None:
        """Forward the held requests; hold no further one."""
        self._wanted, held, self.held = None, self.held, []
        for side in held:
            side.forward_held()

    async def listen(self) -> None:
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(
                lambda: _Side(self), "127.0.0.1", self.port, reuse_address=True, backlog=512
            )
            self.port = self._server.sockets[0].getsockname()[1]

    async def execute(self, do: str) -> None:
        if do == "silence":
            self.open.clear()
        elif do == "heal":
            self.open.set()
            self.delay_seconds = 0.0
            await self.listen()
        elif do in ("cut", "close"):
            if do == "close" and self._server is not None:
                self._server.close()
                self._server = None
            for side in list(self.sides):
                side.abort()
        else:
            raise ValueError(do)
        for side in list(self.sides):
            side.set_reading()
            side.follow()


async def main(arguments: list[str]) -> None:
    routes: dict[str, _Route] = {}
    for argument in arguments:
        name, _, target = argument.partition("=")
        host, _, port = target.rpartition(":")
        routes[name] = _Route(host, int(port))
        await routes[name].listen()
    _say({name: route.port for name, route in routes.items()})
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(orders), sys.stdin.buffer
    )
    while line := await orders.readline():
        order: dict[str, Any] = json.loads(line)
        if order["do"] == "aim":
            routes[order["name"]].target = ("127.0.0.1", order["port"])
        elif order["do"] == "slow":
            routes[order["name"]].delay_seconds = order["seconds"]
        elif order["do"] == "hold":
            routes[order["name"]].hold(order["request"], order["bytes"])
        elif order["do"] == "forward_held":
            routes[order["name"]].forward_held()
        elif order["do"] == "held":
            found = [side for side in routes[order["name"]].held if side.forwards == 0]
            _say({"done": "held", "held": len(found)})
            continue
        else:
            await routes[order["name"]].execute(order["do"])
        _say({"done": order["do"]})


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1:]))
