"""The life of an API key: made with what it may do, replaced while both work for a while, revoked."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import cast

from django.db import transaction
from django.utils import timezone

from gpus.registry.audit import record
from jobs.domain.access import Scope
from jobs.domain.errors import ExpiresInPast, ExpiresTooFar, KeyNotActive, ScopeNeedsOperator, UnknownScope
from jobs.models import ApiKey, Tenant

OVERLAP_SECONDS = 86_400.0
"""How long a replaced key goes on by default."""
MAX_OVERLAP_SECONDS = 90 * 86_400.0
LONGEST_LIFE = timedelta(days=36_525)
"""A hundred years: there is always a time that is as far from now again."""


def create_key(
    tenant: Tenant,
    kind: ApiKey.Kind = ApiKey.Kind.TENANT,
    *,
    name: str = "",
    scopes: Sequence[str] | None = None,
    allowed_models: Sequence[str] | None = None,
    expires_at: datetime | None = None,
    by: str | None = None,
) -> tuple[ApiKey, str]:
    """The key's row (hashed) and the key itself, which is never shown again. scopes, allowed_models: None for
    all that its kind and its tenant may. by: for the audit entry; None for the system's own first steps.
    Raises Refused."""
    check_key(kind, scopes=scopes, expires_at=expires_at)
    with transaction.atomic():
        made, plaintext = ApiKey.objects.create_key(
            tenant=tenant,
            kind=kind,
            name=(name or f"{tenant} {kind}")[:50],
            scopes=_listed(scopes),
            allowed_models=_listed(allowed_models),
            expiry_date=expires_at,
        )
        row = cast("ApiKey", made)
        _record(by, "create_key", row, **_details(row))
    return row, plaintext


def check_key(kind: str, *, scopes: Sequence[str] | None, expires_at: datetime | None) -> None:
    """Raises Refused."""
    if unknown := sorted(set(scopes or ()) - {scope.value for scope in Scope}):
        raise UnknownScope(f"There is no scope {unknown[0]!r}.", pointer="/scopes")
    if scopes is not None and not scopes:
        raise UnknownScope("A key without a scope may do nothing.", pointer="/scopes")
    if scopes and Scope.OPERATE.value in scopes and kind != ApiKey.Kind.OPERATOR:
        raise ScopeNeedsOperator(pointer="/scopes")
    if expires_at is not None and expires_at <= timezone.now():
        raise ExpiresInPast(pointer="/expires_at")
    if expires_at is not None and expires_at > timezone.now() + LONGEST_LIFE:
        raise ExpiresTooFar(pointer="/expires_at")


def rotate_key(
    key: ApiKey, *, overlap_seconds: float = OVERLAP_SECONDS, by: str | None = None
) -> tuple[ApiKey, str]:
    """A new key that may do the same and lives as long as the old one was made for; the old one works for
    `overlap_seconds` more, or to its own end if that is sooner. Raises KeyNotActive: it is revoked, expired
    or replaced already."""
    now = timezone.now()
    with transaction.atomic():
        old = ApiKey.objects.select_for_update().select_related("tenant").get(pk=key.pk)
        if old.revoked or old.has_expired or old.rotated_to_id is not None:
            raise KeyNotActive()
        # one that was made before there was a longest life may have more
        lives = min(old.expiry_date - old.created, LONGEST_LIFE) if old.expiry_date else None
        row, plaintext = create_key(
            old.tenant,
            ApiKey.Kind(old.kind),
            name=old.name,
            scopes=old.scopes,
            allowed_models=old.allowed_models,
            expires_at=now + lives if lives else None,
        )
        ends = now + timedelta(seconds=overlap_seconds)
        old.expiry_date = min(ends, old.expiry_date) if old.expiry_date else ends
        old.rotated_to = row
        old.save(update_fields=["expiry_date", "rotated_to"])
        _record(by, "rotate_key", old, new=row.prefix, old_until=old.expiry_date.isoformat())
    return row, plaintext


def revoke_key(key: ApiKey, *, by: str | None = None) -> bool:
    """It stops working within two seconds, in every process. Return False if it was revoked already."""
    with transaction.atomic():
        was_revoked = ApiKey.objects.select_for_update().get(pk=key.pk).revoked
        key.revoked = True
        if not was_revoked:
            key.save(update_fields=["revoked"])
            _record(by, "revoke_key", key)
    return not was_revoked


def _listed(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else sorted(set(names))


def _details(row: ApiKey) -> dict[str, object]:
    details: dict[str, object] = {"kind": str(row.kind)}
    for name in ("scopes", "allowed_models"):
        if (value := getattr(row, name)) is not None:
            details[name] = value
    if row.expiry_date is not None:
        details["expires_at"] = row.expiry_date.isoformat()
    return details


def _record(by: str | None, action: str, key: ApiKey, **detail: object) -> None:
    record(by, action, f"key:{key.prefix}", tenant=key.tenant.name, name=key.name, **detail)
