"""What is wrong with a submit whatever else goes on: nobody's limits and no other job are asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from django.conf import settings

from gpus.registry import queries as registry
from jobs.callbacks.guard import check_callback_url, refused_origins
from jobs.domain.errors import ModelNotAllowed, PayloadTooLarge, Refused, TooManyRetries, UnknownModel
from jobs.limits.tenant_limits import limits_of
from jobs.models import IdempotencyKey
from jobs.submission.deadlines import check_times
from jobs.submission.payload_schema import Checks, check_payload
from jobs.submission.request import SubmitRequest


@dataclass(frozen=True, slots=True)
class Allowed:
    """Names of models; None: all. checks: of payloads against schemas."""

    of_tenant: frozenset[str] | None
    of_key: frozenset[str] | None
    checks: Checks = field(default_factory=Checks)

    def check(self, model: str) -> None:
        """Raises ModelNotAllowed."""
        for who, names in (("tenant", self.of_tenant), ("key", self.of_key)):
            if names is not None and model not in names:
                raise ModelNotAllowed(f"This {who} may not submit to {model!r}.", pointer="/model")


def checked_unless_known(
    request: SubmitRequest | Refused, known: Mapping[str, IdempotencyKey], may: Allowed, now: datetime
) -> SubmitRequest | Refused:
    """What repeats an accepted request was right when it came: that its time is past by now, or that its
    tenant may no longer submit such a job, must not keep the answer from who lost it."""
    if isinstance(request, Refused):
        return request
    used = known.get(request.idempotency_key or "")
    if used is not None and used.fingerprint == request.fingerprint:
        return request
    return _checked(request, may, now)


def _checked(request: SubmitRequest, may: Allowed, now: datetime) -> SubmitRequest | Refused:
    """What is wrong with the request whatever else goes on."""
    try:
        may.check(request.body.model)
        spec = registry.model_spec(request.body.model)
        if spec is None:
            raise UnknownModel(f"No model {request.body.model!r} is registered.", pointer="/model")
        check_times(request, spec, now)
        if request.body.max_retries is not None and request.body.max_retries > spec.max_retries:
            raise TooManyRetries(
                f"The model's jobs are tried again {spec.max_retries} times at most; a job can lower that.",
                pointer="/max_retries",
            )
        limit = settings.DISPATCHER.max_payload_bytes
        text = json.dumps(request.body.payload, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) > limit:
            raise PayloadTooLarge(f"The payload may have up to {limit} bytes.", pointer="/payload")
        check_payload(spec.payload_schema, request.body.payload, text, may.checks)
        if request.body.callback_url:
            check_callback_url(request.body.callback_url, refused_origins())
    except Refused as refused:
        return refused
    return request


def check_request(
    request: SubmitRequest, *, tenant: int, now: datetime, key_models: frozenset[str] | None = None
) -> None:
    """What a submit would refuse whatever else goes on, without submitting. Raises Refused."""
    checked = _checked(request, Allowed(limits_of(tenant).allowed_models, key_models), now)
    if isinstance(checked, Refused):
        raise checked
