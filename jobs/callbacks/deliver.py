"""One delivery step: take a due message, send it once, write down what came of it.

The message is taken (and the try logged) in one short transaction, sent with none open, and settled in
another. A crash in between leaves the row due again when its hold runs out: a repeat with the same
`webhook-id`, never a loss. A client waits for this: each transaction is as few statements, prepared, and as
few journeys to the database as it can be.
"""

from __future__ import annotations

import http.client
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Max, OuterRef, QuerySet, Subquery

from gpus.models import prepared
from gpus.models.one_trip import one_trip
from gpus.models.prepared import value
from gpus.services.audit import record
from jobs.models import Callback, CallbackTry, Tenant

from .schedule import next_try_at
from .sending import Outcome, send_once

DELIVERED, GONE, GAVE_UP, FAILED, NOT_DUE = "delivered", "gone", "gave_up", "failed", "not_due"
_HOLD_MARGIN_SECONDS = 45.0
_UNRECORDED = "sent; its end was not recorded"
_log = structlog.get_logger(__name__)


def deliver(callback_id: str, *, now: datetime) -> str:
    """Sends a due message once. `delivered`, `gone` (410), `failed` (comes again), `gave_up`, or `not_due`
    (unknown, over, waiting, or in somebody else's hands). Never inside a transaction."""
    taken = _take(callback_id, now)
    if taken is None:
        return NOT_DUE
    outcome = send_once(taken.url, taken.tenant, message_id=callback_id, body=taken.body, now=now)
    end = _settle(taken, outcome, now=now + timedelta(milliseconds=outcome.duration_ms))
    log = _log.bind(callback_id=callback_id, job_id=taken.job_id)
    log.info("callback_tried", outcome=end, error=outcome.error)
    return end


def due_callbacks(now: datetime, limit: int) -> list[str]:
    """Ids of messages to deliver now, the longest due first."""
    due = Callback.objects.filter(state=Callback.State.PENDING, next_at__lte=now)
    return list(due.order_by("next_at").values_list("id", flat=True)[:limit])


def replay(callback_id: str, *, now: datetime, by: str) -> bool:
    """By hand: due again under the same id, the schedule from its start. False: no such message."""
    with transaction.atomic():
        changed = Callback.objects.filter(id=callback_id).update(
            state=Callback.State.PENDING, tries=0, next_at=now, delivered_at=None
        )
        if changed:
            record(by, "replay_callback", f"callback:{callback_id}")
    return bool(changed)


@dataclass(frozen=True, slots=True)
class _Taken:
    """A message with its tenant's secrets. tries: this one too. number, at: of its line in the log.
    held_until: while the row says so, this try owns it."""

    id: str
    job_id: str
    url: str
    body: str
    tenant: Tenant
    tries: int
    number: int
    at: datetime
    held_until: datetime


def _due() -> QuerySet[Any, Any]:
    """The message, if it is due, locked; what belongs to others is read beside it, and not locked."""
    tenant = Tenant.objects.filter(jobs__id=OuterRef("job_id"))
    tries = CallbackTry.objects.filter(callback=OuterRef("pk")).order_by()
    due = Callback.objects.select_for_update().filter(
        id=value(Callback, "id"), state=Callback.State.PENDING, next_at__lte=value(Callback, "next_at")
    )
    return due.values("job_id", "url", "body", "tries").annotate(
        number=Subquery(tries.values("callback").annotate(last=Max("number")).values("last")),
        **{name: Subquery(tenant.values(name)) for name in _OF_TENANT},
    )


_OF_TENANT = (
    "id",
    "webhook_secret_encrypted",
    "webhook_secret_before_encrypted",
    "webhook_secret_before_until",
)
_read_due = prepared.Read(_due)


def _take(callback_id: str, now: datetime) -> _Taken | None:
    held_until = now + timedelta(seconds=settings.DISPATCHER.callback_timeout_seconds + _HOLD_MARGIN_SECONDS)
    with one_trip(), transaction.atomic():
        due = _read_due.first(id=callback_id, next_at=now)
        if due is None:
            return None
        tenant = Tenant(**{name: due.pop(name) for name in _OF_TENANT})
        tries, number = due.pop("tries") + 1, (due.pop("number") or 0) + 1
        prepared.change(Callback, {"tries": tries, "next_at": held_until}, pk=callback_id)
        line = CallbackTry(callback_id=callback_id, number=number, at=now, error=_UNRECORDED)
        prepared.insert(line)
    return _Taken(
        callback_id, tenant=tenant, tries=tries, number=number, at=now, held_until=held_until, **due
    )


def _settle(taken: _Taken, outcome: Outcome, *, now: datetime) -> str:
    asked = outcome.answer.retry_after_seconds(now) if outcome.answer else None
    again_at = next_try_at(taken.tries, now=now, retry_after_seconds=asked)
    if not outcome.error:
        end, change = DELIVERED, {"state": Callback.State.DELIVERED, "delivered_at": now, "next_at": None}
    elif outcome.status == http.client.GONE:
        end, change = GONE, {"state": Callback.State.GONE, "next_at": None}
    elif again_at is None:
        end, change = GAVE_UP, {"state": Callback.State.GAVE_UP, "next_at": None}
    else:
        end, change = FAILED, {"next_at": again_at}
    told = {"status_code": outcome.status, "error": outcome.error, "duration_ms": outcome.duration_ms}
    with one_trip(), transaction.atomic():
        prepared.change(CallbackTry, told, callback=taken.id, number=taken.number, at=taken.at)
        # a replay by hand that came meanwhile has taken the row out of this try's hands
        mine = {"pk": taken.id, "next_at": taken.held_until, "state": Callback.State.PENDING}
        prepared.change(Callback, change, **mine)
    return end
