"""The transaction of a submit: decides by idempotency key (`jobs.submission.idempotency`) which requests are
replays, and inserts the others within the limits, with their keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db import transaction

from artifacts.models import ArtifactUse
from artifacts.uses import new_uses
from foundation.database import statements
from foundation.database.connections import pipelined_transaction, write_lock
from foundation.database.row_codec import new_row
from foundation.ids import new_id
from gpus.models import AuditEntry
from gpus.registry.audit import new_entry
from gpus.registry.queries import RegistryCache
from jobs.domain.errors import Refused, UnknownModel
from jobs.domain.states import JobState
from jobs.limits.submit_limits import QueueLimits, max_queued_seconds, quota_refusal
from jobs.models import IdempotencyKey, Job
from jobs.submission.artifact_refs import refusals_of_removed
from jobs.submission.capacity import Capacity
from jobs.submission.idempotency import EarlierBatch, complete_batch, replayed, stored_answer
from jobs.submission.request import Item, SubmitRequest, Submitted, outcome_of
from jobs.transitions import new_jobs

log = structlog.get_logger()


class SubmitLimits:
    """The limits that decide which of a tenant's new jobs are accepted.

    Made before the transaction, which must not be open while the day's GPU-seconds are summed up; `refusal`
    is called inside it.
    queue_limits: of all jobs of the transaction. capacity: for jobs with `if_busy=reject`.
    quota: why no new job is accepted at all; None: the tenant has quota left.
    """

    def __init__(
        self, tenant_id: int, now: datetime, queue_limits: QueueLimits, capacity: Capacity | None = None
    ) -> None:
        self.tenant_id, self.now = tenant_id, now
        self._capacity = capacity.fresh() if capacity else None
        self._queue_limits = queue_limits
        self.registry = queue_limits.ports.registry
        self.quota: Refused | None = quota_refusal(tenant_id, now, queue_limits.ports)
        self._max_queued_seconds: dict[str, float | None] = {}

    def queue_deadline(self, model: str, start: datetime) -> datetime | None:
        """Return when a job that begins to wait at `start` has waited too long; None: never."""
        limits = self._max_queued_seconds  # read once per model: a batch may have a thousand jobs
        if model not in limits:
            limits[model] = max_queued_seconds(self.tenant_id, model, self._queue_limits.ports)
        return _after(start, limits[model])

    def refusal(self, request: SubmitRequest) -> Refused | None:
        """Return why the job is refused; None if it is accepted, and counted in queue limits and capacity."""
        refused = self._capacity.refusal(request) if self._capacity is not None else None
        refused = refused or self._queue_limits.refusal(self.tenant_id, request.body.model)
        if refused is None and self._capacity is not None:
            self._capacity.take(request)
        return refused


@dataclass(frozen=True, slots=True)
class Entry:
    """A job to be stored, or its refusal.

    known: by key, those that its tenant used before. log_fields: further fields of the job's log line.
    """

    request: SubmitRequest | Refused
    limits: SubmitLimits
    known: dict[str, IdempotencyKey]
    log_fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Plan:
    """The rows that a transaction will store. items: one for each entry. new: indices of entries that are new
    jobs. writes: the statements."""

    items: list[Item]
    new: list[int]
    writes: list[statements.Statement]


def store(entries: Sequence[Entry]) -> list[Item]:
    """Store the accepted jobs in one transaction; return one item for each entry.

    Raises IntegrityError if another process stored one of the keys meanwhile.
    """
    plan = _plan(entries, {})
    if plan.new:  # replays and refusals need no write lock
        with write_lock(len(plan.new)), pipelined_transaction():
            plan = _apply_limits(entries, plan)
            statements.write(plan.writes)
    _log(entries, plan.items)
    return plan.items


def store_batch(entries: Sequence[Entry], tenant_id: int, key: str, fingerprint: str) -> list[Item]:
    """Store a batch as `store`, with its key and the answers of its jobs."""
    plan = _plan(entries, {})
    with write_lock(len(plan.new)), pipelined_transaction():
        plan = _apply_limits(entries, plan)
        statements.write(plan.writes)
        first = next((item.job for item in plan.items if isinstance(item, Submitted)), None)
        if first is not None:
            row = IdempotencyKey(
                tenant_id=tenant_id,
                key=key,
                fingerprint=fingerprint,
                job=first,
                batch=[stored_answer(item) for item in plan.items],
            )
            statements.insert_all([row])
    _log(entries, plan.items)
    return plan.items


def retry_batch(entries: Sequence[Entry], earlier: EarlierBatch) -> list[Item]:
    """Try again the jobs of this batch whose refusal may have passed; return one item for each job of the
    batch.

    Raises IntegrityError if another process did so meanwhile.
    """
    open_places = [place for place, item in enumerate(earlier.items) if item is None]
    again = [entries[place] for place in open_places]
    plan = _plan(again, {})
    with write_lock(len(plan.new)), transaction.atomic():
        plan = _apply_limits(again, plan)
        statements.write(plan.writes)
        tried = dict(zip(open_places, plan.items, strict=True))
        items = [tried[place] if item is None else item for place, item in enumerate(earlier.items)]
        complete_batch(earlier, items)
    _log(again, plan.items)
    return items


def _apply_limits(entries: Sequence[Entry], plan: _Plan) -> _Plan:
    """Return the plan without the jobs that the limits refuse. Called inside the transaction; the plan was
    made before it, because others wait for this transaction, and making a thousand rows takes several times
    as long as storing them. It is made again only after a refusal."""
    refused = _refused_by_artifacts(entries, plan)
    if refused:
        plan = _plan(entries, refused)
    asked: set[int] = set()
    behind = _next_with_same_key(entries)
    while unchecked := [index for index in plan.new if index not in asked]:
        before = len(refused)
        for index in unchecked:
            asked.add(index)
            request = entries[index].request
            assert isinstance(request, SubmitRequest)
            if refusal := entries[index].limits.refusal(request):
                refused[index] = refusal
                if index in behind:  # it is new now; a new plan per refusal would take seconds
                    unchecked.append(behind[index])
        if len(refused) > before:
            plan = _plan(entries, refused)
    return plan


def _refused_by_artifacts(entries: Sequence[Entry], plan: _Plan) -> dict[int, Refused]:
    """Lock the artifacts of the new jobs; return the refusals of jobs whose artifact was removed since its
    check."""
    wanted = [
        (index, request.artifacts)
        for index in plan.new
        if isinstance(request := entries[index].request, SubmitRequest) and request.artifacts
    ]
    return refusals_of_removed(wanted) if wanted else {}


def _next_with_same_key(entries: Sequence[Entry]) -> dict[int, int]:
    """Return, by an entry's index, the index of the next entry with the same key."""
    behind: dict[int, int] = {}
    last: dict[tuple[int, str], int] = {}
    for index, entry in enumerate(entries):
        if isinstance(entry.request, SubmitRequest) and (key := entry.request.idempotency_key):
            named = (entry.limits.tenant_id, key)
            if named in last:
                behind[last[named]] = index
            last[named] = index
    return behind


