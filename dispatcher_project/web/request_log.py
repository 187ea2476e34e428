"""The lines that `django_structlog`'s middleware writes of a request, for those that never come to Django:
who reads the log sees no difference (Django's own second line about what was refused apart).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import structlog

log = structlog.get_logger("django_structlog.middlewares.request")

Scope = Mapping[str, Any]


def began(scope: Scope, named: Mapping[bytes, bytes]) -> dict[str, str | None]:
    """What every line of the request says: `request_id`, `ip`, `user_id`. named: its headers."""
    asked_by = {"request_id": str(uuid.uuid4()), "user_id": None, "ip": _ip(scope)}
    agent = named.get(b"user-agent")
    log.info(
        "request_started",
        request=_request(scope),
        user_agent=None if agent is None else agent.decode("latin1"),
        **asked_by,
    )
    return asked_by


def finished(scope: Scope, asked_by: Mapping[str, str | None], status: int, user_id: str) -> None:
    write = log.error if status >= 500 else log.info
    write("request_finished", code=status, request=_request(scope), **{**asked_by, "user_id": user_id})


def _request(scope: Scope) -> str:
    return f"{scope['method']} {scope['path']}"


def _ip(scope: Scope) -> str | None:
    """The web server has put the address in place that a trusted proxy names (`--forwarded-allow-ips`)."""
    return (scope.get("client") or (None,))[0]
