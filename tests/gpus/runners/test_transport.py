"""The transport with misbehaving servers on real sockets: its requests, its parsing, and its limits."""

from __future__ import annotations

import contextlib
import socket

import pytest

from gpus.errors import ConnectFailed, RunFailed, RunTimedOut, ServerLost
from gpus.runners.connections import BrokenAnswer
from gpus.runners.transport import ResponseTooLarge
from tests.gpus.runners.posting import polite, post
from tests.support.ports import free_port


def test_the_request_arrives_whole_and_the_answer_comes_back(transport, serve):
    server = serve(polite)
    response = post(transport, server.url + "?a=b c", b'{"x": 1}', headers={"X-Job-Id": "j1"})
    assert response.status == 200
    assert response.body == b'{"status": "success", "result": 1}'
    head = server.requests[0].decode()
    assert head.startswith("POST /run?a=b%20c HTTP/1.1\r\n")
    assert f"Host: 127.0.0.1:{server.port}\r\n" in head
    assert "X-Job-Id: j1\r\n" in head
    assert head.endswith('Content-Length: 8\r\nX-Job-Id: j1\r\n\r\n{"x": 1}')


def test_a_chunked_answer_is_put_together(transport, serve):
    def script(visit):
        visit.read_request()
        visit.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")

    assert post(transport, serve(script).url).body == b"abcde"


def test_a_great_many_tiny_chunks_are_a_broken_answer(transport, serve):
    def script(visit):
        visit.read_request()
        visit.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(OSError):
            visit.send(b"1\r\nx\r\n" * 3000 + b"0\r\n\r\n")

    with pytest.raises(BrokenAnswer, match="less than 64 bytes"):
        post(transport, serve(script).url)


def test_small_chunks_are_read(transport, serve):
    def script(visit):
        visit.read_request()
        visit.send(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"1\r\nx\r\n" * 1000
            + (b"50\r\n" + b"y" * 80 + b"\r\n") * 5000
            + b"0\r\n\r\n"
        )

    assert post(transport, serve(script).url).body == b"x" * 1000 + b"y" * 80 * 5000


@pytest.mark.parametrize(
    ("start", "again"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X-Trailer: again\r\n"),
    ],
    ids=["interim answers", "trailers"],
)
def test_bytes_besides_an_answers_body_are_limited(transport, serve, start, again):
    def script(visit):
        visit.read_request()
        with contextlib.suppress(OSError):
            visit.send(start)
            for _ in range(1000):
                visit.send(again * 1000)

    with pytest.raises(BrokenAnswer, match="besides its body"):
        post(transport, serve(script).url)


def test_redirects_are_answers_and_not_followed(transport, serve):
    def script(visit):
        visit.read_request()
        visit.send(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")

    server = serve(script)
    assert post(transport, server.url).status == 302
    assert len(server.requests) == 1


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:{closed}/", "ftp://127.0.0.1/", "http://a..b/", "http://[::1/", "http:///path", ""],
)
def test_an_unreachable_address_is_a_connect_failure(transport, url):
    with pytest.raises(ConnectFailed):
        post(transport, url.format(closed=free_port()))


@pytest.mark.parametrize("headers", [{"X-A": "a\r\nX-B: b"}, {"X-A\n": "b"}, {"": "b"}, {"X-A": "\u20ac"}])
def test_a_header_that_would_break_the_request_is_not_sent(transport, serve, headers):
    server = serve(polite)
    with pytest.raises(ConnectFailed):
        post(transport, server.url, headers=headers)
    assert server.requests == []


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"this is not HTTP\r\n\r\n",
    ],
)
def test_a_connection_that_breaks_after_the_body_lost_the_server(transport, serve, answer):
    def script(visit):
        visit.read_request()
        visit.send(answer)

    with pytest.raises(ServerLost):
        post(transport, serve(script).url)


def test_an_answer_before_the_body_was_read_is_returned(transport, serve):
    def script(visit):
        visit.sock.recv(1000)
        visit.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
        visit.sock.shutdown(socket.SHUT_WR)
        visit.wait_for_hang_up()

    assert post(transport, serve(script).url, b"x" * 3_000_000).status == 413


# -- size and time -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head", [b"Content-Length: 5000000\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n"]
)
def test_reading_stops_at_the_size_limit(transport, serve, head):
    def script(visit):
        visit.read_request()
        try:
            visit.send(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n")
            while True:
                visit.send(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")
        finally:
            visit.server.hung_up.set()

    server = serve(script)
    with pytest.raises(ResponseTooLarge) as error:
        post(transport, server.url, max_bytes=100_000)
    assert isinstance(error.value, RunFailed)
    assert server.hung_up.wait(30)


def test_an_answer_that_announces_too_much_is_not_waited_for(transport, serve):
    def script(visit):
        visit.read_request()
        visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5000000\r\n\r\n")
        visit.wait_for_hang_up()

    with pytest.raises(ResponseTooLarge):
        post(transport, serve(script).url)


def test_an_answer_of_just_the_limit_is_taken(transport, serve):
    def script(visit):
        visit.read_request()
        visit.answer(b"x" * 1000)

    assert len(post(transport, serve(script).url, max_bytes=1000).body) == 1000


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 200 OK\r\nX-Long: ", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_drip_does_not_outlive_the_deadline(transport, serve, begin):
    """Each byte comes in time; all of them together don't."""

    def script(visit):
        visit.read_request()
        visit.send(begin)
        while not visit.server.hung_up.wait(0.02):
            visit.send(b"x")

    server = serve(script)
    with pytest.raises(RunTimedOut):
        post(transport, server.url, deadline_seconds=0.3)
    server.hung_up.set()


def test_a_server_that_does_not_read_does_not_outlive_the_deadline(transport, serve):
    server = serve(lambda visit: visit.server.hung_up.wait(30))
    with pytest.raises(RunTimedOut):
        post(transport, server.url, b"x" * 30_000_000, deadline_seconds=0.3)
    server.hung_up.set()
