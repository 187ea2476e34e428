"""Idempotency keys: the same key and body mean the same job, another body is refused.

A key lives as long as its job; refusals are never stored under one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobs.errors import IdempotencyConflict, Refused
from jobs.models import IdempotencyKey, Job, prepared
from jobs.models.prepared import value
from jobs.services.submit_request import SubmitRequest
from jobs.services.submitted import Item, Submitted, outcome_of

_used_among = prepared.ReadAmong(
    IdempotencyKey,
    "key",
    lambda keys: IdempotencyKey.objects.filter(
        tenant=value(IdempotencyKey, "tenant"), key__in=keys
    ).values_list("pk", flat=True),
)


def known_keys(tenant_id: int, requests: Sequence[SubmitRequest | Refused]) -> dict[str, IdempotencyKey]:
    asked = [r.idempotency_key for r in requests if isinstance(r, SubmitRequest) and r.idempotency_key]
    ids = list(_used_among(asked, tenant=tenant_id))  # mostly none: the join below costs more
    if not ids:
        return {}
    rows = IdempotencyKey.objects.select_related("job").defer("job__payload", "job__result")
    return {row.key: row for row in rows.filter(pk__in=ids)}


def replayed(used: IdempotencyKey, fingerprint: str) -> Item:
    if used.fingerprint != fingerprint:
        return IdempotencyConflict()
    return Submitted(used.job, outcome_of(used.job), None, replayed=True)


def remembered(item: Item) -> dict[str, Any]:
    if isinstance(item, Submitted):
        return {"job_id": item.job.id}
    return {"code": item.code, "status": item.status, "message": str(item), "pointer": item.pointer}


def earlier_batch(tenant_id: int, key: str, fingerprint: str) -> list[Item] | None:
    used = IdempotencyKey.objects.filter(tenant_id=tenant_id, key=key).first()
    if used is None:
        return None
    if used.fingerprint != fingerprint or used.batch is None:
        raise IdempotencyConflict
    jobs = Job.objects.defer("payload", "result").in_bulk(
        [line["job_id"] for line in used.batch if "job_id" in line]
    )
    return [_recalled(line, jobs) for line in used.batch]


def _recalled(line: dict[str, Any], jobs: dict[Any, Job]) -> Item:
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
