"""The transport against servers that misbehave on real sockets."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from gpus.errors import ConnectFailed, Interrupted, RunFailed, RunTimedOut, ServerLost
from gpus.runners import pool as pool_module
from gpus.runners.base import Abort, Response
from gpus.runners.connections import Origin
from gpus.runners.transport import HttpTransport, ResponseTooLarge

LONG = 60.0


def post(transport: HttpTransport, url: str, body: bytes | None = b"{}", **options: Any) -> Response:
    defaults: dict[str, Any] = {
        "headers": {},
        "connect_timeout_seconds": 5.0,
        "deadline_seconds": LONG,
        "max_bytes": 1_000_000,
    }
    return transport.request("POST", url, body=body, **(defaults | options))


def polite(visit):
    while visit.read_request():
        visit.answer()


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


def test_redirects_are_answers_and_not_followed(transport, serve):
    def script(visit):
        visit.read_request()
        visit.send(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")

    server = serve(script)
    assert post(transport, server.url).status == 302
    assert len(server.requests) == 1


# -- keeping connections ---------------------------------------------------------------------------------


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
        assert server.closed.wait(5)
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


def test_a_kept_connection_that_takes_nothing_is_replaced_by_a_fresh_one(transport, pool, serve, monkeypatch):
    server = serve(polite)
    post(transport, server.url)
    origin = Origin("http", "127.0.0.1", server.port)
    kept = pool.take(origin)
    kept.sock.shutdown(socket.SHUT_WR)  # as after a reset that came between the look and the write
    monkeypatch.setattr(type(kept), "is_quiet", lambda self: True)
    pool.keep(origin, kept)
    assert post(transport, server.url).status == 200
    assert server.visits == 2
    assert len(server.requests) == 2


def test_an_old_idle_connection_is_given_up(transport, serve, monkeypatch):
    server = serve(polite)
    post(transport, server.url)
    monkeypatch.setattr(pool_module, "MAX_IDLE_SECONDS", 0.0)
    post(transport, server.url)
    assert server.visits == 2


def test_idle_connections_are_bounded(transport, pool, serve, monkeypatch):
    monkeypatch.setattr(pool_module, "MAX_IDLE_PER_ORIGIN", 1)
    both = threading.Barrier(2)

    def script(visit):
        while visit.read_request():
            both.wait(5)
            visit.answer()

    server = serve(script)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda _: post(transport, server.url), range(2)))
    origin = Origin("http", "127.0.0.1", server.port)
    assert pool.take(origin) is not None
    assert pool.take(origin) is None


def test_a_server_that_wants_to_close_is_let_go(transport, serve):
    def script(visit):
        visit.read_request()
        visit.answer(head="Connection: close\r\n")
        visit.wait_for_hang_up()

    server = serve(script)
    post(transport, server.url)
    assert server.hung_up.wait(5)


# -- what went wrong ---------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:{closed}/", "ftp://127.0.0.1/", "http://a..b/", "http://[::1/", "http:///path", ""],
)
def test_what_cannot_be_reached_is_a_connect_failure(transport, url):
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


def test_an_answer_given_before_the_body_was_read_is_heard(transport, serve):
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
    assert server.hung_up.wait(5)


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


# -- ending a read from another thread ----------------------------------------------------------------------


def test_an_abort_ends_a_blocked_read(transport, serve):
    server = serve(lambda visit: (visit.read_request(), visit.wait_for_hang_up()))
    abort = Abort()
    threading.Thread(target=lambda: (server.asked.wait(5), abort.fire()), daemon=True).start()
    with pytest.raises(Interrupted):
        post(transport, server.url, abort=abort)
    assert server.hung_up.wait(5)


def test_an_abort_inside_the_body_is_not_taken_for_a_lost_server(transport, serve):
    def script(visit):
        visit.read_request()
        visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
        visit.wait_for_hang_up()

    server = serve(script)
    abort = Abort()
    threading.Thread(target=lambda: (server.asked.wait(5), abort.fire()), daemon=True).start()
    with pytest.raises(Interrupted):
        post(transport, server.url, abort=abort)


def test_an_abort_that_came_first_sends_nothing(transport, serve):
    server = serve(polite)
    abort = Abort()
    abort.fire()
    with pytest.raises(Interrupted):
        post(transport, server.url, abort=abort)
    assert server.visits == 0


@pytest.fixture
def deaf_url():
    """An address whose queue is full: the kernel lets further callers wait."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as crowd:
        for _ in range(4):
            one = crowd.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"


def test_an_abort_ends_a_connect_that_nobody_answers(transport, deaf_url):
    abort = Abort()
    registered = threading.Event()
    set_reader = abort.set_reader
    abort.set_reader = lambda end: (set_reader(end), registered.set())  # type: ignore[method-assign]
    threading.Thread(target=lambda: (registered.wait(5), abort.fire()), daemon=True).start()
    with pytest.raises(Interrupted):
        post(transport, deaf_url, connect_timeout_seconds=LONG, abort=abort)


def test_an_abort_just_before_the_connect_ends_it_too(transport, deaf_url):
    """There is nothing to shut down at that moment."""
    abort = Abort()
    abort.set_reader = lambda end: abort.fire()  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        post(transport, deaf_url, connect_timeout_seconds=LONG, abort=abort)


def test_a_connect_that_nobody_answers_is_given_up(transport, deaf_url):
    with pytest.raises(ConnectFailed, match="timed out"):
        post(transport, deaf_url, connect_timeout_seconds=0.1)


def test_a_late_abort_does_not_end_the_next_run_on_the_same_connection(transport, serve):
    go_on = threading.Event()
    ends = []

    def script(visit):
        visit.read_request()
        visit.answer()
        visit.read_request()
        ends[0]()  # the first run's abort, as if it had been under way all the time
        visit.answer()
        go_on.wait(5)

    server = serve(script)
    first = Abort()
    set_reader = first.set_reader
    first.set_reader = lambda end: (set_reader(end), ends.append(end) if end else None)  # type: ignore[method-assign]
    post(transport, server.url, abort=first)
    del ends[:-1]
    assert post(transport, server.url, abort=Abort()).status == 200
    assert server.visits == 1
    go_on.set()
