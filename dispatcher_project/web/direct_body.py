"""Moves the body of a request, or of its answer, between a connection's socket and a file, in one thread.

The event loop reads the head and leaves the socket to the thread: it neither wakes for the bytes nor copies
them, and the thread releases the interpreter in each of its calls. Only without TLS, and with a
Content-Length.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

PIECE_BYTES = 1024 * 1024
"""An upload's thread wakes for so many bytes, and takes the interpreter from other threads after each of its
four calls for them. A transfer has a buffer of this size, and the kernel another one."""
_SEND_BYTES = 4 * 1024 * 1024
_LOOK_SECONDS = 1.0
"""How long a thread waits for a client that does not read, before it checks the transfer's rate."""
KEY = "dispatcher.direct_body"
"""Key in a request's scope: a function that returns its `DirectBody`. Set only by this server."""


class ConnectionGone(Exception):
    """The connection was closed, by the client or by this server."""


class SenderIdle(Exception):
    """No byte arrived in time."""


class DirectBody:
    """The socket of one request. `receive` and `send` are called in a thread, between `begin_receive` or
    `begin_send` and `end`; all others on the event loop."""

    def __init__(self, protocol: H11Protocol, cycle: RequestResponseCycle) -> None:
        self._protocol, self._cycle = protocol, cycle
        self._socket: socket.socket | None = None
        self.took_body = False
        """True if the parser has not seen the whole body of the request."""

    # -- on the event loop ---------------------------------------------------------------------

    def begin_receive(self) -> bytes:
        """Take the socket from the event loop, and return the bytes of the body that it has read already.
        Raises ConnectionGone."""
        self._take_socket()
        self._protocol.flow.pause_reading()
        arrived = bytes(self._cycle.body)
        self._cycle.body = bytearray()
        self.took_body = self._cycle.more_body
        return arrived

    def is_ready_to_send(self) -> bool:
        """Return True once the bytes before the answer's body are sent. Raises ConnectionGone."""
        if self._protocol.transport.is_closing():
            raise ConnectionGone
        return not self._protocol.transport.get_write_buffer_size()

    def begin_send(self, size: int) -> None:
        """Take the socket for an answer's body of this size. The event loop still reads, and so sees when the
        client closes the connection. Raises ConnectionGone."""
        self._take_socket()
        body: Any = _Sized(size)
        self._cycle.conn.send_with_data_passthrough(h11.Data(data=body))

    def cut(self) -> None:
        """Let the thread end: the connection is closed."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def end(self, *, is_whole: bool) -> None:
        """Give the socket back; the thread has ended. is_whole: all bytes of the body were received."""
        assert self._socket is not None
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        self._socket.close()
        self._socket = None
        if is_whole:
            self._cycle.more_body = False

    def _take_socket(self) -> None:
        transport = self._protocol.transport
        if transport.is_closing():
            raise ConnectionGone
        # a socket of its own: the transport may close its one while the thread works
        self._socket = transport.get_extra_info("socket").dup()

    # -- in a thread ---------------------------------------------------------------------------

    def receive(self, size: int, take: Callable[[memoryview], None], idle_seconds: float) -> None:
        """Call `take` with the next `size` bytes, in pieces that are valid until it returns. Raises
        ConnectionGone and SenderIdle, and what `take` raises."""
        sock = self._socket
        assert sock is not None
        arrival = select.poll()
        arrival.register(sock, select.POLLIN)
        buffer, wakes_for = memoryview(bytearray(min(PIECE_BYTES, size))), 0
        try:
            while size:
                wanted = min(len(buffer), size)
                if wanted != wakes_for:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
                    wakes_for = wanted
                arrival.poll(idle_seconds * 1000)
                got = sock.recv_into(buffer[:wanted])
                if not got:
                    raise ConnectionGone
                take(buffer[:got])
                size -= got
        except BlockingIOError:
            raise SenderIdle from None
        except OSError as error:
            raise ConnectionGone from error

    def send(self, descriptor: int, first: int, behind: int, on_sent: Callable[[int], None]) -> None:
        """Send bytes of a file. on_sent: is called with the position that is reached, at least every second.
        Raises ConnectionGone, EOFError if the file became shorter, and what `on_sent` raises."""
        assert self._socket is not None
        room = select.poll()
        room.register(self._socket, select.POLLOUT)
        while first < behind:
            try:
                sent = os.sendfile(self._socket.fileno(), descriptor, first, min(behind - first, _SEND_BYTES))
            except BlockingIOError:
                room.poll(_LOOK_SECONDS * 1000)
            except OSError as error:
                raise ConnectionGone from error
            else:
                if not sent:
                    raise EOFError
                first += sent
            on_sent(first)


class _Sized:
    """Stands for bytes that the parser does not see. h11 asks for the length only."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size
