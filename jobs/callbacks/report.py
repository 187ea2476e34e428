"""How deliveries stand: for metrics, `doctor` and the callbacks page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db.models import Exists, OuterRef, QuerySet

from jobs.models import Callback, ReceiverCircuit

from .pick import read_queues, tenants_with_pending

MOST_COUNTED = 10_000
"""More are not counted out."""


@dataclass(frozen=True, slots=True)
class DeliveryReport:
    """in_flight: being sent now. due: may be sent now. held: due behind an open circuit. All counted up to
    10,000. oldest_due_seconds: how late the first due one is, of each tenant's first 500 receivers."""

    in_flight: int
    due: int
    held: int
    oldest_due_seconds: float
    open_circuits: int


def delivery_report(now: datetime) -> DeliveryReport:
    pending = Callback.objects.filter(state=Callback.State.PENDING)
    due = pending.filter(next_at__lte=now)
    here = open_circuits().filter(tenant_id=OuterRef("tenant_id"), receiver=OuterRef("receiver"))
    held = due.filter(Exists(here))[:MOST_COUNTED].count() if open_circuits().exists() else 0
    first = _oldest_due(now)
    return DeliveryReport(
        in_flight=pending.filter(sending_until__gt=now)[:MOST_COUNTED].count(),
        due=max(due[:MOST_COUNTED].count() - held, 0),
        held=held,
        oldest_due_seconds=max(0.0, (now - first).total_seconds()) if first else 0.0,
        open_circuits=open_circuits()[:MOST_COUNTED].count(),
    )


def open_circuits() -> QuerySet[ReceiverCircuit]:
    """Of receivers that are tried one message at a time."""
    failures = settings.DISPATCHER.callback_circuit_failures
    return (
        ReceiverCircuit.objects.filter(failures__gte=failures) if failures else ReceiverCircuit.objects.none()
    )


def _oldest_due(now: datetime) -> datetime | None:
    failures = settings.DISPATCHER.callback_circuit_failures
    unnamed = Callback.objects.filter(state=Callback.State.PENDING, receiver=None, next_at__lte=now)
    found = list(unnamed.order_by("next_at").values_list("next_at", flat=True)[:1])
    for tenant_id in tenants_with_pending():
        for one in read_queues(tenant_id):
            if one.due_at <= now and not 0 < failures <= one.circuit.failures:
                found.append(one.due_at)
    return min((at for at in found if at is not None), default=None)
