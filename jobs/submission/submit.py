"""submit_job: a job becomes durable, then it stands in line.

The committed row is the write-ahead log. What follows the commit (ticket, wakes) may fail: the
reconciler pushes what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.db import IntegrityError

from jobs.domain.errors import IdempotencyConflict, Refused
from jobs.limits.queue_limits import QueueLimits
from jobs.limits.tenant_limits import limits_of
from jobs.models import IdempotencyKey, Tenant
from jobs.ports import Ports
from jobs.submission.capacity import Capacity
from jobs.submission.checks import Allowed, checked_unless_known
from jobs.submission.enqueue import placed
from jobs.submission.idempotency import earlier_batch, known_keys
from jobs.submission.insert import Entry, Gate, complete, store, store_batch
from jobs.submission.outcomes import Submitted, SubmittedBatch
from jobs.submission.request import SubmitRequest

_RACES = 5


def submit_job(
    request: SubmitRequest,
    *,
    tenant: Tenant | int,
    ports: Ports,
    key_models: frozenset[str] | None = None,
) -> Submitted:
    """Raises Refused (nothing is stored then) and django.db.OperationalError (database away)."""
    (item,) = submit_batch([request], tenant=tenant, ports=ports, key_models=key_models).items
    if isinstance(item, Refused):
        raise item
    return item


def submit_batch(
    requests: Sequence[SubmitRequest | Refused],
    *,
    tenant: Tenant | int,
    ports: Ports,
    key_models: frozenset[str] | None = None,
    idempotency_key: str | None = None,
    fingerprint: str = "",
) -> SubmittedBatch:
    """All that can be accepted, in one transaction; a Refused keeps its place. key_models: those that the API
    key may submit to; None: all of the tenant's. idempotency_key and fingerprint: of the batch as a whole.
    Raises IdempotencyConflict for it, and OperationalError."""
    tenant_id = tenant.pk if isinstance(tenant, Tenant) else tenant
    if idempotency_key is not None:
        requests = [_under_its_own_key(request, idempotency_key) for request in requests]
    may = Allowed(limits_of(tenant_id).allowed_models, key_models)
    capacity: Capacity | None = None
    for race in range(_RACES):
        try:
            now = ports.clock.now()
            known = known_keys(tenant_id, requests)
            checked = [checked_unless_known(request, known, may, now) for request in requests]
            capacity = capacity or _capacity(checked, known, tenant_id, ports)
            asking = [(tenant_id, one.body.model) for one in checked if isinstance(one, SubmitRequest)]
            gate = Gate(tenant_id, now, QueueLimits(now, asking), capacity)
            entries = [Entry(request, gate, known) for request in checked]
            earlier = None
            if idempotency_key is not None:
                earlier = earlier_batch(tenant_id, idempotency_key, fingerprint)
            if earlier is not None:
                items = [item for item in earlier.items if item is not None]
                if not earlier.is_complete:
                    items = complete(entries, earlier)
                return SubmittedBatch(placed(items, ports), replayed=True)
            if idempotency_key is not None:
                items = store_batch(entries, tenant_id, idempotency_key, fingerprint)
            else:
                items = store(entries)
            return SubmittedBatch(placed(items, ports), replayed=False)
        except IntegrityError:  # somebody used one of these keys meanwhile: the next look finds it
            if race == _RACES - 1:
                raise
    raise AssertionError("unreachable")


def _under_its_own_key(request: SubmitRequest | Refused, of_batch: str) -> SubmitRequest | Refused:
    """A key means one thing: the batch, or one of its jobs."""
    if isinstance(request, SubmitRequest) and request.idempotency_key == of_batch:
        return IdempotencyConflict("This is the batch's own key.", pointer="/idempotency_key")
    return request


def _capacity(
    requests: Sequence[SubmitRequest | Refused],
    known: Mapping[str, IdempotencyKey],
    tenant_id: int,
    ports: Ports,
) -> Capacity | None:
    """Looked at before the transaction, which is never held over Redis."""
    new = [one for one in requests if isinstance(one, SubmitRequest) and one.idempotency_key not in known]
    asked = [one for one in new if one.reject_if_busy]
    return Capacity(asked, tenant_id, ports) if asked else None
