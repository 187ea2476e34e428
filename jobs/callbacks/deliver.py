"""The two transactions of a delivery: due messages are taken, and what came of them is written down.

A message is taken (and the try logged) in one short transaction, sent with none open, and settled in
another. A crash in between leaves the row due again when its lease runs out: a repeat with the same
`webhook-id`, never a loss. A client waits for this: each transaction is as few statements, prepared, and as
few journeys to the database as it can be, and messages that come together share one.
"""

from __future__ import annotations

import http.client
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Case, Max, OuterRef, QuerySet, Subquery, When
from django.db.models.functions import Length

from foundation.database import statements
from foundation.database.pipeline import one_round_trip
from foundation.database.statements import value
from gpus.registry.audit import record
from jobs.models import Callback, CallbackTry, ReceiverCircuit, Tenant

from . import circuits
from .guard import receiver_of
from .schedule import next_try_at
from .sending import Outcome
from .shares import CLOSED, Circuit, Queue

DELIVERED, GONE, GAVE_UP, FAILED = "delivered", "gone", "gave_up", "failed"
LEASE_MARGIN_SECONDS = 45.0
"""A try's lease is so much longer than its longest time on the way."""
_UNRECORDED = "sent; its end was not recorded"
_SMALL_BYTES = 64 * 1024
"""Larger bodies are read only once they may be sent."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Taken:
    """A message with its tenant's secrets. tries: this one too. number, at: of its line in the log.
    held_until: while the row says so, this try owns it."""

    id: str
    job_id: str
    url: str
    body: str
    size: int
    tenant: Tenant
    queue: Queue
    circuit: Circuit
    tries: int
    number: int
    at: datetime
    held_until: datetime


MayStart = Callable[[Queue, Circuit, int], bool]
"""Whether a message of so many bytes may be sent now; asked once for each, and counted if so."""


def take(ids: Sequence[str], now: datetime, may_start: MayStart) -> tuple[list[Taken], int]:
    """The due ones of these that may start, leased; and how many may not. Never inside a transaction."""
    if not ids:
        return [], 0
    lease = timedelta(seconds=settings.DISPATCHER.callback_timeout_seconds + LEASE_MARGIN_SECONDS)
    taken, refused = list[Taken](), 0
    with one_round_trip(), transaction.atomic():
        due = {row["id"]: row for row in _read_due(list(ids), next_at=now)}
        for row in (due[pk] for pk in dict.fromkeys(ids) if pk in due):
            queue = (row["of_id"], row["receiver"] or receiver_of(row["url"]))
            circuit = Circuit(row["failures"], row["resting_until"]) if row["failures"] else CLOSED
            if not may_start(queue, circuit, row["size"]):
                refused += 1
                continue
            tenant = Tenant(**{name: row[f"of_{name}"] for name in _OF_TENANT})
            one = Taken(
                row["id"],
                row["job_id"],
                row["url"],
                row["small_body"] if row["small_body"] is not None else _body(id=row["id"])[0],
                row["size"],
                tenant,
                queue,
                circuit,
                tries=row["tries"] + 1,
                number=(row["number"] or 0) + 1,
                at=now,
                held_until=now + lease,
            )
            taken.append(one)
        for one in taken:
            held = {"tries": one.tries, "next_at": one.held_until, "sending_until": one.held_until}
            statements.change(Callback, held, pk=one.id)
            line = CallbackTry(callback_id=one.id, number=one.number, at=now, error=_UNRECORDED)
            statements.insert(line)
    return taken, refused


def settle(sent: Sequence[tuple[Taken, Outcome]], now: datetime) -> list[str]:
    """Write down what came of these tries, all or none. `delivered`, `gone` (410), `failed` (comes again) or
    `gave_up` of each."""
    ends = [_end(taken, outcome, now) for taken, outcome in sent]
    with one_round_trip(), transaction.atomic():
        for (taken, outcome), (_, change) in zip(sent, ends, strict=True):
            told = {"status_code": outcome.status, "error": outcome.error, "duration_ms": outcome.duration_ms}
            statements.change(CallbackTry, told, callback=taken.id, number=taken.number, at=taken.at)
            # a replay by hand that came meanwhile has taken the row out of this try's hands
            mine = {"pk": taken.id, "next_at": taken.held_until, "state": Callback.State.PENDING}
            statements.change(Callback, change | {"sending_until": None}, **mine)
        _update_circuits(sent, now)
    for (taken, outcome), (end, _) in zip(sent, ends, strict=True):
        log = _log.bind(callback_id=taken.id, job_id=taken.job_id)
        log.info("callback_tried", outcome=end, error=outcome.error)
    return [end for end, _ in ends]


def is_silent(outcome: Outcome) -> bool:
    """Nothing answered, and a socket was held for it."""
    return outcome.answer is None and outcome.duration_ms >= circuits.SILENT_SECONDS * 1000


def due_callbacks(now: datetime, limit: int) -> list[str]:
    """Ids of messages to deliver now, the longest due first."""
    due = Callback.objects.filter(state=Callback.State.PENDING, next_at__lte=now)
    return list(due.order_by("next_at").values_list("id", flat=True)[:limit])


def replay(callback_id: str, *, now: datetime, by: str) -> bool:
    """By hand: due again under the same id, the schedule from its start. False: no such message."""
    with transaction.atomic():
        changed = Callback.objects.filter(id=callback_id).update(
            state=Callback.State.PENDING, tries=0, next_at=now, delivered_at=None, sending_until=None
        )
        if changed:
            record(by, "replay_callback", f"callback:{callback_id}")
    return bool(changed)


_OF_TENANT = (
    "id",
    "webhook_secret_encrypted",
    "webhook_secret_before_encrypted",
    "webhook_secret_before_until",
)


def _due(ids: Sequence[Any]) -> QuerySet[Any, Any]:
    """Those that are due, locked; what belongs to others is read beside them, and not locked."""
    tenant = Tenant.objects.filter(jobs__id=OuterRef("job_id"))
    tries = CallbackTry.objects.filter(callback=OuterRef("pk")).order_by()
    circuit = ReceiverCircuit.objects.filter(tenant_id=OuterRef("tenant_id"), receiver=OuterRef("receiver"))
    due = Callback.objects.select_for_update(skip_locked=True).filter(
        id__in=ids, state=Callback.State.PENDING, next_at__lte=value(Callback, "next_at")
    )
    return due.values("id", "job_id", "url", "tries", "receiver").annotate(
        size=Length("body"),  # JSON in ASCII
        small_body=Case(When(size__lte=_SMALL_BYTES, then="body")),
        number=Subquery(tries.values("callback").annotate(last=Max("number")).values("last")),
        failures=Subquery(circuit.values("failures")),
        resting_until=Subquery(circuit.values("resting_until")),
        **{f"of_{name}": Subquery(tenant.values(name)) for name in _OF_TENANT},
    )


_read_due = statements.ReadAmong((Callback, "id"), rows=_due)
_body = statements.Read(
    lambda: Callback.objects.filter(id=value(Callback, "id")).values_list("body", flat=True)
)


def _end(taken: Taken, outcome: Outcome, now: datetime) -> tuple[str, dict[str, Any]]:
    asked = outcome.answer.retry_after_seconds(now) if outcome.answer else None
    again_at = next_try_at(taken.tries, now=now, retry_after_seconds=asked)
    if not outcome.error:
        return DELIVERED, {"state": Callback.State.DELIVERED, "delivered_at": now, "next_at": None}
    if outcome.status == http.client.GONE:
        return GONE, {"state": Callback.State.GONE, "next_at": None}
    if again_at is None:
        return GAVE_UP, {"state": Callback.State.GAVE_UP, "next_at": None}
    return FAILED, {"next_at": again_at}


def _update_circuits(sent: Sequence[tuple[Taken, Outcome]], now: datetime) -> None:
    silent: dict[Queue, list[tuple[datetime, str]]] = defaultdict(list)
    for taken, outcome in sent:
        if is_silent(outcome):
            silent[taken.queue].append((taken.at, outcome.error))
    answered = {
        taken.queue
        for taken, outcome in sent
        if outcome.answer is not None and (taken.circuit is not CLOSED or taken.queue in silent)
    }
    for queue in sorted(silent):  # in one order, so that two workers don't wait for each other in a circle
        if queue not in answered:
            circuits.record_silence(queue, silent[queue], now)
    circuits.close(sorted(answered))
