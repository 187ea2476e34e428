"""Each tenant's webhook secret: stored encrypted, handed out once, when it is made."""

from __future__ import annotations

from gpus.services.secrets import decrypt, encrypt
from jobs.models import Tenant

from .signing import new_secret


def renew_secret(tenant: Tenant) -> str:
    """A new secret from now on; the return value is the only time it is seen in the clear."""
    secret = new_secret()
    tenant.webhook_secret_encrypted = encrypt(secret)
    tenant.save(update_fields=["webhook_secret_encrypted"])
    return secret


def secret_of(tenant: Tenant) -> str:
    """For signing. A tenant without one gets it now: unsigned is worse than not yet known to its owner."""
    if not tenant.webhook_secret_encrypted:
        made = encrypt(new_secret())
        Tenant.objects.filter(pk=tenant.pk, webhook_secret_encrypted="").update(webhook_secret_encrypted=made)
        tenant.refresh_from_db(fields=["webhook_secret_encrypted"])
    return decrypt(tenant.webhook_secret_encrypted)
