"""The batcher for submits: those of many clients that come in the same moment are answered by one thread
together (`dispatcher_project.web.batch_handler`). A thread, a transaction and a round trip to Redis for each
of them would cost more than all the rest of a submit.

Only what is usual goes through it; everything else, and what the batch handler passes on, gets the ordinary
view (`jobs.api.submit`), which answers the same.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog
from django.conf import settings
from django.http.request import split_domain_port, validate_host

from dispatcher_project.web.response_deadline import is_given_up
from dispatcher_project.web.tenant_shares import LIGHT_BYTES
from foundation.http_api.json_body import LATER_KEY
from foundation.http_api.problems import MEDIA_TYPE, Problem
from jobs.api.representations import API_ROOT
from jobs.events.stream import Message, Receive, Send

log = structlog.get_logger()

Scope = dict[str, Any]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

SUBMIT = f"{API_ROOT}/queue/submit"
MOST = 64
"""Submits of one group."""
HANDLERS = 2
"""While one waits for the database, the other goes on. What comes meanwhile waits for one of them: one group
costs less than two small ones."""
EXTRA_HANDLERS = 2
PATIENCE_SECONDS = 0.02
"""So long. Then an extra handler begins, so that a slow transaction holds up nobody but its own."""
_JSON = frozenset(
    {b"application/json", b"application/json; charset=utf-8", b"application/json;charset=utf-8"}
)
_ANYTHING = frozenset({b"*/*", b"application/json", b"application/json, text/plain, */*"})
_UNUSUAL = frozenset({b"cookie", b"expect", b"transfer-encoding", b"content-encoding"})


@dataclass(frozen=True, slots=True)
class Reply:
    """pass_on: to the ordinary view, with these notes in the request's scope; else this is the answer."""

    status: int = 0
    headers: Sequence[tuple[bytes, bytes]] = ()
    content: bytes = b""
    pass_on: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """One submit. named: its headers."""

    scope: Scope
    named: Mapping[bytes, bytes]
    body: bytes
    reply: asyncio.Future[Reply] = field(compare=False)


_TO_NOBODY = Reply(503)

BatchHandler = Callable[[Sequence[Asked]], Sequence[Reply]]
"""Answers each, in a thread."""


class SubmitBatcher:
    """site: answers what is not usual."""

    def __init__(self, site: Application, handler: BatchHandler) -> None:
        self._site, self._handler = site, handler
        self._threads = ThreadPoolExecutor(HANDLERS + EXTRA_HANDLERS, thread_name_prefix="submit")
        self._busy = 0
        self._began_at = 0.0
        self._due: asyncio.Handle | None = None
        self._waiting: deque[Asked] = deque()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = _usual(scope)
        if named is None:
            await self._site(scope, receive, send)
            return
        body = await _whole(receive)
        asked = Asked(scope, named, body, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        if self._due is None:  # what else is ready now comes with it
            self._due = asyncio.get_running_loop().call_soon(self._begin)
        elif len(self._waiting) >= MOST:
            self._begin()
        reply = await asked.reply
        if reply.pass_on is not None:
            await self._site({**scope, **reply.pass_on}, _again(body, receive), send)
            return
        await send({"type": "http.response.start", "status": reply.status, "headers": list(reply.headers)})
        await send({"type": "http.response.body", "body": reply.content, "more_body": False})

    def close(self) -> None:
        self._threads.shutdown()

    def _begin(self) -> None:
        """Gives what waits to a batch handler, if it is time for one."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        loop = asyncio.get_running_loop()
        while self._waiting and self._busy < HANDLERS + EXTRA_HANDLERS:
            patience = self._began_at + PATIENCE_SECONDS - loop.time()
            if self._busy >= HANDLERS and patience > 0 and len(self._waiting) < MOST:
                self._due = loop.call_later(patience, self._begin)
                return
            group = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST))]
            self._busy += 1
            self._began_at = loop.time()
            answering = loop.run_in_executor(self._threads, self._answer, group)
            answering.add_done_callback(partial(self._hand_out, group))

    def _answer(self, group: Sequence[Asked]) -> Sequence[Reply]:
        """In a thread. What nobody waits for any more is not begun."""
        awaited = [not is_given_up(asked.scope) for asked in group]
        if not any(awaited):
            return [_TO_NOBODY] * len(group)
        replies = iter(self._handler([asked for asked, waits in zip(group, awaited, strict=True) if waits]))
        return [next(replies) if waits else _TO_NOBODY for waits in awaited]

    def _hand_out(self, group: Sequence[Asked], done: asyncio.Future[Sequence[Reply]]) -> None:
        self._busy -= 1
        self._begin()
        error = done.exception()
        replies = done.result() if error is None else [_broken(error)] * len(group)
        for asked, reply in zip(group, replies, strict=True):
            if not asked.reply.done():  # its client may have left
                asked.reply.set_result(reply)


def _usual(scope: Scope) -> Mapping[bytes, bytes] | None:
    """The headers, if nothing in them means anything to the ordinary view that the batcher does not know."""
    if scope["path"] != SUBMIT or scope["method"] != "POST" or scope["query_string"] or LATER_KEY in scope:
        return None
    named: dict[bytes, bytes] = dict(scope["headers"])
    length = named.get(b"content-length", b"")
    is_usual = (
        len(named) == len(scope["headers"])  # of two with one name the view makes one
        and _UNUSUAL.isdisjoint(named)
        and named.get(b"content-type", b"").lower() in _JSON
        and named.get(b"accept", b"*/*") in _ANYTHING
        and length.isdigit()
        and 0 < int(length) <= LIGHT_BYTES
        and named.get(b"authorization", b"")[:7].lower() == b"bearer "
        and not any(b"_" in name for name in named)  # under WSGI the same as a dash
        and not scope.get("root_path")
        and _is_welcome(named.get(b"host", b"").decode("latin1"))
    )
    return named if is_usual else None


def _is_welcome(host: str) -> bool:
    """As `HttpRequest.get_host` decides; where nothing is configured it decides by itself."""
    domain, _ = split_domain_port(host)
    return bool(domain) and validate_host(domain, settings.ALLOWED_HOSTS)


def _broken(error: BaseException) -> Reply:
    """The batch handler failed: what it has stored by then nobody knows."""
    log.error("batch_handler_failed", exc_info=error)
    problem = Problem(500, "internal_error", "Something went wrong on our side.")
    return Reply(500, ((b"content-type", MEDIA_TYPE.encode()),), problem.as_bytes())


async def _whole(receive: Receive) -> bytes:
    """It was taken in already (`dispatcher_project.web.request_bodies`)."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


def _again(body: bytes, receive: Receive) -> Receive:
    parts = [body]

    async def first_the_body() -> Message:
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}
        return await receive()

    return first_the_body
