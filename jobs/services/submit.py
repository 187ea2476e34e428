"""submit_job: a job becomes durable, then it stands in line.

The committed row is the write-ahead log. What follows the commit (ticket, wakes) may fail: the
reconciler pushes what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta

import structlog
from django.conf import settings
from django.db import IntegrityError, transaction

from gpus import queries as registry
from jobs.callbacks.guard import check_callback_url
from jobs.errors import PayloadTooLarge, Refused, UnknownModel
from jobs.ids import new_id
from jobs.models import IdempotencyKey, Job, Tenant, prepared
from jobs.services.payload_schema import check_payload
from jobs.services.placing import placed
from jobs.services.ports import Ports
from jobs.services.replays import earlier_batch, known_keys, remembered, replayed
from jobs.services.submit_request import SubmitRequest
from jobs.services.submitted import Item, Outcome, Submitted, SubmittedBatch
from jobs.transitions import create_jobs

log = structlog.get_logger()

_RACES = 5


def submit_job(request: SubmitRequest, *, tenant: Tenant | int, ports: Ports) -> Submitted:
    """Raises Refused (nothing is stored then) and django.db.OperationalError (database away)."""
    (item,) = submit_batch([request], tenant=tenant, ports=ports).items
    if isinstance(item, Refused):
        raise item
    return item


def submit_batch(
    requests: Sequence[SubmitRequest | Refused],
    *,
    tenant: Tenant | int,
    ports: Ports,
    idempotency_key: str | None = None,
    fingerprint: str = "",
) -> SubmittedBatch:
    """All that can be accepted, in one transaction; a Refused keeps its place. idempotency_key and
    fingerprint: of the batch as a whole. Raises IdempotencyConflict for it, and OperationalError."""
    tenant_id = tenant.pk if isinstance(tenant, Tenant) else tenant
    checked = [request if isinstance(request, Refused) else _checked(request) for request in requests]
    for race in range(_RACES):
        try:
            if idempotency_key is not None:
                earlier = earlier_batch(tenant_id, idempotency_key, fingerprint)
                if earlier is not None:
                    return SubmittedBatch(placed(earlier, ports), replayed=True)
            items = _store(checked, tenant_id, ports.clock.now(), idempotency_key, fingerprint)
            return SubmittedBatch(placed(items, ports), replayed=False)
        except IntegrityError:  # somebody used one of these keys meanwhile: the next look finds it
            if race == _RACES - 1:
                raise
    raise AssertionError("unreachable")


def _checked(request: SubmitRequest) -> SubmitRequest | Refused:
    try:
        spec = registry.model_spec(request.model)
        if spec is None:
            raise UnknownModel(f"No model {request.model!r} is registered.", pointer="/model")
        limit = settings.DISPATCHER.max_payload_bytes
        if len(json.dumps(request.payload, separators=(",", ":"), ensure_ascii=False).encode()) > limit:
            raise PayloadTooLarge(f"The payload may have up to {limit} bytes.", pointer="/payload")
        check_payload(spec.payload_schema, request.payload)
        if request.callback_url:
            check_callback_url(request.callback_url)
    except Refused as refused:
        return refused
    return request


def _store(
    requests: Sequence[SubmitRequest | Refused],
    tenant_id: int,
    now: datetime,
    batch_key: str | None,
    batch_fingerprint: str,
) -> list[Item]:
    """One transaction; raises IntegrityError if one of the keys was taken meanwhile."""
    known = known_keys(tenant_id, requests)
    place_us = int(now.timestamp() * 1_000_000)
    items: list[Item] = []
    jobs: list[Job] = []
    keys: list[IdempotencyKey] = []
    for index, request in enumerate(requests):
        if isinstance(request, Refused):
            items.append(request)
            continue
        used = known.get(request.idempotency_key or "")
        if used is not None:
            items.append(replayed(used, request.fingerprint))
            continue
        job = _job(request, tenant_id, now, place_us + index)
        jobs.append(job)
        items.append(Submitted(job, Outcome.QUEUED, None, replayed=False))
        if request.idempotency_key:
            key = IdempotencyKey(
                tenant_id=tenant_id, key=request.idempotency_key, fingerprint=request.fingerprint, job=job
            )
            known[request.idempotency_key] = key
            keys.append(key)
    first = next((item.job for item in items if isinstance(item, Submitted)), None)
    if batch_key is not None and first is not None:
        keys.append(
            IdempotencyKey(
                tenant_id=tenant_id,
                key=batch_key,
                fingerprint=batch_fingerprint,
                job=first,
                batch=[remembered(item) for item in items],
            )
        )
    if jobs or keys:
        with transaction.atomic():
            if jobs:
                create_jobs(jobs, now)
            prepared.insert_all(keys)
    for job in jobs:
        log.info("job_submitted", job_id=job.id, model=job.model, tenant=tenant_id, priority=job.priority)
    return items


def _job(request: SubmitRequest, tenant_id: int, now: datetime, place_us: int) -> Job:
    spec = registry.model_spec(request.model)
    if spec is None:
        raise UnknownModel(f"No model {request.model!r} is registered.", pointer="/model")
    return Job(
        id=new_id(place_us / 1_000_000),
        tenant_id=tenant_id,
        model=request.model,
        pool=spec.pool,
        fleet=registry.fleet_of(spec.pool),
        payload=request.payload,
        priority=request.priority,
        tags=list(request.tags),
        metadata=dict(request.metadata),
        callback_url=request.callback_url,
        max_retries=request.max_retries,
        place_us=place_us,
        created_at=now,
        deadline_at=_after(now, request.deadline_seconds),
        start_deadline_at=_after(now, request.start_deadline_seconds),
    )


def _after(now: datetime, seconds: float | None) -> datetime | None:
    return None if seconds is None else now + timedelta(seconds=seconds)
