"""The bytes that a tenant's artifacts may have."""

from __future__ import annotations

import hashlib

from django.conf import settings
from django.db import connection

from artifacts.errors import ArtifactQuotaFull


def check_quota(used: int, more: int) -> None:
    """Raise ArtifactQuotaFull if a tenant with `used` bytes may not have so many more."""
    most = settings.DISPATCHER.tenant_artifact_bytes
    if most and used + more > most:
        raise ArtifactQuotaFull(
            f"The tenant's artifacts may have {most} bytes (DISPATCHER_TENANT_ARTIFACT_BYTES); they have "
            f"{used}, and new ones {more}. Delete some."
        )


def lock_tenant(tenant_id: int) -> None:
    """Let transactions that count a tenant's artifacts follow each other, so that they see each other's
    bytes. SQLite has one writer."""
    if connection.vendor == "postgresql":
        digest = hashlib.blake2b(f"artifacts {tenant_id}".encode(), digest_size=8).digest()
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [int.from_bytes(digest, "big", signed=True)])
