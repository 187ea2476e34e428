"""A GET of an untrusted URL, against servers that answer byte by byte."""

from __future__ import annotations

import gzip
import hashlib
import threading
import time
from collections.abc import Callable
from ipaddress import ip_address

import pytest

from foundation.fetch import (
    Fetched,
    FetchLimits,
    NotFetched,
    NotKept,
    TooLong,
    TooSlow,
    fetch_now,
    read_fetched_url,
)
from foundation.http_client import Address, Target
from tests.support.servers.raw_server import RawServer, Script, Visit

LIMITS = FetchLimits(1_000_000, 10.0, ("http",))
BODY = bytes(range(256)) * 1000


async def loopback(target: Target) -> list[Address]:
    return [ip_address("127.0.0.1")]


def read(url: str, limits: FetchLimits = LIMITS) -> tuple[Fetched, bytes]:
    pieces: list[bytes] = []
    found = fetch_now(url, pieces.append, limits=limits, allowed=loopback)
    return found, b"".join(pieces)


def answering(head: str, body: bytes = b"", *, status: str = "200 OK", more: bytes = b"") -> Script:
    def script(visit: Visit) -> None:
        visit.read_request()
        visit.send(f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body + more)

    return script


def chunked(data: bytes, size: int = 7000) -> bytes:
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(f"{len(one):x};note=1\r\n".encode() + one + b"\r\n" for one in pieces) + b"0\r\n"


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (f"Content-Length: {len(BODY)}\r\nContent-Type: Image/PNG; a=b\r\n", BODY),
        (f"Content-Length: {len(BODY)}\r\n", BODY + b"bytes behind the declared ones"),
        ("Connection: close\r\n", BODY),
        ("Transfer-Encoding: chunked\r\n", chunked(BODY) + b"\r\n"),
        ("Transfer-Encoding: chunked\r\n", chunked(BODY) + b"Trailer: 1\r\n\r\n"),
        (f"Transfer-Encoding: chunked\r\nContent-Length: {len(BODY)}\r\n", chunked(BODY, 11) + b"\r\n"),
    ],
)
def test_a_body_is_read_whole_in_each_framing(head: str, body: bytes) -> None:
    with RawServer(answering(head, body)) as server:
        found, data = read(server.url)
    assert hashlib.sha256(data).digest() == hashlib.sha256(BODY).digest()
    assert found == Fetched(len(BODY), "image/png" if "Type" in head else "")
    assert b"Accept-Encoding: identity" in server.requests[0]
    assert server.requests[0].startswith(b"GET /run HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("head", "body", "error", "text"),
    [
        ("Content-Length: 100\r\n", b"short", NotFetched, "ended before its last byte"),
        ("Content-Length: 2000000\r\n", b"", TooLong, "more than 1000000 bytes"),
        ("Content-Length: 99999999999999999999999999\r\n", b"", TooLong, "more than 1000000 bytes"),
        ("Connection: close\r\n", bytes(1_100_000), TooLong, "more than 1000000 bytes"),
        ("Transfer-Encoding: chunked\r\n", b"fffffffffffffff\r\n" + bytes(1_100_000), TooLong, "more than"),
        ("Transfer-Encoding: chunked\r\n", b"5\r\nab", NotFetched, "ended before its last byte"),
        ("Transfer-Encoding: chunked\r\n", b"5\r\nabcde", NotFetched, "ended before its last byte"),
        ("Transfer-Encoding: chunked\r\n", b"5\r\nabcdefgh\r\n0\r\n\r\n", NotFetched, "as a web server"),
        ("Transfer-Encoding: chunked\r\n", b"-5\r\nabcde\r\n", NotFetched, "as a web server"),
        ("Transfer-Encoding: chunked\r\n", b"5;" + b"x" * 100_000, NotFetched, "as a web server"),
        ("Transfer-Encoding: chunked\r\n", b"0\r\n" + b"a: b\r\n" * 10_000, NotFetched, "as a web server"),
        (
            "Content-Encoding: gzip\r\n",
            gzip.compress(bytes(10_000_000)),
            NotFetched,
            "Content-Encoding: gzip",
        ),
        (
            "Transfer-Encoding: gzip, chunked\r\n",
            chunked(gzip.compress(BODY)),
            NotFetched,
            "Transfer-Encoding: gzip, ch",
        ),
        ("Transfer-Encoding: gzip\r\n", gzip.compress(BODY), NotFetched, "Transfer-Encoding: gzip"),
        ("Content-Encoding: \x01\xe9\r\n", BODY, NotFetched, r"\(Content-Encoding: \?\?"),
        (f"X-Pad: {'x' * 70_000}\r\n", b"", NotFetched, "as a web server"),
        ("X: y\r\n" * 200, b"", NotFetched, "as a web server"),
    ],
)
def test_a_hostile_answer_is_an_error(head: str, body: bytes, error: type[NotFetched], text: str) -> None:
    with RawServer(answering(head, body)) as server, pytest.raises(error, match=text):
        read(server.url)


def test_ten_megabytes_of_headers_are_not_read() -> None:
    sent = [0]

    def script(visit: Visit) -> None:
        visit.read_request()
        visit.send(b"HTTP/1.1 200 OK\r\n")
        for _ in range(10_000):
            visit.send(b"X-Pad: " + bytes(b"y" * 1000) + b"\r\n")
            sent[0] += 1000

    with RawServer(script) as server, pytest.raises(NotFetched, match="as a web server"):
        read(server.url)
    assert server.closed.wait(10)
    assert sent[0] < 10_000_000  # the connection was closed meanwhile


