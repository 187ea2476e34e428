"""submit_job: a job becomes durable, then it stands in line.

The committed row is the write-ahead log. What follows the commit (ticket, wakes) may fail: the
reconciler pushes what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.conf import settings
from django.db import IntegrityError

from gpus import queries as registry
from jobs.callbacks.guard import LookUps, check_callback_url
from jobs.errors import IdempotencyConflict, ModelNotAllowed, PayloadTooLarge, Refused, UnknownModel
from jobs.models import IdempotencyKey, Tenant
from jobs.services.accept import Gate, complete, store
from jobs.services.capacity import Capacity
from jobs.services.limits import limits_of
from jobs.services.payload_schema import check_payload
from jobs.services.placing import placed
from jobs.services.ports import Ports
from jobs.services.replays import earlier_batch, known_keys
from jobs.services.submit_request import SubmitRequest
from jobs.services.submit_times import check_times
from jobs.services.submitted import Submitted, SubmittedBatch

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
    may = _Allowed(limits_of(tenant_id).allowed_models, key_models)
    capacity: Capacity | None = None
    for race in range(_RACES):
        try:
            now = ports.clock.now()
            known = known_keys(tenant_id, requests)
            checked = [_checked_unless_known(request, known, may, now) for request in requests]
            capacity = capacity or _capacity(checked, known, tenant_id, ports)
            models = [one.model for one in checked if isinstance(one, SubmitRequest)]
            gate = Gate(tenant_id, now, capacity, models)
            earlier = None
            if idempotency_key is not None:
                earlier = earlier_batch(tenant_id, idempotency_key, fingerprint)
            if earlier is not None:
                items = [item for item in earlier.items if item is not None]
                if not earlier.is_complete:
                    items = complete(checked, known, earlier, gate)
                return SubmittedBatch(placed(items, ports), replayed=True)
            items = store(checked, known, gate, idempotency_key, fingerprint)
            return SubmittedBatch(placed(items, ports), replayed=False)
        except IntegrityError:  # somebody used one of these keys meanwhile: the next look finds it
            if race == _RACES - 1:
                raise
    raise AssertionError("unreachable")


@dataclass(frozen=True, slots=True)
class _Allowed:
    """Names of models; None: all. look_ups: of the names in callback URLs."""

    of_tenant: frozenset[str] | None
    of_key: frozenset[str] | None
    look_ups: LookUps = field(default_factory=LookUps)

    def check(self, model: str) -> None:
        """Raises ModelNotAllowed."""
        for who, names in (("tenant", self.of_tenant), ("key", self.of_key)):
            if names is not None and model not in names:
                raise ModelNotAllowed(f"This {who} may not submit to {model!r}.", pointer="/model")


def _under_its_own_key(request: SubmitRequest | Refused, of_batch: str) -> SubmitRequest | Refused:
    """A key means one thing: the batch, or one of its jobs."""
    if isinstance(request, SubmitRequest) and request.idempotency_key == of_batch:
        return IdempotencyConflict("This is the batch's own key.", pointer="/idempotency_key")
    return request


def _checked_unless_known(
    request: SubmitRequest | Refused, known: Mapping[str, IdempotencyKey], may: _Allowed, now: datetime
) -> SubmitRequest | Refused:
    """What repeats an accepted request was right when it came: that its time is past by now, or that its
    tenant may no longer submit such a job, must not keep the answer from who lost it."""
    if isinstance(request, Refused):
        return request
    used = known.get(request.idempotency_key or "")
    if used is not None and used.fingerprint == request.fingerprint:
        return request
    return _checked(request, may, now)


def _checked(request: SubmitRequest, may: _Allowed, now: datetime) -> SubmitRequest | Refused:
    """What is wrong with the request whatever else goes on."""
    try:
        may.check(request.model)
        spec = registry.model_spec(request.model)
        if spec is None:
            raise UnknownModel(f"No model {request.model!r} is registered.", pointer="/model")
        check_times(request, spec, now)
        limit = settings.DISPATCHER.max_payload_bytes
        if len(json.dumps(request.payload, separators=(",", ":"), ensure_ascii=False).encode()) > limit:
            raise PayloadTooLarge(f"The payload may have up to {limit} bytes.", pointer="/payload")
        check_payload(spec.payload_schema, request.payload)
        if request.callback_url:
            check_callback_url(request.callback_url, may.look_ups)
    except Refused as refused:
        return refused
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


def check_request(
    request: SubmitRequest, *, tenant: int, now: datetime, key_models: frozenset[str] | None = None
) -> None:
    """What a submit would refuse whatever else goes on, without submitting. Raises Refused."""
    checked = _checked(request, _Allowed(limits_of(tenant).allowed_models, key_models), now)
    if isinstance(checked, Refused):
        raise checked
