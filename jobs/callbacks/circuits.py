"""The circuit of a tenant's receiver: opened by tries without an answer, closed by any answer.

Per tenant, because a tenant chooses its paths: a slow one must not shut the host for others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Max, OuterRef, Subquery

from jobs.models import Callback, CallbackTry, ReceiverCircuit

from .schedule import DELAYS_SECONDS
from .shares import Queue

SILENT_SECONDS = 1.0
"""A try that failed sooner held no socket for long: its receiver keeps the schedule, and no circuit opens."""
GIVE_UP = timedelta(seconds=sum(DELAYS_SECONDS))
"""As long as the schedule: a message that was due for so long behind an open circuit is given up."""
_GIVEN_UP_AT_ONCE = 500


def close(queues: Collection[Queue]) -> None:
    """Their receivers have answered."""
    for tenant_id, receiver in queues:
        ReceiverCircuit.objects.filter(tenant_id=tenant_id, receiver=receiver).delete()


def record_silence(queue: Queue, tries: Sequence[tuple[datetime, str]], now: datetime) -> None:
    """Tries of one queue came to no answer: when each began, and its error. Call inside a transaction."""
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
        # tries of one burst fail together: only one that began after the last rest makes the next longer
        if not circuit.rest_seconds:
            circuit.rest_seconds = knobs.callback_circuit_rest_seconds
        elif circuit.resting_until is not None and any(at >= circuit.resting_until for at, _ in tries):
            circuit.rest_seconds = min(circuit.rest_seconds * 2, knobs.callback_circuit_rest_cap_seconds)
        circuit.resting_until = now + timedelta(seconds=circuit.rest_seconds)
        if circuit.failing_since < now - GIVE_UP:
            _give_up_old(queue, now)
    # not `save`, which asks how many rows it changed: in one trip nobody knows yet
    changed = ("failures", "failed_at", "last_error", "rest_seconds", "resting_until")
    ReceiverCircuit.objects.filter(pk=circuit.pk).update(**{name: getattr(circuit, name) for name in changed})


def _give_up_old(queue: Queue, now: datetime) -> None:
    """What waits behind an open circuit must not wait for ever. A message that is late because no worker ran
    is no reason: its receiver must have failed for as long."""
    last = CallbackTry.objects.filter(callback=OuterRef("pk")).order_by()
    old = Callback.objects.filter(
        tenant_id=queue[0], receiver=queue[1], state=Callback.State.PENDING, next_at__lt=now - GIVE_UP
    ).annotate(number=Subquery(last.values("callback").annotate(last=Max("number")).values("last")))
    numbers = dict(old.order_by("next_at").values_list("id", "number")[:_GIVEN_UP_AT_ONCE])
    if not numbers:
        return
    error = f"not sent: its receiver answered nobody since {now - GIVE_UP:%Y-%m-%d %H:%M}"
    Callback.objects.filter(id__in=numbers).update(state=Callback.State.GAVE_UP, next_at=None)
    CallbackTry.objects.bulk_create(
        CallbackTry(callback_id=pk, number=(number or 0) + 1, at=now, error=error)
        for pk, number in numbers.items()
    )
