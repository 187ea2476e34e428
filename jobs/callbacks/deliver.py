"""One delivery step: take a due message, send it once, write down what came of it.

The message is taken (and the try logged) in one short transaction, sent with none open, and settled in
another. A crash in between leaves the row due again when its hold runs out: a repeat with the same
`webhook-id`, never a loss.
"""

from __future__ import annotations

import http.client
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import F, Max

from gpus.services.audit import record
from jobs.models import Callback, CallbackTry

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
    message = taken.callback
    outcome = send_once(message.url, message.job.tenant, message_id=message.id, body=message.body, now=now)
    end = _settle(taken, outcome, now=now + timedelta(milliseconds=outcome.duration_ms))
    log = _log.bind(callback_id=callback_id, job_id=taken.callback.job_id)
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
    """held_until: while the row says so, this try owns it."""

    callback: Callback
    log_id: int
    held_until: datetime


def _take(callback_id: str, now: datetime) -> _Taken | None:
    held_until = now + timedelta(seconds=settings.DISPATCHER.callback_timeout_seconds + _HOLD_MARGIN_SECONDS)
    with transaction.atomic():
        due = Callback.objects.filter(id=callback_id, state=Callback.State.PENDING, next_at__lte=now)
        if not due.update(tries=F("tries") + 1, next_at=held_until):
            return None
        whole = Callback.objects.select_related("job__tenant").defer("job__payload", "job__result")
        callback = whole.get(id=callback_id)
        last = CallbackTry.objects.filter(callback=callback).aggregate(last=Max("number"))["last"] or 0
        line = CallbackTry.objects.create(callback=callback, number=last + 1, at=now, error=_UNRECORDED)
    return _Taken(callback, line.pk, held_until)


def _settle(taken: _Taken, outcome: Outcome, *, now: datetime) -> str:
    asked = outcome.answer.retry_after_seconds(now) if outcome.answer else None
    again_at = next_try_at(taken.callback.tries, now=now, retry_after_seconds=asked)
    if not outcome.error:
        end, change = DELIVERED, {"state": Callback.State.DELIVERED, "delivered_at": now, "next_at": None}
    elif outcome.status == http.client.GONE:
        end, change = GONE, {"state": Callback.State.GONE, "next_at": None}
    elif again_at is None:
        end, change = GAVE_UP, {"state": Callback.State.GAVE_UP, "next_at": None}
    else:
        end, change = FAILED, {"next_at": again_at}
    with transaction.atomic():
        CallbackTry.objects.filter(pk=taken.log_id).update(
            status_code=outcome.status, error=outcome.error, duration_ms=outcome.duration_ms
        )
        # a replay by hand that came meanwhile has taken the row out of this try's hands
        mine = Callback.objects.filter(id=taken.callback.id, next_at=taken.held_until)
        mine.filter(state=Callback.State.PENDING).update(**change)
    return end
