"""Idempotency keys of triggers and backfills: their firings keep them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from foundation.ids import ID_LENGTH
from jobs.domain.errors import IdempotencyConflict
from workflows.schedules.models import Firing, Schedule


@dataclass(frozen=True, slots=True)
class RequestKey:
    """An Idempotency-Key: the same key of a schedule means the same trigger or backfill."""

    text: str

    def of(self, *request: object) -> str:
        """Return the value of `Firing.backfill` of a request with this key: its first half is the key's."""
        return _half(self.text) + _half(repr(request))


def _half(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[: ID_LENGTH // 2]


def earlier_firing(schedule: Schedule, request: str) -> Firing | None:
    """Return a firing of an earlier request with the same key. Raises IdempotencyConflict for another
    request."""
    of_key = Firing.objects.filter(schedule=schedule, backfill__startswith=request[: ID_LENGTH // 2])
    earlier = of_key.first()
    if earlier is not None and earlier.backfill != request:
        raise IdempotencyConflict
    return earlier
