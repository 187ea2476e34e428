"""How long the server waits for a client: for its request's head, and while it reads its answer."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

import pytest

from dispatcher_project.web.protocol import Reason, WebLimits, bytes_in_kernel
from tests.support.servers.serving import (
    HEAD,
    LARGE,
    WHOLE,
    Served,
    answer,
    serving,
    status_and_code,
)
from tests.support.sockets import until_closed

LIMITS = WebLimits(head_seconds=10.0, idle_seconds=60.0, read_seconds=30.0)
ASKS_FOR_LARGE, ASKS_FOR_STREAM = (WHOLE.replace(b"/ ", path + b" ", 1) for path in (b"/large", b"/stream"))


def open_to(web: Served, send: bytes = b"", receive_buffer: int = 0) -> socket.socket:
    connection = web.connect(send=send, receive_buffer=receive_buffer)
    web.wait_for(lambda: len(web.server.connections) == 1)
    return connection


@pytest.mark.parametrize("sent", [b"", b"GET", HEAD], ids=["nothing", "a word", "half a head"])
def test_a_missing_head_times_out(sent: bytes) -> None:
    with serving(LIMITS) as web:
        slow = open_to(web, sent)
        web.let_pass(9.9)
        assert len(web.server.connections) == 1
        web.let_pass(0.1)
        assert status_and_code(until_closed(slow)) == (408, "head_too_slow")
        assert web.ended(Reason.HEAD_LATE) == 1


def test_a_slowly_sent_head_times_out() -> None:
    with serving(LIMITS) as web:
        slow = open_to(web, HEAD)
        for dripped in range(1, 5):
            slow.sendall(b"X-Drip: 1\r\n")
            (one,) = web.server.connections._open
            web.wait_for(lambda dripped=dripped, one=one: one._head_bytes == len(HEAD) + 11 * dripped)
            web.let_pass(2.5)
        assert status_and_code(until_closed(slow)) == (408, "head_too_slow")


def test_the_next_head_of_a_kept_connection_times_out() -> None:
    with serving(LIMITS) as web:
        kept = open_to(web, WHOLE)
        assert answer(kept).startswith(b"HTTP/1.1 200")
        kept.sendall(HEAD)
        (one,) = web.server.connections._open
        web.wait_for(lambda: one._head_bytes == len(HEAD) and not one._unsent())  # else the wait begins later
        web.let_pass(LIMITS.idle_seconds + 9.9)
        assert len(web.server.connections) == 1
        web.let_pass(0.1)
        assert until_closed(kept) == b""
        assert web.ended(Reason.HEAD_LATE) == 1


def test_a_kept_connection_is_used_again() -> None:
    with serving(LIMITS) as web:
        kept = open_to(web)
        for _ in range(3):
            kept.sendall(WHOLE)
            assert answer(kept).startswith(b"HTTP/1.1 200")
            web.let_pass(9.0)
        assert not web.server.connections.ended


def test_a_kept_connection_without_a_next_request_is_closed() -> None:
    with serving(replace(LIMITS, idle_seconds=0.1)) as web:
        kept = open_to(web, WHOLE)
        assert answer(kept).startswith(b"HTTP/1.1 200")
        assert until_closed(kept) == b""


def test_requests_sent_ahead_are_all_answered() -> None:
    with serving(LIMITS) as web:
        last = WHOLE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        assert until_closed(web.connect(send=WHOLE * 2 + last)).count(b"HTTP/1.1 200") == 3
        assert not web.server.connections.ended


@pytest.mark.parametrize("asked", [ASKS_FOR_LARGE, ASKS_FOR_STREAM], ids=["a long answer", "a stream"])
def test_a_connection_whose_client_does_not_read_is_closed(asked: bytes) -> None:
    with serving(LIMITS) as web:
        silent = open_to(web, asked, receive_buffer=4096)
        (one,) = web.server.connections._open
        web.wait_for(lambda: one.transport.get_write_buffer_size() > 0)
        web.let_pass(0)
        web.let_pass(29.9)
        assert len(web.server.connections) == 1
        web.let_pass(0.1)
        assert web.ended(Reason.READS_SLOWLY) == 1
        assert len(until_closed(silent)) < LARGE
        web.wait_for(lambda: not web.server.server_state.tasks, "the application's end")


def test_an_unread_small_answer_is_detected_from_the_kernel() -> None:
    """It is in the kernel's hands, so nothing of it is in the process."""
    with serving(LIMITS, _drips) as web:
        open_to(web, WHOLE, receive_buffer=2304)
        (one,) = web.server.connections._open
        web.wait_for(lambda: bytes_in_kernel(one.transport.get_extra_info("socket")) > 0)
        web.let_pass(0)
        web.let_pass(30)
        assert web.ended(Reason.READS_SLOWLY) == 1


async def _drips(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x" * 20_000, "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass


def test_a_slow_client_that_reads_gets_its_whole_answer() -> None:
    with serving(LIMITS) as web:
        reader = open_to(web, ASKS_FOR_LARGE, receive_buffer=262_144)
        (one,) = web.server.connections._open
        web.wait_for(lambda: one.transport.get_write_buffer_size() > 0)
        got = 0
        while got < LARGE:
            web.let_pass(20.0)
            part = reader.recv(2 * 1024 * 1024, socket.MSG_WAITALL)
            assert part, f"closed after {got} bytes"
            got += len(part)
        assert not web.server.connections.ended


def test_unread_answers_are_bounded_and_the_oldest_connection_is_closed_first() -> None:
    with serving(WebLimits(unsent_bytes=2 * LARGE)) as web:
        silent = []
        for count in (1, 2):
            silent.append(web.connect(send=ASKS_FOR_LARGE, receive_buffer=4096))
            web.wait_for(lambda count=count: len(web.server.connections._unsent) == count)
        silent.append(web.connect(send=ASKS_FOR_LARGE, receive_buffer=4096))
        web.wait_for(lambda: web.ended(Reason.UNSENT_BYTES) == 1, "an end for one")
        assert len(until_closed(silent[0])) < LARGE
        assert len(web.server.connections) == 2
