"""The bytes that a tenant's artifacts have and may have. They are the sum of changes that triggers write, and
cost the same for any number of artifacts (docs/adr/0051-bytes-of-a-tenant-as-a-sum-of-changes.md)."""

from __future__ import annotations

import hashlib

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Count, Sum

from artifacts.errors import ArtifactQuotaFull
from artifacts.models import ByteChange

_MERGED_AT_ONCE = 1000


def used_bytes(tenant_id: int) -> int:
    """Return the bytes of a tenant's artifacts, promised ones included, in the snapshot of this statement."""
    return ByteChange.objects.filter(tenant_id=tenant_id).aggregate(used=Sum("bytes"))["used"] or 0


def merge_changes(at_once: int = _MERGED_AT_ONCE) -> None:
    """Replace the changes of each tenant by their sum, so that there are few to add up. at_once: rows of one
    transaction."""
    changes = ByteChange.objects.values_list("tenant_id").annotate(rows=Count("pk")).filter(rows__gt=1)
    for tenant_id, rows in list(changes):
        left = rows
        while left > 1 and (merged := _merge_some(tenant_id, at_once)) > 1:
            left -= merged - 1


def _merge_some(tenant_id: int, at_once: int) -> int:
    """Return how many rows."""
    with transaction.atomic():
        # locked, so that another merger does not take them too; transactions that write changes lock none
        rows = ByteChange.objects.filter(tenant_id=tenant_id).select_for_update(skip_locked=True)
        found = dict(rows.order_by("pk").values_list("pk", "bytes")[:at_once])
        ByteChange.objects.filter(pk__in=found).delete()
        if total := sum(found.values()):
            ByteChange.objects.create(tenant_id=tenant_id, bytes=total)
    return len(found)


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
