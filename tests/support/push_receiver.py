"""A receiver of pushed results."""

from __future__ import annotations

import json

from tests.support.servers.raw_server import RawServer


class Receiver(RawServer):
    """statuses: of its answers in turn; then 200."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        super().__init__(self._receive)

    def _receive(self, visit) -> None:
        visit.read_request()
        status = self.statuses.pop(0) if self.statuses else 200
        visit.send(f"HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n".encode())

    def pushed(self, number: int = 0):
        head, _, body = self.requests[number].decode().partition("\r\n\r\n")
        return head, json.loads(body)
