"""One POST to an address that was checked: no second look-up, no redirect, one deadline over everything.

Not `requests`: it resolves names itself, follows proxies of the environment, and its time limit starts anew
with every byte that a slow receiver sends.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any

from .addresses import Address
from .guard import Target

CONNECT_SECONDS = 5.0
"""For one address, so that a dead one leaves time for the next."""
MAX_ANSWER_BYTES = 64 * 1024
_SEND_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """What the receiver said. retry_after: its header, raw."""

    status: int
    retry_after: str | None

    def retry_after_seconds(self, now: datetime) -> float | None:
        """Seconds or an HTTP date, as RFC 9110 §10.2.3 allows; None if absent, past or nonsense."""
        text = (self.retry_after or "").strip()
        if text.isascii() and text.isdigit():
            return float(text[:9])
        try:
            return max((parsedate_to_datetime(text) - now).total_seconds(), 0.0)
        except (TypeError, ValueError):  # no date, or one without a zone
            return None


def post(
    target: Target, addresses: list[Address], *, body: bytes, headers: Mapping[str, str], until: float
) -> Answer:
    """Sends once. until: on the monotonic clock, seconds. Raises OSError or http.client.HTTPException."""
    with _connect(target, addresses, until) as sock:
        connection = http.client.HTTPConnection(target.host, target.port)
        connection.auto_open = 0  # it would connect by name
        connection.sock = _BoundedSocket(sock, until)
        connection.request("POST", target.path, body=body, headers={"Host": target.authority, **headers})
        response = connection.getresponse()
        _drain(response)
        return Answer(response.status, response.headers.get("Retry-After"))


class _BoundedSocket:
    """As much of a socket as http.client uses, with one deadline for all of it."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock = sock
        self._until = until

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        for start in range(0, len(view), _SEND_CHUNK_BYTES):  # TLS counts its time limit per write
            self._sock.settimeout(_left(self._until))
            self._sock.sendall(view[start : start + _SEND_CHUNK_BYTES])

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_BoundedReader(self._sock, self._until))

    def close(self) -> None:
        """Nothing: http.client lets go of the socket before the answer is read; `post` closes it."""


class _BoundedReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock = sock
        self._until = until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(_left(self._until))
        return self._sock.recv_into(buffer)


def _connect(target: Target, addresses: list[Address], until: float) -> socket.socket:
    failure: OSError = OSError("no address to connect to")
    for address in addresses:
        try:
            sock = socket.create_connection((str(address), target.port), min(_left(until), CONNECT_SECONDS))
        except OSError as error:
            failure = error
            continue
        if target.scheme == "http":
            return sock
        try:
            sock.settimeout(_left(until))
            return _tls().wrap_socket(sock, server_hostname=target.host)  # the name is what is verified
        except OSError:
            sock.close()
            raise
    raise failure


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _drain(response: http.client.HTTPResponse) -> None:
    """Lets a polite receiver finish its answer. Its status counts already, so a bad end of it does not."""
    left = MAX_ANSWER_BYTES
    try:
        while left > 0 and (chunk := response.read1(min(left, 8192))):
            left -= len(chunk)
    except (OSError, http.client.HTTPException):
        pass


def _left(until: float) -> float:
    """Seconds left; raises TimeoutError at the end."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("the receiver took too long")
    return left