def _plan(entries: Sequence[Entry], refused: Mapping[int, Refused]) -> _Plan:
    """Make the rows of all entries that are accepted; reads no database. refused: by index, the refusals of
    the limits."""
    items: list[Item] = []
    new: list[int] = []
    jobs: list[Job] = []
    keys: dict[tuple[int, str], IdempotencyKey] = {}
    uses: list[ArtifactUse] = []
    audited: list[AuditEntry] = []
    for index, entry in enumerate(entries):
        request, limits = entry.request, entry.limits
        if isinstance(request, Refused):
            items.append(request)
            continue
        key = request.idempotency_key or ""
        used = entry.known.get(key) or keys.get((limits.tenant_id, key))
        if used is not None:
            items.append(replayed(used, request.fingerprint))
            continue
        refusal = limits.quota or refused.get(index)
        if refusal is not None:
            items.append(refusal)
            continue
        try:
            job = new_job(
                request,
                limits.tenant_id,
                limits.registry,
                limits.queue_deadline,
                now=limits.now,
                place_us=int(limits.now.timestamp() * 1_000_000) + index,
            )
        except UnknownModel as gone:  # the model was removed after the check
            items.append(gone)
            continue
        jobs.append(job)
        new.append(index)
        uses += new_uses(job.id, request.artifacts) if request.artifacts else ()
        if request.by is not None:
            audited.append(_audit_entry(request, request.by, job))
        items.append(Submitted(job, outcome_of(job), None, replayed=False))
        if key:
            keys[limits.tenant_id, key] = IdempotencyKey(
                tenant_id=limits.tenant_id, key=key, fingerprint=request.fingerprint, job=job
            )
    rows = new_jobs(jobs, jobs[0].created_at) if jobs else []
    others = (list(keys.values()), uses, audited)
    return _Plan(items, new, [*rows, *(one for kind in others for one in statements.inserts(kind))])


