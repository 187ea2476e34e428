"""Tenants and their keys. Secrets are returned once, when they are made."""

from __future__ import annotations

from django.db import transaction

from jobs.callbacks.tenant_secret import renew_secret
from jobs.models import ApiKey, Tenant


def create_tenant(name: str, *, weight: float = 1.0) -> tuple[Tenant, str]:
    """The tenant and its webhook secret. Raises ValidationError for a bad or taken name or weight."""
    tenant = Tenant(name=name, weight=weight)
    tenant.full_clean()
    with transaction.atomic():
        tenant.save()
        return tenant, renew_secret(tenant)


def create_key(
    tenant: Tenant, kind: ApiKey.Kind = ApiKey.Kind.TENANT, *, name: str = ""
) -> tuple[ApiKey, str]:
    """The key's row (hashed) and the key itself."""
    row, plaintext = ApiKey.objects.create_key(
        tenant=tenant, kind=kind, name=(name or f"{tenant} {kind}")[:50]
    )
    return row, plaintext  # type: ignore[return-value]


def revoke_key(key: ApiKey) -> None:
    """It stops working within two seconds, in every process."""
    key.revoked = True
    key.save(update_fields=["revoked"])
