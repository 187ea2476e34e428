"""A receiver with bad answers costs its own callback a try, and no other callback anything."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler

import pytest
from django.conf import LazySettings

from jobs.models import Callback
from tests.support.receivers import NOW, Receiver, Sent, deliver

Send = Callable[..., Sent]


PENDING = Callback.State.PENDING


pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("loopback_allowed")]


def test_an_endless_answer_is_cut_off(receiver: Receiver, send: Send) -> None:
    written: list[int] = []
    hung_up = threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while sum(written) < 256 * 1024 * 1024:  # an end, so that a reader without a bound fails the test
                written.append(handler.wfile.write(b"x" * 65536))
        except OSError:
            hung_up.set()

    receiver.answer = answer
    sent = send(receiver.url)
    assert deliver(sent.callback.id, now=NOW) == "delivered"
    assert hung_up.wait(10)
    assert sum(written) < 64 * 1024 * 1024


@dataclass
class Drip:
    """An answer of one byte at a time, each well within any per-read limit, for ten seconds.

    first: sent at once. stopped: ends it early. sent_all: set if the deliverer read to the end.
    """

    first: bytes
    stopped: threading.Event = field(default_factory=threading.Event)
    sent_all: threading.Event = field(default_factory=threading.Event)

    def __call__(self, handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(self.first)
        with suppress(OSError):
            for _ in range(500):
                if self.stopped.wait(0.02):
                    return
                handler.wfile.write(b"x")
            self.sent_all.set()


@pytest.mark.parametrize(
    ("first", "outcome", "seconds"),
    [
        (b"", "failed", 0.3),
        (b"HTTP/1.1 200 OK\r\nX-Slow: ", "failed", 0.3),
        (b"HTTP/1.1 200 OK\r\n\r\n", "delivered", 3.0),  # in which its head comes, however busy the machine
    ],
)
def test_a_dripping_receiver_cannot_hold_a_deliverer(
    receiver: Receiver,
    send: Send,
    settings: LazySettings,
    *,
    first: bytes,
    outcome: str,
    seconds: float,
) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, callback_timeout_seconds=seconds)
    receiver.answer = drip = Drip(first)
    sent = send(receiver.url)
    assert deliver(sent.callback.id, now=NOW) == outcome
    assert not drip.sent_all.is_set()
    drip.stopped.set()
    [line] = sent.callback.log.all()
    assert ("TimeoutError" in line.error) is (outcome == "failed")


def test_an_answer_that_is_not_http_is_a_failed_try(receiver: Receiver, send: Send) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n")

    receiver.answer = answer
    sent = send(receiver.url)
    assert deliver(sent.callback.id, now=NOW) == "failed"
    assert http.client.BadStatusLine.__name__ in sent.callback.log.get().error


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.0 200\n\n",
    ],
)
def test_interim_answers_and_bare_line_ends_are_understood(
    receiver: Receiver, send: Send, *, said: bytes
) -> None:
    receiver.answer = lambda handler: handler.wfile.write(said) and None
    assert deliver(send(receiver.url).callback.id, now=NOW) == "delivered"


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, b"HTTP/1.1 100 Continue\r\n\r\n" * 9000]
)
def test_an_endless_head_is_cut_off(receiver: Receiver, send: Send, *, said: bytes) -> None:
    receiver.answer = lambda handler: handler.wfile.write(said) and None
    sent = send(receiver.url)
    assert deliver(sent.callback.id, now=NOW) == "failed"
    assert "LineTooLong" in sent.callback.log.get().error


def test_an_answers_text_is_stored_without_control_characters(receiver: Receiver, send: Send) -> None:
    """PostgreSQL takes no NUL: the try could not be written down."""
    receiver.answer = lambda handler: handler.wfile.write(b"SSH\x00\x1b[31m\r\n") and None
    sent = send(receiver.url)
    assert deliver(sent.callback.id, now=NOW) == "failed"
    assert sent.callback.log.get().error.isprintable()
