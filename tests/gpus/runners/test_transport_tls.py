"""TLS with an operator's own CA."""

from __future__ import annotations

import socket
import threading

import pytest

from gpus.errors import ConnectFailed, Interrupted, RunTimedOut
from gpus.runners.base import Abort
from tests.gpus.runners.certificates import make_tls
from tests.gpus.runners.posting import LONG, polite, post


@pytest.fixture
def secured(tmp_path, serve):
    context, ca_pem = make_tls(tmp_path)
    return lambda script: (serve(script, tls=context), ca_pem)


def test_the_given_ca_is_trusted_and_the_connection_kept(transport, secured):
    server, ca_pem = secured(polite)
    for _ in range(2):
        assert post(transport, server.url, ca_pem=ca_pem).status == 200
    assert server.visits == 1


def test_a_server_with_an_unknown_ca_gets_no_request(transport, secured):
    server, _ = secured(polite)
    with pytest.raises(ConnectFailed, match="certificate"):
        post(transport, server.url)
    assert server.requests == []


def test_a_connection_is_not_shared_between_cas(transport, secured, tmp_path_factory):
    server, ca_pem = secured(polite)
    post(transport, server.url, ca_pem=ca_pem)
    _, other = make_tls(tmp_path_factory.mktemp("other"))
    with pytest.raises(ConnectFailed):
        post(transport, server.url, ca_pem=other)


def test_a_ca_that_cannot_be_read_is_a_connect_failure(transport, secured):
    server, _ = secured(polite)
    for broken in ("not a certificate", "-----BEGIN CERTIFICATE-----\n\u20ac\n-----END CERTIFICATE-----"):
        with pytest.raises(ConnectFailed):
            post(transport, server.url, ca_pem=broken)


def test_a_server_that_does_not_speak_tls_is_a_connect_failure(transport, serve):
    server = serve(lambda visit: visit.send(b"hello\r\n"))
    with pytest.raises(ConnectFailed):
        post(transport, server.url.replace("http:", "https:"))


def test_an_abort_ends_a_blocked_read(transport, secured):
    server, ca_pem = secured(lambda visit: (visit.read_request(), visit.wait_for_hang_up()))
    abort = Abort()
    threading.Thread(target=lambda: (server.asked.wait(30), abort.fire()), daemon=True).start()
    with pytest.raises(Interrupted):
        post(transport, server.url, ca_pem=ca_pem, abort=abort)


def test_a_silent_server_does_not_outlive_the_deadline(transport, secured):
    def script(visit):
        visit.read_request()
        visit.answer()
        visit.wait_for_hang_up()

    server, ca_pem = secured(script)
    post(transport, server.url, ca_pem=ca_pem)  # shakes hands, which may take its time
    with pytest.raises(RunTimedOut):
        post(transport, server.url, ca_pem=ca_pem, deadline_seconds=0.3)


def test_an_abort_ends_a_handshake_that_the_server_does_not_answer(transport):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        abort = Abort()

        def hear_the_greeting_and_abort():
            sock, _ = listener.accept()
            sock.recv(100)
            abort.fire()
            sock.recv(100_000)
            sock.close()

        threading.Thread(target=hear_the_greeting_and_abort, daemon=True).start()
        with pytest.raises(Interrupted):
            post(
                transport,
                f"https://127.0.0.1:{listener.getsockname()[1]}/",
                connect_timeout_seconds=LONG,
                abort=abort,
            )