@pytest.mark.parametrize("status", ["404 Not Found", "500 Oops", "206 Partial Content", "204 No Content"])
def test_another_status_is_an_error(status: str) -> None:
    with (
        RawServer(answering("Content-Length: 0\r\n", status=status)) as server,
        pytest.raises(NotFetched, match=f"answers {status[:3]}"),
    ):
        read(server.url)


def test_an_answer_that_is_not_http_is_an_error() -> None:
    def script(visit: Visit) -> None:
        visit.send(b"220 mail.example.com ESMTP\r\n")

    with RawServer(script) as server, pytest.raises(NotFetched, match="as a web server"):
        read(server.url)


def test_a_server_that_hangs_or_drips_is_left_at_the_time_limit() -> None:
    def hangs(visit: Visit) -> None:
        visit.read_request()
        visit.wait_for_hang_up()

    def drips(visit: Visit) -> None:
        visit.read_request()
        visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while not visit.server.hung_up.wait(0.02):
            visit.send(b".")

    for script in (hangs, drips):
        began = time.monotonic()
        with RawServer(script) as server, pytest.raises(TooSlow, match=r"not read in 0\.5 s"):
            read(server.url, FetchLimits(10_000, 0.5, ("http",)))
        assert time.monotonic() - began < 5


def test_redirects_are_followed_and_each_target_is_checked_again() -> None:
    asked: list[str] = []

    async def allowed(target: Target) -> list[Address]:
        asked.append(f"{target.host}{target.path}")
        return [] if target.host == "169.254.169.254" else [ip_address("127.0.0.1")]

    def script(visit: Visit) -> None:
        path = visit.read_request().split()[1]
        if path == b"/run":
            visit.send(b"HTTP/1.1 302 Found\r\nLocation: /there#part\r\nContent-Length: 0\r\n\r\n")
        elif path == b"/there":
            visit.answer(b"found")
        else:
            visit.send(b"HTTP/1.1 307 X\r\nLocation: http://169.254.169.254/latest/meta-data\r\n\r\n")

    with RawServer(script) as server:
        pieces: list[bytes] = []
        fetch_now(server.url, pieces.append, limits=LIMITS, allowed=allowed)
        assert pieces == [b"found"]
        with pytest.raises(NotFetched, match="an address that this dispatcher must not read"):
            fetch_now(server.url.replace("/run", "/meta"), pieces.append, limits=LIMITS, allowed=allowed)
    assert asked == ["127.0.0.1/run", "127.0.0.1/there", "127.0.0.1/meta", "169.254.169.254/latest/meta-data"]


@pytest.mark.parametrize(
    ("location", "text"),
    [
        ("/run", "more than 5 redirects"),
        ("https://127.0.0.1/", "must begin with http://"),
        ("http://127.0.0.1:25/", "port 25"),
        ("http://user:secret@127.0.0.1/", "credentials"),
        ("file:///etc/passwd", "must begin with"),
        ("http://[::1", "is not a valid URL|as a web server"),
    ],
)
def test_a_redirect_to_what_may_not_be_requested_is_an_error(location: str, text: str) -> None:
    script = answering(f"Location: {location}\r\nContent-Length: 0\r\n", status="302 Found")
    with RawServer(script) as server, pytest.raises(NotFetched, match=text):
        read(server.url)


def test_a_read_is_stopped_from_another_thread() -> None:
    stops: list[Callable[[], None] | None] = []
    released = threading.Event()

    def script(visit: Visit) -> None:
        visit.read_request()
        visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
        released.wait(30)

    def stop(data: bytes) -> None:
        assert stops[0] is not None
        threading.Thread(target=stops[0]).start()

    try:
        with RawServer(script) as server, pytest.raises(NotFetched, match="its reader was stopped"):
            fetch_now(server.url, stop, limits=LIMITS, allowed=loopback, set_stop=stops.append)
    finally:
        released.set()
    assert stops[0] is not None
    stops[0]()  # late, and without effect
    assert stops[1:] == [None]


def test_an_error_of_the_keeper_is_not_the_servers() -> None:
    def full(data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with RawServer(answering("Content-Length: 5\r\n", b"hello")) as server, pytest.raises(NotKept):
        fetch_now(server.url, full, limits=LIMITS, allowed=loopback)


def test_a_closed_port_is_an_error_without_the_address() -> None:
    with RawServer(answering("")) as server:
        url = server.url
    with pytest.raises(NotFetched, match=r"can't be reached: Connection refused\Z"):
        read(url)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://example.com/a", "must begin with https://"),
        ("https://user@example.com/a", "credentials"),
        ("https://example.com/a#b", "fragment"),
        ("https://example.com:25/a", "port 25"),
        ("https://example.com:0/a", "no host"),
        ("https:///a", "no host"),
        ("https://exa mple.com/", "space"),
        ("https://example.com\\@169.254.169.254/", "backslash"),
        (f"https://example.com/{'a' * 2000}", "longer than 2000"),
        ("https://[::1/", "not a valid URL"),
    ],
)
def test_the_form_of_a_url_is_checked(url: str, text: str) -> None:
    with pytest.raises(NotFetched, match=text):
        read_fetched_url(url)
