"""The batcher for submits: those of many clients that come in the same moment are answered by one thread
together. A thread, a transaction and a round trip to Redis for each of them would cost more than all the rest
of a submit.

Only what is usual goes through it. The ordinary view (`jobs.api.submit`), which answers the same, gets what
is not; what may not submit; what would have to wait for somebody else; and what the database refuses in
company.
"""

from __future__ import annotations

import asyncio
import math
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
from dispatcher_project.logging import log_request_finished, log_request_started
from dispatcher_project.web.request_limits import LIGHT_BYTES, forget_long_values, is_given_up
from foundation.http_api.json_body import LATER_KEY, read_json
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
from jobs.submission.request import Item, is_slow_check
from jobs.submission.submit import GroupRefused, Submission, submit_group

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
"""The longest a full queue waits before an extra handler begins, so that a slow transaction holds up its own
clients only."""
_JSON = frozenset(
    {b"application/json", b"application/json; charset=utf-8", b"application/json;charset=utf-8"}
)
_ANYTHING = frozenset({b"*/*", b"application/json", b"application/json, text/plain, */*"})
_UNUSUAL = frozenset({b"cookie", b"expect", b"transfer-encoding", b"content-encoding"})
STILL_ALIVE_SECONDS = 0.5
"""A connection that was used more recently is not tested before its next use."""
_RENDERER = JSONRenderer()
_ALLOW = ("Allow", "POST, OPTIONS")
"""As the view has it. The gateway adds the headers of every answer."""


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
_ALONE = Reply(pass_on={})

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
    log.error("submit_batch_failed", exc_info=error)
    problem = Problem(
        500,
        "internal_error",
        "An unexpected error occurred. The server's log has the event submit_batch_failed.",
    )
    return Reply(500, ((b"content-type", MEDIA_TYPE.encode()),), problem.as_bytes())


async def _whole(receive: Receive) -> bytes:
    """It was taken in already (`dispatcher_project.web.request_limits`)."""
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


# -- in a thread: a group's answers --------------------------------------------------


class _Last(threading.local):
    used_at = -math.inf


_last = _Last()


@dataclass(slots=True)
class _Case:
    """A submit that the batcher takes on. tenant_id: the principal's. key: its idempotency key. wanted: its
    body, once it has a token. became: what it is answered. asked_by: what its lines in the log say."""

    asked: Asked
    principal: Principal
    tenant_id: int
    key: str | None
    asked_by: Mapping[str, str | None] = field(default_factory=dict)
    admission: Admission = field(default_factory=Admission)
    reply: Reply = _ALONE
    wanted: ParsedSubmit = field(init=False)
    became: Item | Exception | None = None


def answer_together(group: Sequence[Asked]) -> list[Reply]:
    """Each one's reply, in order."""
    _look_after_connection()
    try:
        ports = jobs.ports.production_ports()
        cases = [_case_of(asked, ports) for asked in group]
        _answer([case for case in cases if case is not None], ports)
        return [_ALONE if case is None else case.reply for case in cases]
    finally:
        close_old_connections()
        forget_long_values(sum(len(asked.body) for asked in group))
        _last.used_at = monotonic()


def _look_after_connection() -> None:
    """As Django does between requests; but one that was used a moment ago is not asked whether it lives."""
    close_old_connections()
    cast("Any", connection).health_check_done = monotonic() - _last.used_at < STILL_ALIVE_SECONDS


def _case_of(asked: Asked, ports: Ports) -> _Case | None:
    """None: for the view."""
    try:
        principal = principal_of_header(_text(asked, b"authorization"), ports)
        if principal is None or principal.tenant_id is None or KeyScope.SUBMIT not in principal.scopes:
            return None
        if len(asked.body) > max_submit_bytes():
            return None
        key = idempotency_key(_text(asked, b"idempotency-key") if b"idempotency-key" in asked.named else None)
    except Exception:  # the view says what it is
        return None
    return _Case(asked, principal, principal.tenant_id, key)


def _read(case: _Case, ports: Ports) -> bool:
    """Whether the batcher takes it on; what would wait for somebody else is passed on, with its token."""
    body = case.asked.body
    try:
        case.wanted = read_submit(read_json(body), key=case.key, prefer=_text(case.asked, b"prefer"))
        spec = ports.registry.model_spec(case.wanted.request.body.model)
        waits = case.wanted.request.reject_if_busy or (spec and is_slow_check(spec.payload_schema, body))
    except Exception as error:
        case.became = error
        return True
    if waits:
        case.reply = Reply(pass_on={ADMISSION_KEY: case.admission})
    return not waits


def _text(asked: Asked, name: bytes) -> str:
    return asked.named.get(name, b"").decode("latin1")


def _answer(cases: Sequence[_Case], ports: Ports) -> None:
    cases = [case for case in _with_tokens(cases, ports) if case.became or _read(case, ports)]
    for case in cases:
        case.asked_by = log_request_started(case.asked.scope, case.asked.named)
    welcome = [case for case in cases if case.became is None]
    submits = [
        Submission([case.wanted.request], case.tenant_id, case.principal.models, case.asked_by)
        for case in welcome
    ]
    try:
        items: Sequence[Item | Exception] = submit_group(submits, ports)
    except GroupRefused as error:
        log.info("submits_not_together", submits=len(submits), error=str(error.__cause__).strip())
        for case in welcome:
            case.reply = Reply(pass_on={ADMISSION_KEY: case.admission})
        cases, welcome, items = [case for case in cases if case.became is not None], [], []
    except Exception as error:
        items = [error] * len(submits)
    for case, item in zip(welcome, items, strict=True):
        case.became = item
    for case in cases:  # from here on nothing is passed on: it may be stored
        _write_reply(case)


def _with_tokens(cases: Sequence[_Case], ports: Ports) -> list[_Case]:
    """Those that were asked for; the others are left to the view."""
    by_tenant: dict[int, list[_Case]] = {}
    for case in cases:
        by_tenant.setdefault(case.tenant_id, []).append(case)
    asked: set[int] = set()
    for tenant_id, of_tenant in by_tenant.items():
        with suppress(Exception):  # the database is away: the view says so
            for case, admission in zip(of_tenant, admit_each(tenant_id, len(of_tenant), ports), strict=True):
                case.admission, case.became = admission, admission.refused
            asked.add(tenant_id)
    return [case for case in cases if case.tenant_id in asked]


def _write_reply(case: _Case) -> None:
    """Writes the reply."""
    item = case.became
    try:
        rate = admit_or_refuse(case.admission)
        assert item is not None
        if isinstance(item, Exception) and not isinstance(item, Refused):
            raise item
        can_wait = bool(case.asked.scope.get(SCOPE_KEY))
        answer = answer_submit(item, case.wanted, case.principal, rate, can_wait=can_wait)
        headers = {"Content-Type": _RENDERER.media_type, **answer.headers}
        status, content = answer.status, _RENDERER.render(answer.data, _RENDERER.media_type)
    except Exception as error:
        with structlog.contextvars.bound_contextvars(**case.asked_by):
            problem = problem_of(error)
            count_refusal(problem)
        headers = {**problem.headers, "Content-Type": MEDIA_TYPE}
        status, content = problem.status, problem.as_bytes()
    every = (*headers.items(), _ALLOW, ("Content-Length", str(len(content))))
    written = [(name.lower().encode("latin1"), value.encode("latin1")) for name, value in every]
    case.reply = Reply(status, written, content)
    log_request_finished(case.asked.scope, case.asked_by, status, str(case.principal.pk))
