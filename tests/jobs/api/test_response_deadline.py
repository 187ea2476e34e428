"""A site with blocked threads still responds within the deadline."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest
from a2wsgi import WSGIMiddleware
from django.db import DEFAULT_DB_ALIAS, DatabaseError, InternalError, connection, connections

from dispatcher_project.web.asgi_gateway import AsgiGateway
from dispatcher_project.web.request_limits import ResponseDeadline, unless_given_up
from jobs.api.errors import problem_of
from tests.support.api_harness import GatewayClock

SUBMIT = "/api/v1/queue/submit"
SECONDS = 0.2


class HeldSite:
    """A site that starts a request and responds once released."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended = threading.Semaphore(0)
        self.may_go = threading.Event()
        self.on_begin: Callable[[], None] = lambda: None

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        self.begun.append(environ["PATH_INFO"])
        self.on_begin()
        assert self.may_go.wait(60)
        start_response("202 Accepted", [("Content-Type", "application/json")])
        yield b"{}"
        self.ended.release()


class Asked:
    """One request with its client's response."""

    def __init__(self, path: str = SUBMIT, parts: list[bytes] | None = None) -> None:
        self.scope = {
            "type": "http", "method": "POST", "path": path, "query_string": b"", "http_version": "1.1",
            "headers": [(b"content-length", b"%d" % len(b"".join(parts or [])))],
        }  # fmt: skip
        self._parts = list(parts or [])
        self.answers = self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.part_read: Callable[[], Any] = lambda: None

    async def receive(self) -> dict[str, Any]:
        self.part_read()
        part = self._parts.pop(0) if self._parts else b""
        return {"type": "http.request", "body": part, "more_body": bool(self._parts)}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.answers += 1
            self.status, self.headers = message["status"], dict(message["headers"])
        self.body += message.get("body", b"")


@pytest.fixture
def held() -> HeldSite:
    return HeldSite()


@pytest.fixture
def once_begun(gateway_clock: GatewayClock, held: HeldSite) -> None:
    """The deadline passes after the site has started the request, because its thread may start late."""
    held.on_begin = lambda: gateway_clock.move(SECONDS)


def bounded(site: HeldSite, seconds: float = SECONDS) -> ResponseDeadline:
    """The site with one thread."""
    return ResponseDeadline(
        cast("Any", WSGIMiddleware(cast("Any", unless_given_up(site)), workers=1)), seconds
    )


@pytest.mark.usefixtures("once_begun")
def test_a_late_response_is_replaced_by_a_503_and_dropped(held: HeldSite) -> None:
    calls = Asked()

    async def run() -> None:
        app = bounded(held)
        await asyncio.wait_for(app(calls.scope, calls.receive, calls.send), 15)
        held.may_go.set()
        while app._late:
            await asyncio.sleep(0.01)

    asyncio.run(run())
    assert (calls.status, calls.headers[b"retry-after"]) == (503, b"5")
    assert calls.headers[b"content-type"] == b"application/problem+json"
    body = json.loads(calls.body)
    assert (body["code"], body["retryable"]) == ("no_answer_in_time", True)
    assert held.ended.acquire(timeout=15)
    assert calls.answers == 1


@pytest.mark.usefixtures("once_begun")
def test_a_request_without_a_thread_at_its_deadline_is_not_started(held: HeldSite) -> None:
    async def run() -> None:
        app = bounded(held)
        first, second = Asked(f"{SUBMIT}?1"), Asked(f"{SUBMIT}?2")
        await asyncio.gather(*(app(one.scope, one.receive, one.send) for one in (first, second)))
        assert (first.status, second.status) == (503, 503)
        held.may_go.set()
        while app._late:
            await asyncio.sleep(0.01)

    asyncio.run(run())
    assert held.begun == [f"{SUBMIT}?1"]


def test_other_pages_have_no_response_deadline(held: HeldSite) -> None:
    async def run() -> None:
        calls = Asked("/api/v1/admin/dlq/retry-all")
        answering = asyncio.ensure_future(bounded(held, 0.0)(calls.scope, calls.receive, calls.send))
        while not held.begun:
            await asyncio.sleep(0.01)
        held.may_go.set()
        await answering
        assert calls.status == 202

    asyncio.run(run())


def test_a_long_upload_does_not_count_towards_the_response_deadline(gateway_clock: GatewayClock) -> None:
    """Each part takes most of the deadline; together they exceed it."""

    def read_all(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        assert environ["wsgi.input"].read() == b"xxxxx"
        start_response("202 Accepted", [])
        return [b""]

    async def run() -> None:
        calls = Asked(parts=[b"x"] * 5)
        site = ResponseDeadline(cast("Any", WSGIMiddleware(cast("Any", read_all))), SECONDS)
        gateway = AsgiGateway(site, lambda: pytest.fail("no hub is needed"))

        async def slowly() -> dict[str, Any]:
            gateway_clock.move(SECONDS * 0.6)  # the slow client is the point
            return await calls.receive()

        await gateway(calls.scope, slowly, calls.send)
        assert calls.status == 202

    asyncio.run(run())


def test_livez_needs_no_thread(held: HeldSite) -> None:
    async def run() -> None:
        calls = Asked("/livez")
        gateway = AsgiGateway(bounded(held), lambda: pytest.fail("no hub is needed"))
        await gateway(calls.scope, calls.receive, calls.send)
        assert (calls.status, json.loads(calls.body)) == (200, {"status": "alive"})

    asyncio.run(run())
    assert held.begun == []


@pytest.mark.django_db
@pytest.mark.database
@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no such session")
def test_a_read_only_standby_counts_as_an_unavailable_database() -> None:
    session = connections.create_connection(DEFAULT_DB_ALIAS)
    with contextlib.closing(session), session.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
        with pytest.raises(DatabaseError) as refused:
            cursor.execute("CREATE TABLE planted (n integer)")
    problem = problem_of(refused.value)
    assert (problem.status, problem.code, problem.headers) == (
        503,
        "database_unavailable",
        {"Retry-After": "5"},
    )


def test_an_aborted_transaction_is_no_unavailable_database() -> None:
    assert problem_of(InternalError("current transaction is aborted")).status == 500
