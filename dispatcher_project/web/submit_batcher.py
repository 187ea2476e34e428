"""The submit batcher: one thread answers the submits that many clients send at the same moment. A thread, a
transaction and a round trip to Redis for each of them would cost more than all the rest of a submit.

Only ordinary requests are batched. The view (`jobs.api.submit`), which answers the same, gets requests with
other headers or without permission, those that would have to wait, and those that the database refuses in a
batch.
"""

from __future__ import annotations

import asyncio
import math
import re
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, cast

import structlog
from django.conf import settings
from django.db import close_old_connections, connection
from django.http.request import split_domain_port, validate_host
from rest_framework.renderers import JSONRenderer

import jobs.ports
from artifacts.refs import MARK
from dispatcher_project.logging import log_request_finished, log_request_started
from dispatcher_project.web.request_limits import LIGHT_BYTES, forget_long_values, is_given_up
from foundation.http_api.json_body import BODY_PENDING_KEY, read_json
from foundation.http_api.problems import MEDIA_TYPE, Problem
from jobs.api.authentication import principal_of_header
from jobs.api.errors import count_refusal, problem_of
from jobs.api.representations import API_ROOT
from jobs.api.submit import (
    ADMISSION_KEY,
    ParsedSubmit,
    admit_or_refuse,
    answer_submit,
    idempotency_key,
    max_submit_bytes,
    read_submit,
)
from jobs.domain.access import Principal
from jobs.domain.access import Scope as KeyScope
from jobs.domain.errors import Refused
from jobs.events.handover import SCOPE_KEY
from jobs.events.stream import Message, Receive, Send
from jobs.limits.submit_limits import Admission, admit_each
from jobs.ports import Ports
from jobs.submission.fetched_urls import SCOPE_KEY as FETCH_KEY
from jobs.submission.fetched_urls import FetchHandover
from jobs.submission.input_files import has_files
from jobs.submission.request import Item, is_slow_check
from jobs.submission.submit import GroupRefused, Submission, submit_group

log = structlog.get_logger()

Scope = dict[str, Any]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

