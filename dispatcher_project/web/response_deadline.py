"""An answer in bounded time, whatever the threads behind it wait for.

A database that is paused, or a network that swallows packets, holds a thread for as long as it likes; once
all are held, every request waits. So a request under `/queue` that has no answer after a while gets a 503
from here. The thread goes on, and what it still says goes nowhere. A request that has no thread yet never
gets one: its client was told to come again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import structlog

from foundation.http_api.problems import MEDIA_TYPE, Problem
from jobs.api import refusals
from jobs.api.representations import API_ROOT
from jobs.events.stream import Message, Receive, Send

log = structlog.get_logger()

Scope = dict[str, Any]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
WsgiApplication = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

_BOUNDED = f"{API_ROOT}/queue/"
_GIVEN_UP = "dispatcher.given_up"


class ResponseDeadline:
    """seconds: counted from the request's whole body, which was taken in before there was a thread for it."""

    def __init__(self, site: Application, seconds: float) -> None:
        self._site = site
        self._seconds = seconds
        self._left_behind: set[asyncio.Future[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope["path"].startswith(_BOUNDED):
            await self._site(scope, receive, send)
            return
        exchange, until = _Exchange(send), time.monotonic() + self._seconds
        scope = {**scope, _GIVEN_UP: exchange.given_up}
        answering = asyncio.ensure_future(self._site(scope, receive, exchange.send))
        try:
            while not (answering.done() or exchange.answered):
                left = until - time.monotonic()
                if left <= 0:
                    exchange.given_up.set()
                    break
                await asyncio.wait({answering}, timeout=left)
            if not exchange.given_up.is_set():
                await answering
                return
        except asyncio.CancelledError:
            answering.cancel()
            raise
        self._left_behind.add(answering)
        answering.add_done_callback(self._is_over)
        log.error("answer_overdue", path=scope["path"], seconds=self._seconds)
        await send_problem(send, _overdue())

    def _is_over(self, answering: asyncio.Future[None]) -> None:
        self._left_behind.discard(answering)
        if not answering.cancelled() and (error := answering.exception()) is not None:
            log.warning("late_answer_failed", error=str(error))


class _Exchange:
    """One request's answer."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.answered = False
        self.given_up = threading.Event()

    async def send(self, message: Message) -> None:
        if not self.given_up.is_set():
            self.answered = True
            await self._send(message)


def unless_given_up(application: WsgiApplication) -> WsgiApplication:
    """Does not begin what nobody waits for any more."""

    def begin(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if is_given_up(environ.get("asgi.scope", {})):
            start_response("503 Service Unavailable", [])
            return [b""]
        return application(environ, start_response)

    return begin


def is_given_up(scope: Scope) -> bool:
    """Whether its client was told to come again."""
    given_up = scope.get(_GIVEN_UP)
    return given_up is not None and given_up.is_set()


async def send_problem(send: Send, problem: Problem) -> None:
    refusals.count(problem)
    content = problem.as_bytes()
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(content)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in problem.headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": content, "more_body": False})


def _overdue() -> Problem:
    return Problem(
        503,
        "no_answer_in_time",
        "It took too long; it is not known what became of it. Try again, under the same Idempotency-Key.",
    )
