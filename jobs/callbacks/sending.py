"""One signed message, sent once: the address is resolved and checked, and the checked one connected to."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings

from jobs.errors import CallbackUrlRefused
from jobs.models import Tenant

from .guard import read_url, resolve_allowed
from .pinned_post import Answer, post
from .signing import sign
from .tenant_secret import secrets_of


@dataclass(frozen=True, slots=True)
class Outcome:
    """answer: None if there was none. error: empty when the receiver answered 2xx. duration_ms: all of it."""

    answer: Answer | None
    error: str
    duration_ms: int

    @property
    def status(self) -> int | None:
        return self.answer.status if self.answer else None


def send_once(url: str, tenant: Tenant, *, message_id: str, body: str, now: datetime) -> Outcome:
    """Signed with the tenant's secret; ends within DISPATCHER_CALLBACK_TIMEOUT_SECONDS. Never raises, never
    inside a transaction."""
    began = time.monotonic()
    until = began + settings.DISPATCHER.callback_timeout_seconds
    answer, error = None, ""
    try:
        target = read_url(url)
        addresses = resolve_allowed(target.host, target.port, within_seconds=until - time.monotonic())
        if not addresses:
            raise CallbackUrlRefused
        headers = sign(secrets_of(tenant, now), message_id, now, body)
        headers |= {"Content-Type": "application/json", "User-Agent": "gpu-dispatcher", "Connection": "close"}
        answer = post(target, addresses, body=body.encode(), headers=headers, until=until)
        error = "" if 200 <= answer.status < 300 else f"HTTP {answer.status}"
    except Exception as failure:  # whatever it was, the message stays on its schedule and the log says why
        error = f"{type(failure).__name__}: {failure}"[:500]
    return Outcome(answer, error, int((time.monotonic() - began) * 1000))