SUBMIT = f"{API_ROOT}/queue/submit"
MAX_GROUP = 64
"""Most submits of one batch."""
HANDLERS = 2
"""Batches at once: one runs while the other waits for the database. Submits that arrive meanwhile wait for
one of them, because one batch costs less than two small ones."""
EXTRA_HANDLERS = 2
PATIENCE_SECONDS = 0.02
"""The longest wait before an extra handler starts, so that a slow transaction delays only its own clients."""
_JSON = frozenset(
    {b"application/json", b"application/json; charset=utf-8", b"application/json;charset=utf-8"}
)
_ACCEPTS_JSON = frozenset({b"*/*", b"application/json", b"application/json, text/plain, */*"})
_FOR_THE_VIEW = frozenset({b"cookie", b"expect", b"transfer-encoding", b"content-encoding"})
_ESCAPED_ASCII = re.compile(rb"\\u00[2-7]")
"""A client may write the `$` of a reference in this way, and has no need to."""
STILL_ALIVE_SECONDS = 0.5
"""A database connection used more recently is not tested before its next use."""
_RENDERER = JSONRenderer()
_ALLOW = ("Allow", "POST, OPTIONS")
"""The view's header. The gateway adds the headers of every answer."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a submit, or the decision to pass it on.

    pass_on: None for an answer; else the view answers, with these entries in the request's scope.
    """

    status: int = 0
    headers: Sequence[tuple[bytes, bytes]] = ()
    content: bytes = b""
    pass_on: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A submit that waits for its reply. named: its headers."""

    scope: Scope
    named: Mapping[bytes, bytes]
    body: bytes
    reply: asyncio.Future[Reply] = field(compare=False)


_GIVEN_UP = Reply(503)
"""For a client that already got a 503; it is not sent."""
_TO_VIEW = Reply(pass_on={})

BatchHandler = Callable[[Sequence[Asked]], Sequence[Reply]]
"""Replies to each submit of a batch, in order; runs in a thread."""


class SubmitBatcher:
    """ASGI application that collects submits into batches. site: answers all other requests. max_group: most
    submits of one batch. handlers, extra_handlers: batches at once."""

    def __init__(
        self,
        site: Application,
        handler: BatchHandler,
        *,
        max_group: int = MAX_GROUP,
        handlers: int = HANDLERS,
        extra_handlers: int = EXTRA_HANDLERS,
    ) -> None:
        self._site, self._handler = site, handler
        self._max_group, self._handlers, self._most_handlers = max_group, handlers, handlers + extra_handlers
        self._threads = ThreadPoolExecutor(self._most_handlers, thread_name_prefix="submit")
        self._busy = 0
        self._began_at = 0.0
        self._due: asyncio.Handle | None = None
        self._waiting: deque[Asked] = deque()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = _batchable_headers(scope)
        if named is None:
            await self._site(scope, receive, send)
            return
        body = await _read_body(receive)
        asked = Asked(scope, named, body, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        if self._due is None:  # at the end of this loop iteration, with the other submits that are ready
            self._due = asyncio.get_running_loop().call_soon(self._begin)
        elif len(self._waiting) >= self._max_group:
            self._begin()
        reply = await asked.reply
        if reply.pass_on is not None:
            await self._site({**scope, **reply.pass_on}, _replayed(body, receive), send)
            return
        await send({"type": "http.response.start", "status": reply.status, "headers": list(reply.headers)})
        await send({"type": "http.response.body", "body": reply.content, "more_body": False})

    def close(self) -> None:
        self._threads.shutdown()

    def _begin(self) -> None:
        """Hand the waiting submits to a batch handler if one is due."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        loop = asyncio.get_running_loop()
        while self._waiting and self._busy < self._most_handlers:
            patience = self._began_at + PATIENCE_SECONDS - loop.time()
            if self._busy >= self._handlers and patience > 0 and len(self._waiting) < self._max_group:
                self._due = loop.call_later(patience, self._begin)
                return
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._max_group))]
            self._busy += 1
            self._began_at = loop.time()
            answering = loop.run_in_executor(self._threads, self._answer, batch)
            answering.add_done_callback(partial(self._hand_out, batch))

    def _answer(self, batch: Sequence[Asked]) -> Sequence[Reply]:
        """Run the handler, in a thread, for the submits whose clients still wait."""
        awaited = [not is_given_up(asked.scope) for asked in batch]
        if not any(awaited):
            return [_GIVEN_UP] * len(batch)
        replies = iter(self._handler([asked for asked, waits in zip(batch, awaited, strict=True) if waits]))
        return [next(replies) if waits else _GIVEN_UP for waits in awaited]

    def _hand_out(self, batch: Sequence[Asked], done: asyncio.Future[Sequence[Reply]]) -> None:
        self._busy -= 1
        self._begin()
        error = done.exception()
        replies = done.result() if error is None else [_internal_error(error)] * len(batch)
        for asked, reply in zip(batch, replies, strict=True):
            if not asked.reply.done():  # the client may have disconnected
                asked.reply.set_result(reply)


def _batchable_headers(scope: Scope) -> Mapping[bytes, bytes] | None:
    """The headers of a submit without any that only the view understands; None for all other requests."""
    if (
        scope["path"] != SUBMIT
        or scope["method"] != "POST"
        or scope["query_string"]
        or BODY_PENDING_KEY in scope
        or _has_fetched(scope)
    ):
        return None
    named: dict[bytes, bytes] = dict(scope["headers"])
    length = named.get(b"content-length", b"")
    is_batchable = (
        len(named) == len(scope["headers"])  # the view joins two headers of one name
        and _FOR_THE_VIEW.isdisjoint(named)
        and named.get(b"content-type", b"").lower() in _JSON
        and named.get(b"accept", b"*/*") in _ACCEPTS_JSON
        and length.isdigit()
        and 0 < int(length) <= LIGHT_BYTES
        and named.get(b"authorization", b"")[:7].lower() == b"bearer "
        and not any(b"_" in name for name in named)  # under WSGI an underscore is a dash
        and not scope.get("root_path")
        and _is_allowed_host(named.get(b"host", b"").decode("latin1"))
    )
    return named if is_batchable else None


