"""The two transactions of a delivery: take due messages, and settle their tries.

A message is taken (and its try logged) in one short transaction, sent with none open, and settled in another.
After a crash in between the row is due again when its lease expires: it is sent again with the same
`webhook-id`, never lost. Clients wait for callbacks, so each transaction has few prepared statements and
round trips, and messages share one.

A sample is sent once, by hand, and belongs to no job.
"""

from __future__ import annotations

import http.client
import json
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Case, Max, OuterRef, QuerySet, Subquery, When
from django.db.models.functions import Coalesce, Length

from foundation.database import statements
from foundation.database.connections import pipelined_transaction
from foundation.database.statements import value
from foundation.ids import new_id
from foundation.secrets import SecretUnreadable
from gpus.registry.audit import record
from gpus.registry.queries import RegistryCache
from jobs.callbacks.guard import check_callback_url, receiver_of, refused_origins
from jobs.callbacks.message import secrets_are_readable, signing_secrets
from jobs.callbacks.pick import CLOSED, Circuit, Queue
from jobs.callbacks.sending import Message, Outcome, failure_text, send_now
from jobs.models import Callback, CallbackTry, Job, ReceiverCircuit, Tenant

DELIVERED, GONE, GAVE_UP, FAILED = "delivered", "gone", "gave_up", "failed"
LEASE_MARGIN_SECONDS = 45.0
"""A try's lease is so much longer than the time-out of its request."""
_UNRECORDED = "sent; its end was not recorded"
_SMALL_BYTES = 64 * 1024
"""Larger bodies are read only once they may be sent."""
_log = structlog.get_logger(__name__)
MayStart = Callable[[Queue, Circuit, int], bool]
"""Returns True if a message of this queue with so many bytes may be sent now; called once for each
message."""
_OF_TENANT = (
    "id",
    "webhook_secret_encrypted",
    "webhook_secret_before_encrypted",
    "webhook_secret_before_until",
)
_body = statements.Read(
    lambda: Callback.objects.filter(id=value(Callback, "id")).values_list("body", flat=True)
)
_MINUTE, _HOUR = 60.0, 3600.0
DELAYS_SECONDS = (
    0.0,
    5.0,
    5 * _MINUTE,
    30 * _MINUTE,
    2 * _HOUR,
    5 * _HOUR,
    10 * _HOUR,
    14 * _HOUR,
    20 * _HOUR,
    24 * _HOUR,
)
"""Seconds before each try, the first included: ten tries over about 75 hours, as the Standard Webhooks
specification recommends."""
JITTER = 0.1
"""± this share of each delay, so that messages that failed together are not sent again together."""
RETRY_AFTER_CAP_SECONDS = 24 * _HOUR
"""The longest pause that a receiver's `Retry-After` can set."""
SILENT_SECONDS = 1.0
"""A failed try opens a circuit only if it took longer: it held a socket for that time."""
SECRET_SECONDS = 300.0
"""The pause of a message whose secret this process cannot decrypt."""
SECRET_UNREADABLE = (
    "not sent, and not counted as a try: the tenant's webhook secret was encrypted with another secret key"
)
"""Error in the delivery log of such a message."""
GIVE_UP = timedelta(seconds=sum(DELAYS_SECONDS))
"""A message due for longer than this behind an open circuit is given up; as long as the schedule."""
_GIVEN_UP_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Taken:
    """A message that was taken for a try.

    size: of the body, bytes. tenant: with its secrets only. circuit: of its receiver, as read.
    tries: with this one. number, at: of the try's row in the delivery log.
    held_until: end of the try's lease; while the row has this value, the try owns it.
    """

    id: str
    job_id: str | None
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


def take(ids: Sequence[str], now: datetime, may_start: MayStart) -> tuple[list[Taken], int]:
    """Take those of these messages that are due and may start; must not be called inside a transaction.

    Returns the taken messages, leased, and the number of due ones that may not start. A message whose secret
    this process cannot decrypt waits: the operator's key is wrong, not the receiver.
    """
    if not ids:
        return [], 0
    lease = timedelta(seconds=settings.DISPATCHER.callback_timeout_seconds + LEASE_MARGIN_SECONDS)
    taken, refused = list[Taken](), 0
    unsigned: dict[str, int] = {}
    readable: dict[int, bool] = {}
    with pipelined_transaction():
        due = {row["id"]: row for row in _read_due(list(ids), next_at=now)}
        for row in (due[pk] for pk in dict.fromkeys(ids) if pk in due):
            queue = (row["of_id"], row["receiver"] or receiver_of(row["url"]))
            circuit = Circuit(row["failures"], row["resting_until"]) if row["failures"] else CLOSED
            tenant = Tenant(**{name: row[f"of_{name}"] for name in _OF_TENANT})
            if tenant.pk not in readable:
                readable[tenant.pk] = secrets_are_readable(tenant, now)
            if not readable[tenant.pk]:
                unsigned[row["id"]] = row["number"] or 0
                continue
            if not may_start(queue, circuit, row["size"]):
                refused += 1
                continue
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
        for pk in unsigned:
            statements.change(Callback, {"next_at": now + timedelta(seconds=SECRET_SECONDS)}, pk=pk)
    if unsigned:
        _log_unsigned(unsigned, now)
    return taken, refused


