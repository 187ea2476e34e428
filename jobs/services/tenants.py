"""Tenants and their keys. Secrets are returned once, when they are made. by: who did it, for the audit entry;
None for what no operator did (the system's own first steps)."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from gpus.models import Pause
from gpus.services import controls
from gpus.services.audit import record
from gpus.services.controls import Changed
from jobs.callbacks.tenant_secret import renew_secret
from jobs.models import ApiKey, Tenant
from jobs.services.ports import Ports
from jobs.services.tenant_rules import check_rules


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


def renew_webhook_secret(tenant: Tenant, *, by: str) -> str:
    """The new secret; the old one signs nothing any more."""
    with transaction.atomic():
        record(by, "renew_webhook_secret", f"tenant:{tenant.name}")
        return renew_secret(tenant)


def create_key(
    tenant: Tenant, kind: ApiKey.Kind = ApiKey.Kind.TENANT, *, name: str = "", by: str | None = None
) -> tuple[ApiKey, str]:
    """The key's row (hashed) and the key itself."""
    with transaction.atomic():
        row, plaintext = ApiKey.objects.create_key(
            tenant=tenant, kind=kind, name=(name or f"{tenant} {kind}")[:50]
        )
        _record(by, "create_key", f"key:{row.prefix}", tenant=tenant.name, kind=str(kind), name=row.name)
    return row, plaintext  # type: ignore[return-value]


def revoke_key(key: ApiKey, *, by: str | None = None) -> None:
    """It stops working within two seconds, in every process."""
    with transaction.atomic():
        key.revoked = True
        key.save(update_fields=["revoked"])
        _record(by, "revoke_key", f"key:{key.prefix}", tenant=key.tenant.name, name=key.name)


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
