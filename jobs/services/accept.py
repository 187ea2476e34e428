"""What is stored of a submit, in one transaction: new jobs, if the door lets them in, and their keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from datetime import datetime

import structlog
from django.db import transaction

from gpus import queries as registry
from gpus.models import sets
from jobs.errors import Refused, UnknownModel
from jobs.ids import new_id
from jobs.models import IdempotencyKey, Job
from jobs.services.capacity import Capacity
from jobs.services.quotas import quota_refusal
from jobs.services.replays import EarlierBatch, complete_batch, remembered, replayed
from jobs.services.room import Room
from jobs.services.submit_request import SubmitRequest
from jobs.services.submit_times import after, later_start
from jobs.services.submitted import Item, Submitted, outcome_of
from jobs.states import JobState
from jobs.transitions import create_jobs

log = structlog.get_logger()


class Gate:
    """Who may come in now: what only jobs that would be new are refused for. Used inside the transaction, and
    made before it: none must be held while the day's GPU-seconds are summed up. models: one per job."""

    def __init__(
        self, tenant_id: int, now: datetime, capacity: Capacity | None, models: Iterable[str]
    ) -> None:
        self.tenant_id, self.now = tenant_id, now
        self._capacity = capacity.anew() if capacity else None
        self._room = Room(tenant_id, now, models)
        self._quota = quota_refusal(tenant_id, now)

    def refusal(self, request: SubmitRequest) -> Refused | None:
        """None: it is in, and has taken its place and its slot."""
        refused: Refused | None = self._quota
        if refused is None and self._capacity is not None:
            refused = self._capacity.refusal(request)
        refused = refused or self._room.refusal(request.model)
        if refused is None and self._capacity is not None:
            self._capacity.take(request)
        return refused


def store(
    requests: Sequence[SubmitRequest | Refused],
    known: dict[str, IdempotencyKey],
    gate: Gate,
    batch_key: str | None,
    batch_fingerprint: str,
) -> list[Item]:
    """One transaction; raises IntegrityError if one of the keys was taken meanwhile. known: keys that were
    used before; those used now are added."""
    is_new = any(isinstance(one, SubmitRequest) and one.idempotency_key not in known for one in requests)
    # what only repeats, or is wrong in itself, must not wait for its turn to write
    with transaction.atomic() if is_new or batch_key is not None else nullcontext():
        items = _insert(requests, known, gate)
        first = next((item.job for item in items if isinstance(item, Submitted)), None)
        if batch_key is not None and first is not None:
            answers = [remembered(item) for item in items]
            key = IdempotencyKey(
                tenant_id=gate.tenant_id,
                key=batch_key,
                fingerprint=batch_fingerprint,
                job=first,
                batch=answers,
            )
            sets.insert_all([key])
    _log(items)
    return items


def complete(
    requests: Sequence[SubmitRequest | Refused],
    known: dict[str, IdempotencyKey],
    earlier: EarlierBatch,
    gate: Gate,
) -> list[Item]:
    """Tries again what passed over this batch; raises IntegrityError if somebody else did meanwhile."""
    open_places = [place for place, item in enumerate(earlier.items) if item is None]
    again = [requests[place] for place in open_places]
    with transaction.atomic():
        tried = dict(zip(open_places, _insert(again, known, gate), strict=True))
        items = [tried[place] if item is None else item for place, item in enumerate(earlier.items)]
        complete_batch(earlier, items)
    _log(list(tried.values()))
    return items


def _insert(
    requests: Sequence[SubmitRequest | Refused], known: dict[str, IdempotencyKey], gate: Gate
) -> list[Item]:
    """What becomes of each; inside the transaction. known: keys that were used before, and those used now."""
    place_us = int(gate.now.timestamp() * 1_000_000)
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
        refused = gate.refusal(request)
        if refused is not None:
            items.append(refused)
            continue
        job = _job(request, gate.tenant_id, gate.now, place_us + index)
        jobs.append(job)
        items.append(Submitted(job, outcome_of(job), None, replayed=False))
        if request.idempotency_key:
            key = IdempotencyKey(
                tenant_id=gate.tenant_id,
                key=request.idempotency_key,
                fingerprint=request.fingerprint,
                job=job,
            )
            known[request.idempotency_key] = key
            keys.append(key)
    if jobs:
        create_jobs(jobs, gate.now)
    sets.insert_all(keys)
    return items


def _log(items: Sequence[Item]) -> None:
    for item in items:
        if isinstance(item, Submitted) and not item.replayed:
            job = item.job
            log.info(
                "job_submitted", job_id=job.id, model=job.model, tenant=job.tenant_id, priority=job.priority
            )


def _job(request: SubmitRequest, tenant_id: int, now: datetime, place_us: int) -> Job:
    """A later one stands among those that come at its time."""
    spec = registry.model_spec(request.model)
    if spec is None:
        raise UnknownModel(f"No model {request.model!r} is registered.", pointer="/model")
    run_at = later_start(request, now)
    start = run_at or now
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
        max_run_seconds=request.max_run_seconds,
        state=(JobState.QUEUED if run_at is None else JobState.SCHEDULED).value,
        run_at=run_at,
        place_us=place_us if run_at is None else int(run_at.timestamp() * 1_000_000),
        created_at=now,
        deadline_at=after(start, request.deadline_seconds),
        start_deadline_at=after(start, request.start_deadline_seconds),
    )
