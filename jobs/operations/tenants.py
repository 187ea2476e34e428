"""Tenants: made, paused, and what an operator grants them (weight, highest band, running jobs, limits of
submits). The row is written first, with its audit entry, then the lease layer of every fleet; what Redis does
not take then, a sweep writes. Secrets are returned once, when they are made. by: who did it, for the audit
entry; None for what no operator did (the system's own first steps)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from foundation.database import statements
from gpus.errors import LeasingUnavailable
from gpus.leasing.values import Wakes
from gpus.models import Pause
from gpus.protocol import TenantSpec
from gpus.registry import controls
from gpus.registry import queries as registry
from gpus.registry.audit import record
from gpus.registry.controls import Changed
from gpus.registry.index_sync import LeasesOf
from jobs.callbacks.message import renew_secret
from jobs.limits import submit_limits
from jobs.models import Tenant
from jobs.operations.api_keys import create_key, revoke_key
from jobs.ports import Ports

RULES = ("weight", "highest_band", "max_running")
"""What the lease layer knows."""
CHANGEABLE = (*RULES, *submit_limits.FIELDS)

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


__all__ = [
    "create_key",
    "create_tenant",
    "pause_tenant",
    "renew_webhook_secret",
    "resume_tenant",
    "revoke_key",
]


def create_tenant(
    name: str,
    *,
    weight: float = 1.0,
    highest_band: str = "normal",
    max_running: int | None = None,
    by: str | None = None,
) -> tuple[Tenant, str]:
    """The tenant and its webhook secret. Raises ValidationError for a bad or taken name, or bad rules. The
    lease layer hears of rules other than a new tenant's by the sweep, within its period."""
    tenant = Tenant(name=name, weight=weight, highest_band=highest_band, max_running=max_running)
    check_rules(tenant)
    tenant.full_clean()
    with transaction.atomic():
        tenant.save()
        rules = {"weight": weight, "highest_band": highest_band, "max_running": max_running}
        record(by, "create_tenant", f"tenant:{name}", **rules)
        return tenant, renew_secret(tenant)


def renew_webhook_secret(tenant: Tenant, *, overlap_seconds: float = 0.0, by: str) -> str:
    """The new secret. Callbacks are signed with the old one too for so long: receivers take either."""
    with transaction.atomic():
        record(by, "renew_webhook_secret", f"tenant:{tenant.name}", overlap_seconds=overlap_seconds)
        return renew_secret(tenant, overlap_seconds=overlap_seconds)


def pause_tenant(tenant: Tenant, *, by: str, ports: Ports, reason: str = "") -> Changed:
    """Its waiting jobs keep their places and wait; what runs goes on."""
    return controls.pause(
        Pause.Kind.TENANT,
        str(tenant.pk),
        by=by,
        reason=reason,
        leases=ports.leases,
        target=f"tenant:{tenant.name}",
    )


def resume_tenant(tenant: Tenant, *, by: str, ports: Ports) -> Changed:
    """wakes: for the caller to send."""
    return controls.resume(
        Pause.Kind.TENANT, str(tenant.pk), by=by, leases=ports.leases, target=f"tenant:{tenant.name}"
    )
