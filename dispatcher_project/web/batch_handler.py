"""Answers a group of submits, in a thread of the batcher (`dispatcher_project.web.submit_batcher`), as the
ordinary view would each.

Whatever is wrong with a request before it costs anything is passed on to the view, which says so; and so is
one that would have to wait for somebody else, or that the database refuses in company.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, cast

import structlog
from django.db import close_old_connections, connection
from rest_framework.renderers import JSONRenderer

from dispatcher_project.web import request_log
from dispatcher_project.web.kept_values import forget_long_values
from dispatcher_project.web.submit_batcher import Asked, Reply
from foundation.http_api.json_body import read_json
from foundation.http_api.problems import MEDIA_TYPE
from gpus.registry import queries as registry
from jobs import ports as wiring
from jobs.api import refusals
from jobs.api.authentication import principal_of_header
from jobs.api.errors import problem_of
from jobs.api.parameters import idempotency_key
from jobs.api.submit import ADMISSION_KEY, most_body_bytes
from jobs.api.submit_answer import Wanted, admitted, answer_submit, read_submit
from jobs.domain.errors import Refused
from jobs.domain.scopes import Scope
from jobs.events.handover import SCOPE_KEY
from jobs.limits.rate_limits import Admission, admit_each
from jobs.ports import Ports
from jobs.reports.jobs import Principal
from jobs.submission.outcomes import Item
from jobs.submission.payload_schema import comes_alone
from jobs.submission.submit_batch import NotTogether, Submit, submit_together

log = structlog.get_logger()

_RENDERER = JSONRenderer()
STILL_ALIVE_SECONDS = 0.5


class _Last(threading.local):
    used_at = -math.inf


_last = _Last()
_ALONE = Reply(pass_on={})
_ALLOW = ("Allow", "POST, OPTIONS")
"""As the view has it. The headers of every answer are added in front (admin_ui/middleware.py)."""


@dataclass(slots=True)
class _Case:
    """A submit that the batch handler takes on. tenant_id: the principal's. key: its idempotency key. wanted:
    its body, once it has a token. asked_by: what its lines in the log say."""

    asked: Asked
    principal: Principal
    tenant_id: int
    key: str | None
    asked_by: Mapping[str, str | None] = field(default_factory=dict)
    admission: Admission = field(default_factory=Admission)
    reply: Reply = _ALONE
    wanted: Wanted = field(init=False)


def answer_together(group: Sequence[Asked]) -> list[Reply]:
    """Each one's reply, in order."""
    _look_after_connection()
    try:
        cases = [_known(asked) for asked in group]
        _answer([case for case in cases if case is not None], wiring.production_ports())
        return [_ALONE if case is None else case.reply for case in cases]
    finally:
        close_old_connections()
        forget_long_values(sum(len(asked.body) for asked in group))
        _last.used_at = monotonic()


def _look_after_connection() -> None:
    """As Django does between requests; but one that was used a moment ago is not asked whether it lives."""
    close_old_connections()
    cast("Any", connection).health_check_done = monotonic() - _last.used_at < STILL_ALIVE_SECONDS


def _known(asked: Asked) -> _Case | None:
    """None: for the view."""
    try:
        principal = principal_of_header(_text(asked, b"authorization"))
        if principal is None or principal.tenant_id is None or Scope.SUBMIT not in principal.scopes:
            return None
        if len(asked.body) > most_body_bytes():
            return None
        key = idempotency_key(_text(asked, b"idempotency-key") if b"idempotency-key" in asked.named else None)
    except Exception:  # the view says what it is
        return None
    return _Case(asked, principal, principal.tenant_id, key)


def _read(case: _Case) -> bool:
    """Whether its body is one that the batch handler takes on; else it is passed on, with its token."""
    body = case.asked.body
    try:
        case.wanted = read_submit(read_json(body), key=case.key, prefer=_text(case.asked, b"prefer"))
        spec = registry.model_spec(case.wanted.request.body.model)
        may_take_on = not case.wanted.request.reject_if_busy and not (
            spec and comes_alone(spec.payload_schema, body)
        )
    except Exception:  # the view says what it is
        may_take_on = False
    if not may_take_on:
        case.reply = Reply(pass_on={ADMISSION_KEY: case.admission})
    return may_take_on


def _text(asked: Asked, name: bytes) -> str:
    return asked.named.get(name, b"").decode("latin1")


def _answer(cases: Sequence[_Case], ports: Ports) -> None:
    cases = [case for case in _with_tokens(cases, ports) if case.admission.refused or _read(case)]
    for case in cases:
        case.asked_by = request_log.began(case.asked.scope, case.asked.named)
    welcome = [case for case in cases if case.admission.refused is None]
    submits = [
        Submit(case.wanted.request, case.tenant_id, case.principal.models, case.asked_by) for case in welcome
    ]
    try:
        became: list[Item | Exception] = [*submit_together(submits, ports)]
    except NotTogether as error:
        log.info("submits_not_together", submits=len(submits), error=str(error.__cause__).strip())
        for case in welcome:
            case.reply = Reply(pass_on={ADMISSION_KEY: case.admission})
        cases, became = [case for case in cases if case.admission.refused is not None], []
    except Exception as error:
        became = [error] * len(submits)
    items = iter(became)
    for case in cases:  # from here on nothing is passed on: it may be stored
        _close(case, next(items) if case.admission.refused is None else case.admission.refused)


def _with_tokens(cases: Sequence[_Case], ports: Ports) -> list[_Case]:
    """Those that were asked for; the others are left to the view."""
    by_tenant: dict[int, list[_Case]] = {}
    for case in cases:
        by_tenant.setdefault(case.tenant_id, []).append(case)
    asked: set[int] = set()
    for tenant_id, of_tenant in by_tenant.items():
        with suppress(Exception):  # the database is away: the view says so
            for case, admission in zip(of_tenant, admit_each(tenant_id, len(of_tenant), ports), strict=True):
                case.admission = admission
            asked.add(tenant_id)
    return [case for case in cases if case.tenant_id in asked]


def _close(case: _Case, item: Item | Exception) -> None:
    """Writes the reply."""
    try:
        rate = admitted(case.admission)
        if isinstance(item, Exception) and not isinstance(item, Refused):
            raise item
        can_wait = bool(case.asked.scope.get(SCOPE_KEY))
        answer = answer_submit(item, case.wanted, case.principal, rate, can_wait=can_wait)
        headers = {"Content-Type": _RENDERER.media_type, **answer.headers}
        status, content = answer.status, _RENDERER.render(answer.data, _RENDERER.media_type)
    except Exception as error:
        with structlog.contextvars.bound_contextvars(**case.asked_by):
            problem = problem_of(error)
            refusals.count(problem)
        headers = {**problem.headers, "Content-Type": MEDIA_TYPE}
        status, content = problem.status, problem.as_bytes()
    every = (*headers.items(), _ALLOW, ("Content-Length", str(len(content))))
    written = [(name.lower().encode("latin1"), value.encode("latin1")) for name, value in every]
    case.reply = Reply(status, written, content)
    request_log.finished(case.asked.scope, case.asked_by, status, str(case.principal.pk))
