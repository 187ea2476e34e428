"""What a request may look like: its head's bytes, its URL, its headers, its body's chunks."""

from __future__ import annotations

import pytest

from dispatcher_project.web.protocol import Reason, WebLimits
from tests.support.servers.serving import HEAD, WHOLE, answer, serving, status_and_code
from tests.support.sockets import until_closed

LIMITS = WebLimits(head_bytes=2000, url_bytes=500, headers=10)
CHUNKED = b"POST / HTTP/1.1\r\nHost: here\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"GET /?" + b"q" * 500 + b" HTTP/1.1\r\nHost: here\r\n\r\n", (414, "url_too_long")),
        (HEAD + b"".join(b"X-%d: 1\r\n" % n for n in range(10)) + b"\r\n", (431, "head_too_large")),
        (HEAD + b"X-Long: " + b"x" * 2000, (431, "head_too_large")),
        (HEAD + b"X-Long: " + b"x" * 20_000 + b"\r\n\r\n", (431, "head_too_large")),
        (HEAD + b"X-Long: " + b"x" * 200_000 + b"\r\n\r\n", (431, "head_too_large")),
        (b"GET /" + b"x" * 4000, (414, "url_too_long")),
    ],
    ids=[
        "a long URL",
        "many headers",
        "a long head",
        "a long head at once",
        "a very long head",
        "a URL without an end",
    ],
)
def test_a_head_over_the_limits_is_refused(sent: bytes, said: tuple[int, str]) -> None:
    with serving(LIMITS) as web:
        assert status_and_code(until_closed(web.connect(send=sent))) == said


def test_a_head_within_the_limits_is_accepted() -> None:
    nine = b"".join(b"X-%d: %s\r\n" % (n, b"x" * 150) for n in range(9))
    with serving(LIMITS) as web:
        for sent in (HEAD + nine + b"\r\n", WHOLE.replace(b"/ ", b"/?" + b"q" * 490 + b" ")):
            assert answer(web.connect(send=sent)).startswith(b"HTTP/1.1 200")
        assert not web.server.connections.ended


def test_a_body_is_not_counted_as_head() -> None:
    with serving(LIMITS) as web:
        body = b"x" * 100_000
        sent = HEAD.replace(b"GET", b"POST") + b"Content-Length: 100000\r\n\r\n" + body
        assert answer(web.connect(send=sent)).endswith(b"100000")


def test_input_that_is_not_http_is_refused() -> None:
    with serving(LIMITS) as web:
        assert until_closed(web.connect(send=b"\x16\x03\x01\x02\x00\r\n\r\n")).startswith(b"HTTP/1.1 400")


def test_a_body_of_tiny_chunks_is_refused() -> None:
    with serving(WebLimits()) as web:
        said = until_closed(web.connect(send=CHUNKED + b"1\r\nx\r\n" * 2000))
        assert status_and_code(said) == (400, "bad_request")
        assert web.ended(Reason.CHUNKS_TOO_SMALL) == 1


def test_a_request_with_two_lengths_of_its_body_is_refused() -> None:
    """A proxy that goes by the other one takes the rest of the body for a request."""
    two = CHUNKED.replace(b"Connection: close\r\n", b"Content-Length: 5\r\n")
    with serving(WebLimits()) as web:
        said = until_closed(web.connect(send=two + b"0\r\n\r\n" + WHOLE))
        assert said.startswith(b"HTTP/1.1 400")
        assert said.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    "chunks", [b"1\r\nx\r\n" * 1000, b"50\r\n" + b"x" * 80 + b"\r\n", b"40\r\n" + b"x" * 64 + b"\r\n"]
)
def test_a_body_of_normal_chunks_is_accepted(chunks: bytes) -> None:
    many = chunks if chunks.startswith(b"1") else chunks * 3000
    with serving(WebLimits()) as web:
        said = until_closed(web.connect(send=CHUNKED + many + b"0\r\n\r\n"))
        assert said.startswith(b"HTTP/1.1 200")


def test_a_websocket_is_answered_as_any_request() -> None:
    with serving(WebLimits()) as web:
        asked = HEAD + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n"
        assert answer(web.connect(send=asked)).startswith(b"HTTP/1.1 200")
