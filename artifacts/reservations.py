"""Room that runs reserve for their outputs, before the bytes are written: it counts for the tenant until the
output is an artifact, or until a day later a sweep has removed the object that no artifact came of.

A reservation is committed before the tenant's bytes are summed. So of several at once, the last one that is
accepted has seen all others, and together they never exceed the quota.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Exists, Max, OuterRef, Sum

from artifacts.errors import ArtifactRefused, TooManyRunOutputs
from artifacts.models import Artifact, RunUpload
from artifacts.quota import check_quota, lock_tenant, used_bytes

OPEN_TIME = timedelta(hours=25)
"""How long an object that no artifact came of is in the store: `unknown_objects` removes it after a day."""


class Used(NamedTuple):
    """What a tenant's outputs without an artifact have. The same content counts once."""

    outputs: int
    bytes: int


def reserved(tenant_id: int, now: datetime) -> Used:
    """Return what outputs of the tenant's runs have that are no artifacts, or not yet."""
    # a client may have promised the same content with fewer bytes
    live = Artifact.objects.filter(
        tenant_id=tenant_id, sha256=OuterRef("sha256"), bytes__gte=OuterRef("bytes"), removed_at=None
    )
    rows = RunUpload.objects.filter(~Exists(live), tenant_id=tenant_id, created_at__gt=now - OPEN_TIME)
    by_content = rows.values("sha256").annotate(size=Max("bytes"))
    found = by_content.aggregate(count=Count("sha256"), bytes=Sum("size"))
    return Used(found["count"], found["bytes"] or 0)


def insert_reservation(row: RunUpload) -> tuple[RunUpload, bool]:
    """Insert a run's output inside a transaction; return it, or the same one of before, and whether it is
    new or has more bytes now. After the commit, `require_room` decides about a new one."""
    kept = {name: getattr(row, name) for name in ("artifact", "bytes", "content_type", "name", "created_at")}
    found, is_new = RunUpload.objects.get_or_create(
        attempt=row.attempt, sha256=row.sha256, defaults={**kept, "tenant_id": row.tenant_id}
    )
    if found.bytes < row.bytes:  # a GPU server has promised the same content with fewer
        found.bytes, is_new = row.bytes, True
        found.save(update_fields=["bytes"])
    return found, is_new


def require_room(row: RunUpload, now: datetime) -> None:
    """Check that the tenant has room for a new reservation; else remove it, and raise ArtifactQuotaFull or
    TooManyRunOutputs."""
    tenant_id = row.tenant_id
    try:
        with transaction.atomic():
            lock_tenant(tenant_id)  # promises of clients are inserted after they are counted
            open_ones = reserved(tenant_id, now)
            others = Used(open_ones.outputs - 1, open_ones.bytes - row.bytes)
            _check_room(tenant_id, others, Used(1, row.bytes))
    except ArtifactRefused:
        RunUpload.objects.filter(pk=row.pk).delete()
        raise


def check_room(tenant_id: int, more: Used, now: datetime) -> None:
    """Check that the tenant has room for outputs whose bytes did not arrive yet, and reserve none. Raises as
    `require_room`."""
    _check_room(tenant_id, reserved(tenant_id, now), more)


def _check_room(tenant_id: int, used: Used, more: Used) -> None:
    """used: what outputs without an artifact have."""
    limits = settings.DISPATCHER
    if used.outputs + more.outputs > limits.tenant_run_outputs:
        raise TooManyRunOutputs(
            f"Runs of the tenant have {limits.tenant_run_outputs} outputs of this day that are no artifacts, "
            "the most (DISPATCHER_TENANT_RUN_OUTPUTS)."
        )
    if limits.tenant_artifact_bytes:
        check_quota(used.bytes + used_bytes(tenant_id), more.bytes)
