"""An abort from another thread ends the current wait of the transport at once, and nothing else."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack

import pytest

from gpus.errors import ConnectFailed, Interrupted
from gpus.runners.base import Abort
from tests.gpus.runners.posting import LONG, polite, post


def test_an_abort_ends_a_blocked_read(transport, serve):
    server = serve(lambda visit: (visit.read_request(), visit.wait_for_hang_up()))
    abort = Abort()
    threading.Thread(target=lambda: (server.asked.wait(30), abort.fire()), daemon=True).start()
    with pytest.raises(Interrupted):
        post(transport, server.url, abort=abort)
    assert server.hung_up.wait(30)


def test_an_abort_inside_the_body_is_not_taken_for_a_lost_server(transport, serve):
    def script(visit):
        visit.read_request()
        visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
        visit.wait_for_hang_up()

    server = serve(script)
    abort = Abort()
    threading.Thread(target=lambda: (server.asked.wait(30), abort.fire()), daemon=True).start()
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
    """An address with a full accept queue: the kernel lets further connects wait."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as connections:
        for _ in range(4):
            one = connections.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"


def test_an_abort_ends_a_pending_connect(transport, deaf_url):
    abort = Abort()
    registered = threading.Event()
    set_reader = abort.set_reader
    abort.set_reader = lambda end: (set_reader(end), registered.set())  # type: ignore[method-assign]
    threading.Thread(target=lambda: (registered.wait(30), abort.fire()), daemon=True).start()
    with pytest.raises(Interrupted):
        post(transport, deaf_url, connect_timeout_seconds=LONG, abort=abort)


def test_an_abort_just_before_the_connect_ends_it(transport, deaf_url):
    """No socket can be shut down at that moment."""
    abort = Abort()
    abort.set_reader = lambda end: abort.fire()  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        post(transport, deaf_url, connect_timeout_seconds=LONG, abort=abort)


def test_a_pending_connect_times_out(transport, deaf_url):
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
        go_on.wait(30)

    server = serve(script)
    first = Abort()
    set_reader = first.set_reader
    first.set_reader = lambda end: (set_reader(end), ends.append(end) if end else None)  # type: ignore[method-assign]
    post(transport, server.url, abort=first)
    del ends[:-1]
    assert post(transport, server.url, abort=Abort()).status == 200
    assert server.visits == 1
    go_on.set()
