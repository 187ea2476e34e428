"""HTTP and raw sockets of the attacker: no retries, and no answer raises."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any
from urllib.parse import urlsplit

_ELSEWHERE = "127.0.0.2"
"""Source address of the attacker, so that limits by address do not affect the neighbour."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
_MAX_WORKERS = 128


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to the attacker. status: 0 without an answer. code: of the problem, or why no answer came.
    seconds: until it was read."""

    status: int
    code: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0

    @property
    def said(self) -> dict[str, Any]:
        """Return its JSON object; empty if it is none."""
        try:
            said = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return said if isinstance(said, dict) else {}

    @property
    def rows(self) -> list[Any]:
        """Return the list in its JSON object."""
        return next((value for value in self.said.values() if isinstance(value, list)), [])

    @property
    def retry_after(self) -> str:
        """The header `Retry-After`; empty without one."""
        return self.headers.get("retry-after", "")

    @property
    def label(self) -> str:
        """Status and error code, such as `429 rate_limited`."""
        return f"{self.status} {self.code}".strip()


def address_of(url: str) -> tuple[str, int]:
    """Return host and port of a URL; the default port is 80."""
    parts = urlsplit(url)
    return parts.hostname or "127.0.0.1", parts.port or 80


@cache
def _source(host: str) -> tuple[str, int] | None:
    """Return the source address; None if the machine has only one loopback address, or the dispatcher is
    elsewhere."""
    if host not in ("127.0.0.1", "localhost"):
        return None
    with socket.socket() as probe:
        try:
            probe.bind((_ELSEWHERE, 0))
        except OSError:
            return None
    return _ELSEWHERE, 0


def ask(
    url: str,
    method: str,
    path: str,
    *,
    key: str = "",
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 30.0,
    as_neighbour: bool = False,
) -> Answer:
    """Send one request on a connection of its own. body: bytes are sent as they are, other values as JSON."""
    sent = dict(headers or {})
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
        sent.setdefault("Content-Type", "application/json")
    if key:
        sent["Authorization"] = f"Bearer {key}"
    began = time.monotonic()
    host, port = address_of(url)
    source = None if as_neighbour else _source(host)
    connection = http.client.HTTPConnection(host, port, timeout=timeout, source_address=source)
    try:
        connection.request(method, path, body, sent)
        response = connection.getresponse()
        said = response.read(MAX_ANSWER_BYTES)
        reported = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, _code(reported, said), reported, said, time.monotonic() - began)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Answer(0, type(error).__name__, seconds=time.monotonic() - began)
    finally:
        connection.close()


def _code(headers: Mapping[str, str], body: bytes) -> str:
    if "json" not in headers.get("content-type", "") or len(body) > 100_000:
        return ""
    try:
        said = json.loads(body)
    except ValueError:
        return ""
    return str(said.get("code", "")) if isinstance(said, dict) else ""


def head(method: str, path: str, *, key: str = "", headers: Mapping[str, str] | None = None) -> bytes:
    """Return a request's head with its empty line."""
    lines = [f"{method} {path} HTTP/1.1", "Host: dispatcher"]
    lines += [f"Authorization: Bearer {key}"] if key else []
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def open_socket(url: str, timeout: float = 5.0, *, as_neighbour: bool = False) -> socket.socket:
    """Connect to the server. Raises OSError."""
    host, port = address_of(url)
    return socket.create_connection(
        (host, port), timeout, source_address=None if as_neighbour else _source(host)
    )


def exchange(url: str, data: bytes, *, timeout: float = 5.0, at_most: int = 65536) -> bytes:
    """Return the server's bytes until it closes, is silent for `timeout`, or has sent `at_most` bytes."""
    said = b""
    try:
        with open_socket(url, timeout) as sock:
            sock.sendall(data)
            while len(said) < at_most:
                piece = sock.recv(65536)
                if not piece:
                    break
                said += piece
    except OSError:
        pass
    return said


def status_of(said: bytes) -> int:
    """Return the status of the first answer in these bytes; 0 if there is none."""
    first = said.split(b"\r\n", 1)[0].split(b" ")
    return int(first[1]) if len(first) > 1 and first[1].isdigit() else 0


def flood(
    work: Callable[[int], Any], *, workers: int, until: float, at_most: int = 100_000, pause: float = 0.0
) -> int:
    """Call `work` with 0, 1, 2 … from several threads until the monotonic time; return the number of calls.

    pause: of each thread after each call, in seconds."""
    assert workers <= _MAX_WORKERS
    numbers, lock = count(), threading.Lock()
    done = 0

    def work_loop() -> None:
        nonlocal done
        while time.monotonic() < until:
            with lock:
                number = next(numbers)
            if number >= at_most:
                return
            work(number)
            with lock:
                done += 1
            if pause:
                time.sleep(pause)

    threads = [threading.Thread(target=work_loop, daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done


class IdleConnections:
    """Many idle connections, opened one after another. Closed by `close`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.sockets: list[socket.socket] = []
        self.refused = 0

    def open(self, count_: int, data: bytes | Callable[[int], bytes], *, until: float) -> None:
        """Open connections. data: the first bytes that each sends."""
        for number in range(count_):
            if time.monotonic() > until:
                return
            try:
                sock = open_socket(self._url, 2.0)
            except OSError:
                self.refused += 1
                continue
            self.sockets.append(sock)
            try:
                sock.sendall(data if isinstance(data, bytes) else data(number))
            except OSError:
                self.refused += 1

    def said(self) -> list[bytes]:
        """Return the bytes that each received so far; b'closed' for closed ones that received none."""
        found = []
        for sock in self.sockets:
            sock.setblocking(False)
            try:
                found.append(sock.recv(4096) or b"closed")
            except BlockingIOError:
                found.append(b"")
            except OSError:
                found.append(b"closed")
        return found

    def close(self) -> None:
        while self.sockets:
            self.sockets.pop().close()