def _has_fetched(scope: Scope) -> bool:
    """Return True for the second pass of a request whose URLs were read: its token is taken."""
    handed: FetchHandover | None = scope.get(FETCH_KEY)
    return handed is not None and handed.fetched is not None


def _is_allowed_host(host: str) -> bool:
    """As `HttpRequest.get_host`, except that an empty ALLOWED_HOSTS allows none: the view decides then."""
    domain, _ = split_domain_port(host)
    return bool(domain) and validate_host(domain, settings.ALLOWED_HOSTS)


def _internal_error(error: BaseException) -> Reply:
    """500 for a failed batch handler, which may have stored some jobs."""
    log.error("submit_batch_failed", exc_info=error)
    problem = Problem(
        500,
        "internal_error",
        "An unexpected error occurred. The server's log has the event submit_batch_failed.",
    )
    return Reply(500, ((b"content-type", MEDIA_TYPE.encode()),), problem.as_bytes())


async def _read_body(receive: Receive) -> bytes:
    """The gateway has already received it whole (`dispatcher_project.web.request_limits`)."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body once more, then the messages after it."""
    parts = [body]

    async def replay() -> Message:
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}
        return await receive()

    return replay


# -- in a thread: the answers of a batch ---------------------------------------------


@dataclass(slots=True)
class _Case:
    """A submit in a batch. tenant_id: the principal's. key: the idempotency key. wanted: the parsed body,
    once the submit has a rate limit token. result: the stored item or the error. log_fields: fields of its
    log lines."""

    asked: Asked
    principal: Principal
    tenant_id: int
    key: str | None
    log_fields: Mapping[str, str | None] = field(default_factory=dict)
    admission: Admission = field(default_factory=Admission)
    reply: Reply = _TO_VIEW
    wanted: ParsedSubmit = field(init=False)
    result: Item | Exception | None = None


class _OfThread(threading.local):
    """used_at: when the thread's database connection was last used, as monotonic time."""

    used_at = -math.inf


class SubmitHandler:
    """Stores the jobs of a batch of submits, and returns their replies in order. The handler in
    production."""

    def __init__(self) -> None:
        self._of_thread = _OfThread()

    def __call__(self, batch: Sequence[Asked]) -> list[Reply]:
        self._refresh_connection()
        try:
            ports = jobs.ports.production_ports()
            cases = [_case_of(asked, ports) for asked in batch]
            _answer([case for case in cases if case is not None], ports)
            return [_TO_VIEW if case is None else case.reply for case in cases]
        finally:
            close_old_connections()
            forget_long_values(sum(len(asked.body) for asked in batch))
            self._of_thread.used_at = monotonic()

    def _refresh_connection(self) -> None:
        """As Django between requests, but a connection used within `STILL_ALIVE_SECONDS` is not tested."""
        close_old_connections()
        is_fresh = monotonic() - self._of_thread.used_at < STILL_ALIVE_SECONDS
        cast("Any", connection).health_check_done = is_fresh


def _case_of(asked: Asked, ports: Ports) -> _Case | None:
    """The submit as a case; None if the view must answer it."""
    try:
        principal = principal_of_header(_text(asked, b"authorization"), ports)
        if principal is None or principal.tenant_id is None or KeyScope.SUBMIT not in principal.scopes:
            return None
        if len(asked.body) > max_submit_bytes():
            return None
        key = idempotency_key(_text(asked, b"idempotency-key") if b"idempotency-key" in asked.named else None)
    except Exception:  # the view reports the error
        return None
    return _Case(asked, principal, principal.tenant_id, key)


