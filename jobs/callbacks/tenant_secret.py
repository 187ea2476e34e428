"""Each tenant's webhook secret: stored encrypted, handed out once, when it is made."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.utils import timezone

from foundation.secrets import decrypt, encrypt
from jobs.models import Tenant

from .signing import new_secret


def renew_secret(tenant: Tenant, *, overlap_seconds: float = 0.0) -> str:
    """A new secret from now on; the return value is the only time it is seen in the clear. The old one signs
    too for `overlap_seconds`; one before that signs no more."""
    secret, old = new_secret(), tenant.webhook_secret_encrypted
    overlaps = bool(old) and overlap_seconds > 0
    tenant.webhook_secret_before_encrypted = old if overlaps else ""
    tenant.webhook_secret_before_until = (
        timezone.now() + timedelta(seconds=overlap_seconds) if overlaps else None
    )
    tenant.webhook_secret_encrypted = encrypt(secret)
    tenant.save(
        update_fields=[
            "webhook_secret_encrypted",
            "webhook_secret_before_encrypted",
            "webhook_secret_before_until",
        ]
    )
    return secret


def secrets_of(tenant: Tenant, now: datetime) -> list[str]:
    """All that a callback is signed with now, the present one first."""
    secrets = [secret_of(tenant)]
    until = tenant.webhook_secret_before_until
    if tenant.webhook_secret_before_encrypted and until is not None and now < until:
        secrets.append(decrypt(tenant.webhook_secret_before_encrypted))
    return secrets


def secret_of(tenant: Tenant) -> str:
    """For signing. A tenant without one gets it now: unsigned is worse than not yet known to its owner."""
    if not tenant.webhook_secret_encrypted:
        made = encrypt(new_secret())
        Tenant.objects.filter(pk=tenant.pk, webhook_secret_encrypted="").update(webhook_secret_encrypted=made)
        tenant.refresh_from_db(fields=["webhook_secret_encrypted"])
    return decrypt(tenant.webhook_secret_encrypted)
