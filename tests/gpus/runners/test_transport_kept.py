"""Pooled connections: reused while usable, and limited in number."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpus.errors import ServerLost
from gpus.runners import connections
from gpus.runners.connections import Connection, Origin
from tests.gpus.runners.certificates import make_tls
from tests.gpus.runners.posting import polite, post


def test_a_connection_carries_request_after_request(transport, serve):
    server = serve(polite)
    for _ in range(3):
        post(transport, server.url)
    assert (server.visits, len(server.requests)) == (1, 3)


def test_a_kept_connection_that_the_server_closed_is_seen_and_not_used(transport, serve):
    def script(visit):
        visit.read_request()
        visit.answer()

    server = serve(script)
    for number in range(3):
        post(transport, server.url)
        assert server.closed.wait(30)
        server.closed.clear()
        assert server.visits == number + 1


def test_a_kept_connection_that_breaks_under_a_request_is_not_tried_again(transport, serve):
    """The server may have begun to work: only ServerLost is honest."""

    def script(visit):
        visit.read_request()
        visit.answer()
        visit.read_request()

    server = serve(script)
    post(transport, server.url)
    with pytest.raises(ServerLost):
        post(transport, server.url)
    assert len(server.requests) == 2


def test_a_stale_pooled_connection_is_replaced(transport, pool, serve, monkeypatch):
    server = serve(polite)
    post(transport, server.url)
    origin = Origin("http", "127.0.0.1", server.port)
    kept = pool.take(origin)
    kept.sock.shutdown(socket.SHUT_WR)  # as after a reset that came between the look and the write
    monkeypatch.setattr(type(kept), "is_open", lambda self: True)
    pool.keep(origin, kept)
    assert post(transport, server.url).status == 200
    assert server.visits == 2
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("fresh_seconds", "question"), [(60.0, "is_open"), (0.0, "has_no_data")], ids=["fresh", "idle"]
)
def test_an_idle_connection_is_polled(serve, pool, transport, monkeypatch, *, fresh_seconds, question):
    """A poll gives the interpreter away in the middle of a slot's way to its next job."""
    asked = []
    for name in ("is_open", "has_no_data"):
        monkeypatch.setattr(Connection, name, lambda self, name=name: bool(asked.append(name)) or True)
    pool.fresh_seconds = fresh_seconds
    server = serve(polite)
    post(transport, server.url)
    post(transport, server.url)
    assert (asked, server.visits) == ([question], 1)


def test_without_tcp_info_a_connection_is_polled(monkeypatch):
    monkeypatch.setattr(connections, "_TCP_INFO", None)
    ours, theirs = socket.socketpair()
    connection = Connection(ours)
    assert connection.is_open()
    theirs.close()
    assert not connection.is_open()
    connection.close()


def test_a_locally_closed_connection_is_not_open():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
    ):
        connection = Connection(ours)
        assert connection.is_open()
        connection.close()
        assert not connection.is_open()


def test_an_old_idle_connection_is_given_up(pool, transport, serve):
    server = serve(polite)
    post(transport, server.url)
    pool.max_idle_seconds = 0.0
    post(transport, server.url)
    assert server.visits == 2


def test_idle_connections_are_bounded(transport, pool, serve):
    pool.max_idle = 1
    both = threading.Barrier(2)

    def script(visit):
        while visit.read_request():
            both.wait(30)
            visit.answer()

    server = serve(script)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda _: post(transport, server.url), range(2)))
    origin = Origin("http", "127.0.0.1", server.port)
    assert pool.take(origin) is not None
    assert pool.take(origin) is None


def test_a_connection_is_closed_when_the_server_asks_for_it(transport, serve):
    def script(visit):
        visit.read_request()
        visit.answer(head="Connection: close\r\n")
        visit.wait_for_hang_up()

    server = serve(script)
    post(transport, server.url)
    assert server.hung_up.wait(30)


def test_bytes_after_an_answer_are_not_read_as_the_next_answer(transport, serve):
    def script(visit):
        visit.read_request()
        body = b'{"status": "success", "result": 1}'
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        visit.send(head + body + head + body.replace(b"1", b"2"))
        visit.wait_for_hang_up()

    server = serve(script)
    for _ in range(2):
        assert b'"result": 1' in post(transport, server.url).body
    assert server.visits == 2


BEHIND = b'HTTP/1.1 200 OK\r\nContent-Length: 34\r\n\r\n{"status": "success", "result": 2}'
LARGE = b'{"status": "success", "result": 1, "filler": "%s"}' % (b"x" * 20_000)
WITH_LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(LARGE), LARGE)
IN_CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (
    len(LARGE),
    LARGE,
)
SHORT_CHUNKS = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nd\r\n{"result": 1}\r\n0\r\n\r\n'


def with_bytes_behind(answer: bytes):
    def script(visit):
        visit.read_request()
        visit.send(answer + BEHIND)
        visit.wait_for_hang_up()

    return script


@pytest.mark.parametrize("answer", [WITH_LENGTH, IN_CHUNKS, SHORT_CHUNKS], ids=["length", "chunks", "short"])
@pytest.mark.parametrize("counts", [True, False], ids=["counted", "polled"])
def test_bytes_after_a_longer_answer_are_not_read_as_the_next_answer(
    transport, serve, monkeypatch, answer, counts
):
    """It would be another job's result."""
    if not counts:
        monkeypatch.setattr(connections, "_BYTES_RECEIVED", slice(0, 1))
    server = serve(with_bytes_behind(answer))
    for number in range(1, 4):
        assert b'"result": 1' in post(transport, server.url).body
        assert server.visits == number


def test_bytes_after_an_answer_over_tls_are_not_read_as_the_next_answer(transport, serve, tmp_path):
    context, ca_pem = make_tls(tmp_path)
    server = serve(with_bytes_behind(WITH_LENGTH), tls=context)
    for number in range(1, 4):
        assert b'"result": 1' in post(transport, server.url, ca_pem=ca_pem).body
        assert server.visits == number


@pytest.mark.parametrize("size", [10, 20_000])
@pytest.mark.parametrize("in_chunks", [False, True])
def test_a_clean_connection_of_any_answer_is_used_again_without_a_poll(
    pool, transport, serve, monkeypatch, *, size, in_chunks
):
    """A poll gives the interpreter away in the middle of a slot's way to its next job."""
    polled = []
    monkeypatch.setattr(Connection, "has_no_data", lambda self: bool(polled.append(1)) or True)
    pool.fresh_seconds = 60.0
    text = b'"%s"' % (b"x" * size)
    head = b"Transfer-Encoding: chunked" if in_chunks else b"Content-Length: %d" % len(text)
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(text), text) if in_chunks else text

    def script(visit):
        while visit.read_request():
            visit.send(b"HTTP/1.1 200 OK\r\n%s\r\n\r\n%s" % (head, body))

    server = serve(script)
    for _ in range(3):
        assert post(transport, server.url).body == text
    assert (server.visits, polled) == (1, [])
