"""Idempotency keys: the same key and body mean the same job; the same key with another body is refused.

A key lives as long as its job; the refusal of a single job is not stored. A batch's key stores its answers:
the permanent refusals of its jobs too; those that pass (a full queue) are tried again when the batch is
repeated. `jobs.submission.insert` stores the keys.
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
from jobs.submission.request import Item, Submitted, outcome_of

TRY_AGAIN: dict[str, Any] = {"again": True}
"""Stored answer of a job in a batch whose refusal may pass: it is tried again when the batch is repeated."""

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


def known_keys(tenant_id: int, keys: Sequence[str]) -> dict[str, IdempotencyKey]:
    """Return, by key, those that the tenant used before, with their jobs."""
    ids = _used_among(keys, tenant=tenant_id)  # mostly none, and the join costs more
    return {row.key: row for row in _with_jobs(ids)}


def replayed(used: IdempotencyKey, fingerprint: str) -> Item:
    """Return the job that was submitted with this key; a refusal if the body was another one."""
    if used.fingerprint != fingerprint:
        return IdempotencyConflict()
    return Submitted(used.job, outcome_of(used.job), None, replayed=True)


def stored_answer(item: Item) -> dict[str, Any]:
    """Return the answer of a job in a batch as JSON, stored under the batch's key; `_read_answer` is its
    inverse."""
    if isinstance(item, Submitted):
        return {"job_id": item.job.id}
    if item.passes:
        return TRY_AGAIN
    return {"code": item.code, "status": item.status, "message": str(item), "pointer": item.pointer}


@dataclass(frozen=True, slots=True)
class EarlierBatch:
    """The answers that a batch with this key got.

    row: as read. items: None for a job that is to be tried again, because its refusal may have passed (a full
    queue, a used up quota).
    """

    row: IdempotencyKey
    items: list[Item | None]

    @property
    def is_complete(self) -> bool:
        return None not in self.items


def earlier_batch(tenant_id: int, key: str, fingerprint: str) -> EarlierBatch | None:
    """Return the batch that was submitted with this key. Raises IdempotencyConflict if its body was another
    one."""
    used = IdempotencyKey.objects.filter(tenant_id=tenant_id, key=key).first()
    if used is None:
        return None
    if used.fingerprint != fingerprint or used.batch is None:
        raise IdempotencyConflict
    jobs = Job.objects.defer("payload", "result").in_bulk(
        [line["job_id"] for line in used.batch if "job_id" in line]
    )
    return EarlierBatch(used, [_read_answer(line, jobs) for line in used.batch])


def complete_batch(earlier: EarlierBatch, items: Sequence[Item]) -> None:
    """Store the batch's answers; call it in the transaction that stores its jobs. Raises IntegrityError if
    another process did so meanwhile."""
    row = IdempotencyKey.objects.select_for_update().filter(pk=earlier.row.pk).first()
    if row is None or row.batch != earlier.row.batch:
        raise IntegrityError("the batch was completed meanwhile")
    row.batch = [stored_answer(item) for item in items]
    row.save(update_fields=["batch"])


def _read_answer(line: dict[str, Any], jobs: dict[Any, Job]) -> Item | None:
    if line == TRY_AGAIN:
        return None
    job = jobs.get(line.get("job_id"))
    if job is not None:
        return Submitted(job, outcome_of(job), None, replayed=True)
    if "job_id" in line:
        return StoredRefusal("gone", 410, "The job was removed by retention.", None)
    return StoredRefusal(line["code"], line["status"], line["message"], line["pointer"])


class StoredRefusal(Refused):
    """A refusal that was answered before."""

    def __init__(self, code: str, status: int, message: str, pointer: str | None) -> None:
        super().__init__(message, pointer=pointer)
        self.code = code
        self.status = status
