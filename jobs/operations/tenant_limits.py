"""What an operator grants a tenant: its weight, the highest band, how many jobs run at once; and the limits
of the front door. Live.

The row first, with its audit entry, then the lease layer of every fleet; what Redis does not take now the
sweep tells it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from foundation.database import statements
from gpus.errors import LeasingUnavailable
from gpus.leasing.values import Wakes
from gpus.protocol import TenantSpec
from gpus.registry import queries as registry
from gpus.registry.audit import record
from gpus.registry.index_sync import LeasesOf
from jobs.models import Tenant
from jobs.ports import Ports

RULES = ("weight", "highest_band", "max_running")
"""What the lease layer knows."""
LIMITS = (
    "max_queued",
    "max_queued_seconds",
    "submits_per_second",
    "submit_burst",
    "daily_gpu_seconds",
    "allowed_models",
)
"""What the front door asks the row for."""
CHANGEABLE = (*RULES, *LIMITS)

_of_id = statements.Read(lambda: Tenant.objects.filter(pk=statements.value(Tenant, "id")))


@dataclass(frozen=True, slots=True)
class RulesChanged:
    """changed: some of them were otherwise before. wakes: for the caller to send. mirrored: the lease
    layer knows."""

    tenant: Tenant
    changed: bool
    wakes: tuple[Wakes, ...]
    mirrored: bool


def change_rules(name: str, rules: Mapping[str, Any], *, by: str, ports: Ports) -> RulesChanged:
    """rules: any of `CHANGEABLE`, the others stay. Raises Tenant.DoesNotExist, ValidationError by field."""
    unknown = sorted(set(rules) - set(CHANGEABLE))
    if unknown:
        raise ValueError(f"not rules of a tenant: {', '.join(unknown)}")
    with transaction.atomic():
        tenant = Tenant.objects.select_for_update().get(name=name)
        before = {rule: getattr(tenant, rule) for rule in CHANGEABLE}
        for rule, value in rules.items():
            setattr(tenant, rule, value)
        check_rules(tenant)
        after = {rule: getattr(tenant, rule) for rule in CHANGEABLE}
        changes = {rule: [before[rule], after[rule]] for rule in CHANGEABLE if before[rule] != after[rule]}
        if changes:
            tenant.save(update_fields=list(changes))
            record(by, "change_tenant", f"tenant:{name}", values=changes)
    return RulesChanged(tenant, bool(changes), *sync_rules(tenant.pk, ports.leases))


def check_rules(tenant: Tenant) -> None:
    """Raises ValidationError by field."""
    others = [field.name for field in Tenant._meta.fields if field.name not in CHANGEABLE]
    tenant.clean_fields(exclude=others)
    tenant.clean()
    try:
        TenantSpec("new", tenant.weight, tenant.highest_band, tenant.max_running)
    except ValueError as error:  # not a number: no validator of Django's sees it
        raise ValidationError({"weight": str(error)}) from None


def sync_rules(tenant_id: int, leases: LeasesOf) -> tuple[tuple[Wakes, ...], bool]:
    """Every fleet, until the row says what was told; the wakes, and whether all took it."""
    wakes: list[Wakes] = []
    written: TenantSpec | None = None
    while (tenant := _of_id.first(id=tenant_id)) is not None and tenant.spec != written:
        written = tenant.spec
        for fleet in registry.fleets():
            try:
                wakes += leases(fleet).set_tenants([written])
            except LeasingUnavailable:
                return tuple(wakes), False
    return tuple(wakes), True