def _read(case: _Case, ports: Ports) -> bool:
    """Parse the body. Return False for a submit that would wait: it goes to the view, with its token."""
    body = case.asked.body
    try:
        case.wanted = read_submit(read_json(body), key=case.key, prefer=_text(case.asked, b"prefer"))
        spec = ports.registry.model_spec(case.wanted.request.body.model)
        waits = (
            case.wanted.request.reject_if_busy
            or (spec and is_slow_check(spec.payload_schema, body))
            or MARK in body  # the store may be asked for them
            or (spec and spec.payload_schema and has_files(spec.payload_schema) and _may_have_files(body))
            or _ESCAPED_ASCII.search(body)
        )
    except Exception as error:
        case.result = error
        return True
    if waits:
        case.reply = Reply(pass_on={ADMISSION_KEY: case.admission})
    return not waits


def _may_have_files(body: bytes) -> bool:
    """Return True if a body may have a `data:` URI, or a URL whose file the dispatcher reads."""
    lower = body.lower()
    return b"data:" in lower or (settings.DISPATCHER.fetched_urls > 0 and b"https:" in lower)


def _text(asked: Asked, name: bytes) -> str:
    return asked.named.get(name, b"").decode("latin1")


def _answer(cases: Sequence[_Case], ports: Ports) -> None:
    cases = [case for case in _with_tokens(cases, ports) if case.result or _read(case, ports)]
    for case in cases:
        case.log_fields = log_request_started(case.asked.scope, case.asked.named)
    valid = [case for case in cases if case.result is None]
    submits = [
        Submission([case.wanted.request], case.tenant_id, case.principal.models, case.log_fields)
        for case in valid
    ]
    try:
        items: Sequence[Item | Exception] = submit_group(submits, ports)
    except GroupRefused as error:
        log.info("submit_group_refused", submits=len(submits), error=str(error.__cause__).strip())
        for case in valid:
            case.reply = Reply(pass_on={ADMISSION_KEY: case.admission})
        cases, valid, items = [case for case in cases if case.result is not None], [], []
    except Exception as error:
        items = [error] * len(submits)
    for case, item in zip(valid, items, strict=True):
        case.result = item
    for case in cases:  # none goes to the view from here on: its job may be stored
        _write_reply(case)


def _with_tokens(cases: Sequence[_Case], ports: Ports) -> list[_Case]:
    """Take a rate limit token for each case. Return the cases of tenants for which that worked."""
    by_tenant: dict[int, list[_Case]] = {}
    for case in cases:
        by_tenant.setdefault(case.tenant_id, []).append(case)
    done: set[int] = set()
    for tenant_id, of_tenant in by_tenant.items():
        with suppress(Exception):  # without a database the view reports the error
            for case, admission in zip(of_tenant, admit_each(tenant_id, len(of_tenant), ports), strict=True):
                case.admission, case.result = admission, admission.refused
            done.add(tenant_id)
    return [case for case in cases if case.tenant_id in done]


def _write_reply(case: _Case) -> None:
    item = case.result
    try:
        rate = admit_or_refuse(case.admission)
        assert item is not None
        if isinstance(item, Exception) and not isinstance(item, Refused):
            raise item
        can_wait = bool(case.asked.scope.get(SCOPE_KEY))
        answer = answer_submit(item, case.wanted.wait, case.principal, rate, can_wait=can_wait)
        headers = {"Content-Type": _RENDERER.media_type, **answer.headers}
        status, content = answer.status, _RENDERER.render(answer.data, _RENDERER.media_type)
    except Exception as error:
        with structlog.contextvars.bound_contextvars(**case.log_fields):
            problem = problem_of(error)
            count_refusal(problem)
        headers = {**problem.headers, "Content-Type": MEDIA_TYPE}
        status, content = problem.status, problem.as_bytes()
    every = (*headers.items(), _ALLOW, ("Content-Length", str(len(content))))
    written = [(name.lower().encode("latin1"), value.encode("latin1")) for name, value in every]
    case.reply = Reply(status, written, content)
    log_request_finished(case.asked.scope, case.log_fields, status, str(case.principal.pk))
