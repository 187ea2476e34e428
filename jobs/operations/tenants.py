"""Tenants. Secrets are returned once, when they are made. by: who did it, for the audit entry;
None for what no operator did (the system's own first steps)."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from gpus.models import Pause
from gpus.registry import controls
from gpus.registry.audit import record
from gpus.registry.controls import Changed
from jobs.callbacks.tenant_secret import renew_secret
from jobs.models import Tenant
from jobs.operations.api_keys import create_key, revoke_key
from jobs.operations.tenant_limits import check_rules
from jobs.ports import Ports

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
        _record(by, "create_tenant", f"tenant:{name}", **rules)
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


def _record(by: str | None, action: str, target: str, **detail: Any) -> None:
    if by is not None:
        record(by, action, target, **detail)
