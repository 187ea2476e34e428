"""One connection of the web server: uvicorn's protocol, with an end to everything its client may delay."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import get_remote_addr

from .client_gone import GONE_KEY
from .connections import Connections, Reason
from .progress import bytes_acknowledged, bytes_in_kernel
from .replies import bad_request, head_too_large, head_too_slow, too_many_connections, url_too_long

MIN_READ_BYTES = 32 * 1024
"""What a client takes of its answer in each `read_seconds`, if there is as much."""
FREE_CHUNKS = 1024
MIN_CHUNK_BYTES = 64
"""On average, of more chunks than those: each costs the event loop as much as a small request."""


class TooManyChunks(h11.RemoteProtocolError):
    """A body in a great many tiny chunks."""


class _CountedChunks(h11.Connection):
    """Raises TooManyChunks."""

    chunks = 0
    chunk_bytes = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if type(event) is h11.Data:
            self.chunks += event.chunk_end
            self.chunk_bytes += len(event.data)
            if self.chunks > FREE_CHUNKS + self.chunk_bytes // MIN_CHUNK_BYTES:
                raise TooManyChunks(f"The body has chunks of less than {MIN_CHUNK_BYTES} bytes on average.")
        elif type(event) is h11.EndOfMessage:
            self.chunks = self.chunk_bytes = 0
        return event


class BoundedProtocol(H11Protocol):
    """open_connections: all of this process."""

    def __init__(self, open_connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._all = open_connections
        self._limits = open_connections.limits
        self.address_name = ""
        self.since = 0.0
        """When the server began to wait for the head of a request, or got it."""
        self._waits = True
        self._head_bytes = 0
        self._answered_one = False
        self._slow_since = 0.0
        """Since when it has taken less than `MIN_READ_BYTES`; 0: nothing waits to be sent."""
        self._taken = 0
        self.conn = _CountedChunks(h11.SERVER, self._limits.head_bytes)

    @property
    def waits_for_client(self) -> bool:
        """For a request, the rest of its body, or the client to read its answer."""
        cycle = self.cycle
        return self._waits or cycle is None or cycle.more_body or self._slow_since > 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.since = self._all.clock()
        peer = get_remote_addr(transport)
        if not self._all.admit(self, peer[0] if peer else ""):
            self.transport = transport
            transport.write(too_many_connections())
            transport.close()
            return
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._waits:
            super().data_received(data)
            return
        before, most = self.cycle, self._limits.head_bytes
        while data and not self.transport.is_closing():
            part, data = data[:most], data[most:]  # in parts, so that no longer head is parsed
            self._head_bytes += len(part)
            super().data_received(part)
            if self._waits and self.cycle is not before:
                self._has_head()

    def on_response_complete(self) -> None:
        answered = self.cycle
        self._answered_one = self._waits = True
        self._head_bytes = 0
        self.since = self._all.clock()
        super().on_response_complete()
        if self.cycle is not answered:  # the next one's head was here already
            self._has_head()
        elif not self.transport.is_closing():
            self._all.wait(self)

    def _has_head(self) -> None:
        self._waits = False
        cycle = self.cycle
        if cycle is not None:
            scope = cast("dict[str, Any]", self.scope)
            scope[GONE_KEY] = lambda: cycle.disconnected
        self.since = self._all.clock()
        self._all.begin(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._all.unsent(self, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._all.unsent(self, 0)

    def send_400_response(self, msg: str) -> None:
        """Called for what the parser does not take."""
        cycle, error = self.cycle, sys.exception()
        if cycle is not None and not cycle.response_complete and cycle.response_started:
            self.transport.abort()
        elif isinstance(error, TooManyChunks):
            self._refuse(Reason.CHUNKS_TOO_SMALL, bad_request(str(error)))
        elif self._waits and self._head_bytes > self._limits.head_bytes:
            has_url = b"\n" in self.conn.trailing_data[0]
            most = self._limits.head_bytes
            self._refuse(Reason.HEAD_TOO_LARGE, head_too_large(most) if has_url else url_too_long(most))
        else:
            super().send_400_response(msg)

    def _refuse(self, reason: str, answer: bytes) -> None:
        self._all.ended[reason] += 1
        self.transport.write(answer)
        self.transport.close()

    def overdue(self, now: float) -> str:
        """Why it has to end now; "" while it may go on."""
        if unsent := self._unsent():
            if self._answered_one:
                self.since = now  # the wait for a next request begins with the end of the answer
            return Reason.READS_SLOWLY if self._reads_slowly(unsent, now) else ""
        self._slow_since = 0.0
        patience = self._limits.head_seconds + (self._limits.idle_seconds if self._answered_one else 0.0)
        return Reason.HEAD_LATE if self._waits and now - self.since >= patience else ""

    def _unsent(self) -> int:
        buffered = self.transport.get_write_buffer_size()
        return buffered or bytes_in_kernel(self.transport.get_extra_info("socket"))

    def _reads_slowly(self, unsent: int, now: float) -> bool:
        acknowledged = bytes_acknowledged(self.transport.get_extra_info("socket"))
        taken = -unsent if acknowledged is None else acknowledged
        if not self._slow_since or taken - self._taken >= MIN_READ_BYTES:
            self._slow_since, self._taken = now, taken
        return now - self._slow_since >= self._limits.read_seconds

    def end(self, reason: str) -> None:
        """Close it now; a client that still owes its first head gets to know why."""
        self._all.ended[reason] += 1
        self._all.forget(self)
        owes_head = self._waits and not self._answered_one and not self.transport.is_closing()
        if owes_head and reason == Reason.HEAD_LATE:
            self.transport.write(head_too_slow(self._limits.head_seconds))
        elif owes_head and reason == Reason.EVICTED:
            self.transport.write(too_many_connections())
        else:
            self.transport.abort()
        self.transport.close()
