"""A receiver of callbacks, and their delivery."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler

import pytest
from django.conf import LazySettings

from gpus.registry.queries import RegistryCache
from jobs.callbacks.deliver import settle, take
from jobs.callbacks.guard import refused_origins
from jobs.callbacks.message import signing_secrets
from jobs.callbacks.sending import Message, Outcome, failure_text, send_now
from jobs.models import Callback
from tests.support.servers.handlers import QuietHandler, serve_handler


@dataclass
class Got:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """answer: called with the handler after the request was read; writes the whole reply."""

    answer: Callable[[BaseHTTPRequestHandler], None]
    got: list[Got] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"


def say(status: int, headers: dict[str, str] | None = None) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver(say(204))

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.got.append(Got(self.path, dict(self.headers), body))
            receiver.answer(self)

        def do_GET(self) -> None:  # what a followed redirect would ask for
            receiver.got.append(Got(self.path, dict(self.headers), b""))
            receiver.answer(self)

    with serve_handler(Handler) as url:
        receiver.port = int(url.rpartition(":")[2])
        yield receiver


@pytest.fixture
def loopback_allowed(settings: LazySettings) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, callback_networks=("127.0.0.0/8",))


NOW = datetime(2030, 1, 1, tzinfo=UTC)


def deliver(callback_id: str, *, now: datetime, registry: RegistryCache | None = None) -> str:
    """The three steps of a delivery, one after the other in this thread; ``not_due`` if no message was
    taken."""
    taken, _ = take([callback_id], now, lambda *_: True)
    if not taken:
        return "not_due"
    [one] = taken
    try:
        secrets = signing_secrets(one.tenant, now)
    except Exception as failure:
        outcome = Outcome(None, failure_text(failure), 0)
    else:
        refused = refused_origins(registry or RegistryCache())
        outcome = send_now(Message(one.id, one.tenant.pk, one.url, one.body, secrets, refused), now=now)
    [end] = settle([(one, outcome)], now + timedelta(milliseconds=outcome.duration_ms))
    return end


@dataclass
class Sent:
    """A finished job's message in the outbox, and the secret its tenant was shown."""

    callback: Callback
    secret: str

    def fresh(self) -> Callback:
        self.callback.refresh_from_db()
        return self.callback