def _log_unsigned(numbers: Mapping[str, int], now: datetime) -> None:
    """Note in the delivery log that these messages wait: one line each, however long. numbers: of the last
    line of each."""
    _log.warning("callbacks_wait_for_secret", messages=len(numbers), next_in_seconds=SECRET_SECONDS)
    with transaction.atomic():
        lines = CallbackTry.objects.filter(callback_id__in=numbers, error=SECRET_UNREADABLE)
        waited = set(lines.values_list("callback_id", flat=True))
        lines.update(at=now)
        CallbackTry.objects.bulk_create(
            CallbackTry(callback_id=pk, number=number + 1, at=now, error=SECRET_UNREADABLE)
            for pk, number in numbers.items()
            if pk not in waited
        )


def waiting_for_secret(now: datetime) -> list[str]:
    """Return the names of tenants whose messages wait because a callbacks worker cannot decrypt their
    secret."""
    since = now - timedelta(seconds=2 * SECRET_SECONDS)
    lines = CallbackTry.objects.filter(
        callback__state=Callback.State.PENDING, error=SECRET_UNREADABLE, at__gte=since
    )
    name = "callback__tenant__name"
    return list(lines.order_by(name).values_list(name, flat=True).distinct())


def settle(sent: Sequence[tuple[Taken, Outcome]], now: datetime) -> list[str]:
    """Write the outcomes of these tries, all or none.

    Returns `delivered`, `gone` (410), `failed` (sent again later) or `gave_up` for each.
    """
    ends = [_end(taken, outcome, now) for taken, outcome in sent]
    with pipelined_transaction():
        for (taken, outcome), (_, change) in zip(sent, ends, strict=True):
            answer = {
                "status_code": outcome.status,
                "error": outcome.error,
                "duration_ms": outcome.duration_ms,
            }
            statements.change(CallbackTry, answer, callback=taken.id, number=taken.number, at=taken.at)
            # changes no row that an operator replayed meanwhile: this try does not own it any more
            mine = {"pk": taken.id, "next_at": taken.held_until, "state": Callback.State.PENDING}
            statements.change(Callback, change | {"sending_until": None}, **mine)
        _update_circuits(sent, now)
    for (taken, outcome), (end, _) in zip(sent, ends, strict=True):
        log = _log.bind(callback_id=taken.id, job_id=taken.job_id)
        log.info("callback_tried", outcome=end, error=outcome.error)
    return [end for end, _ in ends]


def is_silent(outcome: Outcome) -> bool:
    """Return True for a try that held a socket and got no answer."""
    return outcome.answer is None and outcome.duration_ms >= SILENT_SECONDS * 1000


def replay(callback_id: str, *, now: datetime, by: str) -> bool:
    """Make a message due again under the same id, with the schedule from its start; an operator's action.

    by: the operator, for the audit. Returns False if there is no such message.
    """
    with transaction.atomic():
        changed = Callback.objects.filter(id=callback_id).update(
            state=Callback.State.PENDING, tries=0, next_at=now, delivered_at=None, sending_until=None
        )
        if changed:
            record(by, "replay_callback", f"callback:{callback_id}")
    return bool(changed)


def _due(ids: Sequence[Any]) -> QuerySet[Any, Any]:
    """Select those of these messages that are due, locked, with their tenant, log and circuit, which are not
    locked."""
    # rows of older versions have no tenant until the callbacks worker fills it in
    of_job = Job.objects.filter(id=OuterRef(OuterRef("job_id"))).values("tenant_id")
    tenant = Tenant.objects.filter(id=Coalesce(OuterRef("tenant_id"), Subquery(of_job)))
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
    for queue in sorted(silent):  # in one order, against deadlocks of two workers
        if queue not in answered:
            record_silence(queue, silent[queue], now)
    close_circuits(sorted(answered))


