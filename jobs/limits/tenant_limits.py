"""A tenant's limits at submit (queue length, rate, quota, models), cached for a second.

`max_running` is enforced in `gpus/leasing/lua/includes/parked.lua`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from django.db.models.signals import post_save

from foundation.database import statements
from foundation.ttl_cache import TtlCache
from jobs.models import Tenant

REMEMBER_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """None: no limit of its own; of max_queued, that of the settings. burst: jobs at once, of the rate.
    allowed_models: names."""

    max_queued: int | None = None
    max_queued_seconds: float | None = None
    submits_per_second: float | None = None
    submit_burst: int | None = None
    daily_gpu_seconds: float | None = None
    allowed_models: frozenset[str] | None = None

    @property
    def burst(self) -> int:
        return self.submit_burst or max(1, math.ceil(self.submits_per_second or 1.0))


FIELDS = tuple(field.name for field in fields(Limits))
"""Of the tenant's row."""
_row = statements.Read(lambda: Tenant.objects.filter(pk=statements.value(Tenant, "id")).values(*FIELDS))
# of the process, like django.core.cache: its callers have no owner of it to pass
_remembered: TtlCache[int, Limits] = TtlCache(lambda: REMEMBER_SECONDS, max_entries=20_000)


def limits_of(tenant_id: int) -> Limits:
    return _remembered.get(tenant_id, lambda: _read(tenant_id))


def forget() -> None:
    _remembered.clear()


def _read(tenant_id: int) -> Limits:
    row = _row.first(id=tenant_id)
    if row is None:
        return Limits()
    names = row.pop("allowed_models")
    return Limits(**row, allowed_models=None if names is None else frozenset(names))


def _forget_on_change(**_: object) -> None:
    forget()


post_save.connect(_forget_on_change, sender=Tenant, dispatch_uid="forget-limits")
