"""Request bodies on the event loop: a client that sends slowly must not hold one of the few threads.

Small bodies are read before a thread is asked. Larger ones go straight through: the view refuses what is too
long by its declared length, and uvicorn swallows what nobody read, so that a client gets to read its answer.
"""

from __future__ import annotations

from jobs.events.stream import Message, Receive

SMALL_BYTES = 256 * 1024
MAX_UNDECLARED_BYTES = 1024 * 1024


class BodyTooLong(Exception):
    """A body of undeclared length (chunked) is longer than allowed."""


class RequestBody:
    """Wraps `receive` of one request. declared: its Content-Length; None: chunked, or no body."""

    def __init__(self, receive: Receive, headers: list[tuple[bytes, bytes]]) -> None:
        named = dict(headers)
        length = named.get(b"content-length", b"")
        self.declared = int(length) if length.isdigit() else None
        self.chunked = self.declared is None and b"transfer-encoding" in named
        self._receive = receive
        self._ready: list[Message] = []
        self._ended = not self.chunked and not self.declared

    async def read_ahead(self) -> int | None:
        """Reads a small or chunked body whole. Returns its length, None if it was left alone.

        Raises BodyTooLong.
        """
        if self._ended or not (self.chunked or (self.declared or 0) <= SMALL_BYTES):
            return None
        whole = bytearray()
        while not self._ended:
            message = await self._receive_once()
            if message["type"] != "http.request":
                self._ready.append(message)
                return None
            whole += message.get("body", b"")
            if len(whole) > MAX_UNDECLARED_BYTES:
                raise BodyTooLong
        self._ready.append({"type": "http.request", "body": bytes(whole), "more_body": False})
        return len(whole)

    async def receive(self) -> Message:
        """What the application gets; after the body only the disconnect is left."""
        return self._ready.pop(0) if self._ready else await self._receive_once()

    async def _receive_once(self) -> Message:
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._ended = True
        return message