def next_try_at(
    tries: int, *, now: datetime, retry_after_seconds: float | None = None, chance: float | None = None
) -> datetime | None:
    """Return the time of the next try after `tries` failed ones; None if the schedule is used up.

    retry_after_seconds: the receiver's `Retry-After`; it can only lengthen the pause.
    chance: 0..1, position in the jitter's range; None: random.
    """
    if tries >= len(DELAYS_SECONDS):
        return None
    where = random.random() if chance is None else chance
    delay = DELAYS_SECONDS[tries] * (1 - JITTER + 2 * JITTER * where)
    if retry_after_seconds is not None:
        delay = max(delay, min(retry_after_seconds, RETRY_AFTER_CAP_SECONDS))
    return now + timedelta(seconds=delay)


def close_circuits(queues: Collection[Queue]) -> None:
    """Close the circuits of receivers that have answered.

    A circuit is opened by tries without an answer, and closed by any answer. It is of one tenant's receiver:
    a tenant chooses its paths, and a slow one must not block the host for other tenants.
    """
    for tenant_id, receiver in queues:
        ReceiverCircuit.objects.filter(tenant_id=tenant_id, receiver=receiver).delete()


def record_silence(queue: Queue, tries: Sequence[tuple[datetime, str]], now: datetime) -> None:
    """Count tries of one queue that got no answer, and open its circuit after enough of them. Call it inside
    a transaction. tries: when each began, and its error."""
    knobs = settings.DISPATCHER
    tenant_id, receiver = queue
    ReceiverCircuit.objects.bulk_create(
        [ReceiverCircuit(tenant_id=tenant_id, receiver=receiver, failing_since=now, failed_at=now)],
        ignore_conflicts=True,
    )
    circuit = ReceiverCircuit.objects.select_for_update().get(tenant_id=tenant_id, receiver=receiver)
    circuit.failures += len(tries)
    circuit.failed_at, circuit.last_error = now, tries[-1][1]
    if 0 < knobs.callback_circuit_failures <= circuit.failures:
        # tries of one burst fail together: only one that began after the last rest doubles it
        if not circuit.rest_seconds:
            circuit.rest_seconds = knobs.callback_circuit_rest_seconds
        elif circuit.resting_until is not None and any(at >= circuit.resting_until for at, _ in tries):
            circuit.rest_seconds = min(circuit.rest_seconds * 2, knobs.callback_circuit_rest_cap_seconds)
        circuit.resting_until = now + timedelta(seconds=circuit.rest_seconds)
        if circuit.failing_since < now - GIVE_UP:
            _give_up_old(queue, now)
    # not `save`, which needs the number of changed rows: unknown before the round trip
    changed = ("failures", "failed_at", "last_error", "rest_seconds", "resting_until")
    ReceiverCircuit.objects.filter(pk=circuit.pk).update(**{name: getattr(circuit, name) for name in changed})


def _give_up_old(queue: Queue, now: datetime) -> None:
    """Give up messages that were due for `GIVE_UP` behind an open circuit. Only if the receiver failed for as
    long: a message may also be late because no worker ran."""
    last = CallbackTry.objects.filter(callback=OuterRef("pk")).order_by()
    old = Callback.objects.filter(
        tenant_id=queue[0], receiver=queue[1], state=Callback.State.PENDING, next_at__lt=now - GIVE_UP
    ).annotate(number=Subquery(last.values("callback").annotate(last=Max("number")).values("last")))
    numbers = dict(old.order_by("next_at").values_list("id", "number")[:_GIVEN_UP_AT_ONCE])
    if not numbers:
        return
    error = f"not sent: its receiver has not answered since {now - GIVE_UP:%Y-%m-%d %H:%M}"
    Callback.objects.filter(id__in=numbers).update(state=Callback.State.GAVE_UP, next_at=None)
    CallbackTry.objects.bulk_create(
        CallbackTry(callback_id=pk, number=(number or 0) + 1, at=now, error=error)
        for pk, number in numbers.items()
    )


def send_sample(tenant: Tenant, url: str, *, by: str, now: datetime, registry: RegistryCache) -> Outcome:
    """Send a sample callback to `url`, signed with the tenant's secrets; must not be called inside a
    transaction.

    by: the operator, for the audit. Raises CallbackUrlRefused for an address that must not be called.
    """
    refused = refused_origins(registry)
    check_callback_url(url, refused)
    message_id = f"msg_{new_id(now.timestamp())}"
    body = json.dumps(
        {"status": "test", "message": "A test of this address, sent by hand.", "sent_at": now.isoformat()},
        separators=(",", ":"),
    )
    with transaction.atomic():  # before it is sent: the audit has it even if this process dies now
        record(by, "send_sample_callback", f"tenant:{tenant.name}", url=url, message_id=message_id)
    try:
        secrets = signing_secrets(tenant, now)
    except SecretUnreadable as failure:
        return Outcome(None, failure_text(failure), 0)
    return send_now(Message(message_id, tenant.pk, url, body, secrets, refused), now=now)