def _audit_entry(request: SubmitRequest, by: str, job: Job) -> AuditEntry:
    if request.rerun_of is None:
        return new_entry(by, "submit_job", f"job:{job.id}", tenant=job.tenant_id)
    return new_entry(by, "rerun_job", f"job:{job.id}", rerun_of=request.rerun_of)


def _log(entries: Sequence[Entry], items: Sequence[Item]) -> None:
    for entry, item in zip(entries, items, strict=True):
        if isinstance(item, Submitted) and not item.replayed:
            job = item.job
            log.info(
                "job_submitted",
                job_id=job.id,
                model=job.model,
                tenant=job.tenant_id,
                priority=job.priority,
                **entry.log_fields,
            )


def new_job(
    request: SubmitRequest,
    tenant_id: int,
    registry: RegistryCache,
    queue_deadline: Callable[[str, datetime], datetime | None],
    *,
    now: datetime,
    place_us: int,
    followed_by: str | None = None,
    near_server: str | None = None,
) -> Job:
    """Make the row of a new job.

    queue_deadline: returns when a job of a model that begins to wait at a time has waited too long. place_us:
    its place in the queue, microseconds since the epoch; a job with a later start has its `run_at` as place.
    followed_by, near_server: as in `Job`. Raises UnknownModel.
    """
    spec = registry.model_spec(request.body.model)
    if spec is None:
        raise UnknownModel.named(request.body.model)
    run_at = request.later_start(now)
    start = run_at or now
    return new_row(
        Job,
        id=new_id(place_us / 1_000_000 if followed_by is None else now.timestamp()),
        tenant_id=tenant_id,
        model=request.body.model,
        pool=spec.pool,
        fleet=registry.fleet_of(spec.pool),
        payload=request.body.payload,
        priority=request.body.priority,
        tags=list(dict.fromkeys(request.body.tags or ())),
        metadata=request.body.metadata or {},
        callback_url=request.body.callback_url or "",
        max_retries=request.body.max_retries,
        max_run_seconds=request.body.max_run_seconds,
        state=(JobState.QUEUED if run_at is None else JobState.SCHEDULED).value,
        run_at=run_at,
        place_us=place_us if run_at is None else int(run_at.timestamp() * 1_000_000),
        created_at=now,
        deadline_at=_after(start, request.body.deadline_seconds),
        start_deadline_at=_after(start, request.body.start_deadline_seconds),
        queue_deadline_at=queue_deadline(request.body.model, start),
        followed_by=followed_by,
        near_server=near_server,
        rerun_of=request.rerun_of,
    )


def _after(start: datetime, seconds: float | None) -> datetime | None:
    return None if seconds is None else start + timedelta(seconds=seconds)
