"""The checked address is the one connected to: DNS rebinding, TLS by name, slow senders."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from foundation import http_client
from jobs.callbacks import sending
from jobs.callbacks.guard import Address
from jobs.callbacks.sending import Answer
from tests.support.receivers import NOW, Receiver, Sent, deliver
from tests.support.servers.certificate import make_certificate

Send = Callable[..., Sent]


@pytest.mark.django_db(transaction=True)
def test_a_name_that_resolves_differently_later_is_connected_at_the_checked_address(
    receiver: Receiver, send: Send, names: dict[str, list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    names["rebinds.example.com"] = [["8.8.8.8"], ["127.0.0.1"]]
    sent = send(f"http://rebinds.example.com:{receiver.port}/hook")
    asked: list[tuple[str, int]] = []

    async def connect(address: Address, port: int) -> socket.socket:
        asked.append((str(address), port))
        raise ConnectionRefusedError

    monkeypatch.setattr(http_client, "open_socket", connect)
    assert deliver(sent.callback.id, now=NOW) == "failed"
    assert asked == [("8.8.8.8", receiver.port)]
    assert deliver(sent.callback.id, now=NOW + timedelta(minutes=1)) == "failed"  # now it says 127.0.0.1
    assert asked == [("8.8.8.8", receiver.port)]
    assert "CallbackUrlRefused" in sent.callback.log.all()[1].error
    assert receiver.got == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("loopback_allowed")
def test_the_host_header_is_the_name_though_the_address_is_connected_to(
    receiver: Receiver, send: Send, names: dict[str, list[list[str]]]
) -> None:
    names["bücher.example.com"] = names["xn--bcher-kva.example.com"] = [["127.0.0.1"]]
    sent = send(f"http://bücher.example.com:{receiver.port}/höök")
    assert deliver(sent.callback.id, now=NOW) == "delivered"
    assert receiver.got[0].headers["Host"] == f"xn--bcher-kva.example.com:{receiver.port}"
    assert receiver.got[0].path == "/h%C3%B6%C3%B6k"


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("loopback_allowed")
def test_the_next_address_is_tried_when_one_is_dead(
    receiver: Receiver, send: Send, names: dict[str, list[list[str]]]
) -> None:
    names["two.example.com"] = [["127.0.0.2", "127.0.0.1"]]  # the receiver listens on .1 alone
    sent = send(f"http://two.example.com:{receiver.port}/hook")
    assert deliver(sent.callback.id, now=NOW) == "delivered"


@pytest.mark.parametrize(
    ("name", "knows_its_ca", "outcome"),
    [
        ("hooks.example.test", True, "delivered"),
        ("other.example.test", True, "failed"),
        ("hooks.example.test", False, "failed"),
    ],
)
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("loopback_allowed")
def test_tls_is_verified_by_name(
    send: Send,
    names: dict[str, list[list[str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    name: str,
    knows_its_ca: bool,
    outcome: str,
) -> None:
    certificate = make_certificate(tmp_path, "hooks.example.test")
    if knows_its_ca:
        monkeypatch.setattr(sending, "_tls", lambda: ssl.create_default_context(cafile=str(certificate)))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    asked_for: list[str | None] = []
    server.sni_callback = lambda sock, asked, context: asked_for.append(asked)
    names[name] = [["127.0.0.1"]]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_answer_once, args=(listener, server), daemon=True)
        thread.start()
        sent = send(f"https://{name}:{listener.getsockname()[1]}/hook")
        assert deliver(sent.callback.id, now=NOW) == outcome
        thread.join(10)
    assert asked_for == [name]
    assert ("SSLCertVerificationError" in sent.callback.log.get().error) is (outcome == "failed")


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120.0),
        ("Tue, 01 Jan 2030 00:01:00 GMT", 60.0),
        ("Mon, 01 Jan 2029 00:00:00 GMT", 0.0),
        ("soon", None),
        ("-5", None),
        ("", None),
        (None, None),
        ("9" * 400, 999999999.0),
        ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", None),
        ("Mon, 01 Jan 2030 00:00:00 +99999999999999999999", None),
    ],
)
def test_retry_after_is_read_as_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert Answer(503, header).retry_after_seconds(NOW) == seconds


def _answer_once(listener: socket.socket, context: ssl.SSLContext) -> None:
    sock, _ = listener.accept()
    try:
        with context.wrap_socket(sock, server_side=True) as secure:
            while b"\r\n\r\n" not in secure.recv(65536):
                pass
            secure.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            secure.recv(65536)
    except OSError:
        sock.close()
