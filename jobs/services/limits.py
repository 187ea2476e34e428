"""What a tenant is limited to, remembered for a second: a change takes effect within two."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass

from django.db.models.signals import post_save

from jobs.models import Tenant

REMEMBER_SECONDS = 1.0
_MAX_REMEMBERED = 20_000

_lock = threading.Lock()
_remembered: dict[int, tuple[float, Limits]] = {}


@dataclass(frozen=True, slots=True)
class Limits:
    """None: no limit. burst: jobs at once, of the rate. allowed_models: names."""

    max_queued: int | None = None
    submits_per_second: float | None = None
    submit_burst: int | None = None
    daily_gpu_seconds: float | None = None
    allowed_models: frozenset[str] | None = None

    @property
    def burst(self) -> int:
        return self.submit_burst or max(1, math.ceil(self.submits_per_second or 1.0))


def limits_of(tenant_id: int) -> Limits:
    now = time.monotonic()
    found = _remembered.get(tenant_id)
    if found is not None and found[0] > now:
        return found[1]
    limits = _read(tenant_id)
    with _lock:
        if len(_remembered) >= _MAX_REMEMBERED:
            _remembered.clear()
        _remembered[tenant_id] = (now + REMEMBER_SECONDS, limits)
    return limits


def forget() -> None:
    with _lock:
        _remembered.clear()


def _read(tenant_id: int) -> Limits:
    fields = ("max_queued", "submits_per_second", "submit_burst", "daily_gpu_seconds", "allowed_models")
    row = Tenant.objects.filter(pk=tenant_id).values(*fields).first()
    if row is None:
        return Limits()
    names = row.pop("allowed_models")
    return Limits(**row, allowed_models=None if names is None else frozenset(names))


def _forget_on_change(**_: object) -> None:
    forget()


post_save.connect(_forget_on_change, sender=Tenant, dispatch_uid="forget-limits")
