"""Idempotency keys of signals and answers: each key has an effect once. Their rows are written in the
transaction of that effect, and deleted by the sweep `old_signals`."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings

from foundation.database.row_limits import free_places
from jobs.domain.errors import IdempotencyConflict
from jobs.submission.request import KeyedRequest
from workflows.domain.errors import TooManySignals
from workflows.models import SentSignal


def note_key(tenant_id: int, idempotency_key: KeyedRequest, now: datetime) -> SentSignal:
    """Insert the row of a key. Raises IntegrityError, TooManySignals."""
    limits = settings.DISPATCHER
    kept = SentSignal.objects.filter(
        tenant_id=tenant_id, sent_at__gte=now - timedelta(seconds=limits.workflow_signal_key_seconds)
    )
    if free_places(f"signals of {tenant_id}", kept, limits.workflow_signal_keys) <= 0:
        raise TooManySignals(
            f"A tenant may send {limits.workflow_signal_keys} signals and answers with an Idempotency-Key "
            f"(DISPATCHER_WORKFLOW_SIGNAL_KEYS) in {limits.workflow_signal_key_seconds:g} seconds. Send it "
            "without a key, or later."
        )
    return SentSignal.objects.create(
        tenant_id=tenant_id, key=idempotency_key.key, fingerprint=idempotency_key.fingerprint, sent_at=now
    )


def earlier_sent(tenant_id: int, idempotency_key: KeyedRequest) -> SentSignal | None:
    """Return the row of an earlier request with this key. Raises IdempotencyConflict for another request."""
    sent = SentSignal.objects.filter(tenant_id=tenant_id, key=idempotency_key.key).first()
    if sent is not None and sent.fingerprint != idempotency_key.fingerprint:
        raise IdempotencyConflict
    return sent
