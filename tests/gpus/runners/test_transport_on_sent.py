"""The `on_sent` callback: called once, and never delays the request."""

from __future__ import annotations

import socket

import pytest

from gpus.errors import ConnectFailed, ServerLost
from gpus.runners.connections import Origin
from tests.gpus.runners.posting import polite, post
from tests.support.ports import free_port


def test_on_a_kept_connection_the_request_is_there_first(transport, serve):
    server = serve(polite)
    post(transport, server.url)
    server.asked.clear()
    came = []
    post(transport, server.url, on_sent=lambda: came.append(server.asked.wait(30)))
    assert came == [True]


def test_a_new_connection_is_not_waited_for(transport, serve):
    server = serve(polite)
    visits = []
    post(transport, server.url, on_sent=lambda: visits.append(server.visits))
    assert visits == [0]


def test_on_sent_is_called_once_if_the_connection_fails(transport):
    called = []
    with pytest.raises(ConnectFailed):
        post(transport, f"http://127.0.0.1:{free_port()}/", on_sent=lambda: called.append(1))
    assert called == [1]


def test_on_sent_is_called_once_after_a_stale_pooled_connection(transport, pool, serve, monkeypatch):
    server = serve(polite)
    post(transport, server.url)
    origin = Origin("http", "127.0.0.1", server.port)
    kept = pool.take(origin)
    kept.sock.shutdown(socket.SHUT_WR)
    monkeypatch.setattr(type(kept), "is_open", lambda self: True)
    pool.keep(origin, kept)
    called = []
    post(transport, server.url, on_sent=lambda: called.append(1))
    assert called == [1]


def test_on_sent_is_called_once_without_an_answer(transport, serve):
    def script(visit):
        visit.read_request()
        visit.answer()
        visit.read_request()

    server = serve(script)
    called = []
    post(transport, server.url)
    with pytest.raises(ServerLost):
        post(transport, server.url, on_sent=lambda: called.append(1))
    assert called == [1]


def test_on_sent_is_not_called_for_an_invalid_request(transport, serve):
    server = serve(polite)
    called = []
    with pytest.raises(ConnectFailed):
        post(transport, server.url, headers={"": "b"}, on_sent=lambda: called.append(1))
    assert called == []
