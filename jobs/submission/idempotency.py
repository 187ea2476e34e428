"""Idempotency keys: the same key and body mean the same job, another body is refused.

A key lives as long as its job; a refusal alone is never stored under one. A batch's key remembers the
refusals of its jobs that time does not heal; the others are tried again when the batch is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError

from foundation.database import statements
from foundation.database.statements import value
from jobs.domain.errors import IdempotencyConflict, Refused
from jobs.models import IdempotencyKey, Job
from jobs.submission.outcomes import Item, Submitted, outcome_of
from jobs.submission.request import SubmitRequest

AGAIN: dict[str, Any] = {"again": True}
"""In a batch's answer: it was refused for the moment only, which no key remembers."""

_used_among = statements.ReadAmong(
    (IdempotencyKey, "key"),
    rows=lambda keys: IdempotencyKey.objects.filter(
        tenant=value(IdempotencyKey, "tenant"), key__in=keys
    ).values_list("pk", flat=True),
)
_with_jobs = statements.ReadAmong(
    (IdempotencyKey, "id"),
    rows=lambda ids: (
        IdempotencyKey.objects.select_related("job").defer("job__payload", "job__result").filter(pk__in=ids)
    ),
)


def known_keys(tenant_id: int, requests: Sequence[SubmitRequest | Refused]) -> dict[str, IdempotencyKey]:
    asked = [r.idempotency_key for r in requests if isinstance(r, SubmitRequest) and r.idempotency_key]
    ids = _used_among(asked, tenant=tenant_id)  # mostly none: the join costs more
    return {row.key: row for row in _with_jobs(ids)}


def replayed(used: IdempotencyKey, fingerprint: str) -> Item:
    if used.fingerprint != fingerprint:
        return IdempotencyConflict()
    return Submitted(used.job, outcome_of(used.job), None, replayed=True)


def remembered(item: Item) -> dict[str, Any]:
    if isinstance(item, Submitted):
        return {"job_id": item.job.id}
    if item.passes:
        return AGAIN
    return {"code": item.code, "status": item.status, "message": str(item), "pointer": item.pointer}


@dataclass(frozen=True, slots=True)
class EarlierBatch:
    """What a batch with this key was answered. items: None for a job that is to be tried again, because what
    it was refused for passes (a full queue, a used up quota). row: as read."""

    row: IdempotencyKey
    items: list[Item | None]

    @property
    def is_complete(self) -> bool:
        return None not in self.items


def earlier_batch(tenant_id: int, key: str, fingerprint: str) -> EarlierBatch | None:
    used = IdempotencyKey.objects.filter(tenant_id=tenant_id, key=key).first()
    if used is None:
        return None
    if used.fingerprint != fingerprint or used.batch is None:
        raise IdempotencyConflict
    jobs = Job.objects.defer("payload", "result").in_bulk(
        [line["job_id"] for line in used.batch if "job_id" in line]
    )
    return EarlierBatch(used, [_recalled(line, jobs) for line in used.batch])


def complete_batch(earlier: EarlierBatch, items: Sequence[Item]) -> None:
    """Inside the transaction that stores what was tried again. Raises IntegrityError if somebody else tried
    it meanwhile."""
    row = IdempotencyKey.objects.select_for_update().filter(pk=earlier.row.pk).first()
    if row is None or row.batch != earlier.row.batch:
        raise IntegrityError("the batch was completed meanwhile")
    row.batch = [remembered(item) for item in items]
    row.save(update_fields=["batch"])


def _recalled(line: dict[str, Any], jobs: dict[Any, Job]) -> Item | None:
    if line == AGAIN:
        return None
    job = jobs.get(line.get("job_id"))
    if job is not None:
        return Submitted(job, outcome_of(job), None, replayed=True)
    if "job_id" in line:
        return RecalledRefusal("gone", 410, "The job was removed by retention.", None)
    return RecalledRefusal(line["code"], line["status"], line["message"], line["pointer"])


class RecalledRefusal(Refused):
    """A refusal as it was answered the first time."""

    def __init__(self, code: str, status: int, message: str, pointer: str | None) -> None:
        super().__init__(message, pointer=pointer)
        self.code = code
        self.status = status
