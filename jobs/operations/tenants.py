"""Operations on tenants and their API keys: create and pause tenants, change their rules (weight, highest
band, running jobs, submit limits), and create, rotate and revoke keys.

The row and its audit entry are written first, then the rules in every fleet's Redis; if Redis is unavailable,
the sweep `mirror_registry` writes them. by: actor for the audit entry; None for the system's own set-up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from foundation.database import statements
from gpus.errors import LeasingUnavailable
from gpus.leasing.values import Wakes
from gpus.models import Pause
from gpus.protocol import TenantSpec
from gpus.registry import controls, queries
from gpus.registry.audit import record
from gpus.registry.controls import Changed
from gpus.registry.index_sync import LeasesOf
from jobs.callbacks.message import renew_secret, signing_secrets
from jobs.domain.access import Scope
from jobs.domain.errors import ExpiresInPast, ExpiresTooFar, KeyNotActive, ScopeNeedsOperator, UnknownScope
from jobs.limits import submit_limits
from jobs.models import ApiKey, Tenant
from jobs.ports import Ports

RULES = ("weight", "highest_band", "max_running")
"""Fields that the lease layer in Redis needs, too."""
CHANGEABLE = (*RULES, *submit_limits.FIELDS)

_of_id = statements.Read(lambda: Tenant.objects.filter(pk=statements.value(Tenant, "id")))


@dataclass(frozen=True, slots=True)
class RulesChanged:
    """Result of `change_rules`. changed: a value differs from before. wakes: for the caller to send.
    mirrored: the lease layer of every fleet has the rules."""

    tenant: Tenant
    changed: bool
    wakes: tuple[Wakes, ...]
    mirrored: bool


def change_rules(name: str, rules: Mapping[str, Any], *, by: str, ports: Ports) -> RulesChanged:
    """Change some rules of a tenant.

    rules: new values for any of `CHANGEABLE`. by: actor for the audit entry. Raises Tenant.DoesNotExist,
    ValidationError by field, ValueError for an unknown rule.
    """
    tenant, changed = write_rules(name, rules, by=by)
    return RulesChanged(tenant, changed, *sync_rules(tenant.pk, ports.leases))


def write_rules(name: str, rules: Mapping[str, Any], *, by: str) -> tuple[Tenant, bool]:
    """Do `change_rules` without Redis, for a transaction of the caller's, who calls `sync_rules` after it.

    Returns the row, and True if a value differs from before."""
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
    return tenant, bool(changes)


def check_rules(tenant: Tenant) -> None:
    """Check the tenant's rules. Raises ValidationError by field."""
    others = [field.name for field in Tenant._meta.fields if field.name not in CHANGEABLE]
    tenant.clean_fields(exclude=others)
    tenant.clean()
    try:
        TenantSpec("new", tenant.weight, tenant.highest_band, tenant.max_running)
    except ValueError as error:  # NaN passes Django's validators
        raise ValidationError({"weight": str(error)}) from None


def sync_rules(tenant_id: int, leases: LeasesOf) -> tuple[tuple[Wakes, ...], bool]:
    """Write the tenant's rules to every fleet, until they equal the row (another process may change it
    meanwhile). Returns the wakes to send, and False if a fleet's Redis was unavailable."""
    wakes: list[Wakes] = []
    written: TenantSpec | None = None
    while (tenant := _of_id.first(id=tenant_id)) is not None and tenant.spec != written:
        written = tenant.spec
        for fleet in queries.fleets():
            try:
                wakes += leases(fleet).set_tenants([written])
            except LeasingUnavailable:
                return tuple(wakes), False
    return tuple(wakes), True


def create_tenant(
    name: str,
    *,
    weight: float = 1.0,
    highest_band: str = "normal",
    max_running: int | None = None,
    limits: Mapping[str, Any] | None = None,
    by: str | None = None,
) -> tuple[Tenant, str]:
    """Create a tenant; return it with its webhook secret.

    weight: share of GPU time relative to other tenants. highest_band: `urgent`, `normal` or `bulk`.
    max_running: leases at once; None: no limit. limits: of submits, any of `submit_limits.FIELDS`. Rules
    other than the defaults reach Redis with the next run of the sweep `mirror_registry`. Raises
    ValidationError for an invalid or taken name or invalid rules.
    """
    rules = {"weight": weight, "highest_band": highest_band, "max_running": max_running, **(limits or {})}
    tenant = Tenant(name=name, **rules)
    check_rules(tenant)
    tenant.full_clean(exclude=["id"])  # a taken one is replaced
    with transaction.atomic():
        tenant.save()
        record(by, "create_tenant", f"tenant:{name}", **rules)
        return tenant, renew_secret(tenant)


def renew_webhook_secret(tenant: Tenant, *, overlap_seconds: float = 0.0, by: str) -> str:
    """Create a new webhook secret and return it. For `overlap_seconds`, callbacks carry signatures by both
    secrets, so that receivers can accept either."""
    with transaction.atomic():
        record(by, "renew_webhook_secret", f"tenant:{tenant.name}", overlap_seconds=overlap_seconds)
        return renew_secret(tenant, overlap_seconds=overlap_seconds)


def read_webhook_secrets(tenant: Tenant, now: datetime, *, by: str) -> list[str]:
    """Return the secrets that sign the tenant's callbacks now, the current one first; the audit log records
    it. Raises SecretUnreadable."""
    record(by, "read_webhook_secret", f"tenant:{tenant.name}")
    return signing_secrets(tenant, now)


def pause_tenant(tenant: Tenant, *, by: str, ports: Ports, reason: str = "") -> Changed:
    """Pause the tenant: its waiting jobs keep their places, its running jobs continue. Returns the wakes to
    send."""
    return controls.pause(
        Pause.Kind.TENANT,
        str(tenant.pk),
        by=by,
        reason=reason,
        leases=ports.leases,
        target=f"tenant:{tenant.name}",
    )


def resume_tenant(tenant: Tenant, *, by: str, ports: Ports) -> Changed:
    """Resume the tenant. Returns the wakes to send."""
    return controls.resume(
        Pause.Kind.TENANT, str(tenant.pk), by=by, leases=ports.leases, target=f"tenant:{tenant.name}"
    )


# -- API keys ----------------------------------------------------------------------------------------

OVERLAP_SECONDS = 86_400.0
"""Default time for which a rotated key keeps working."""
MAX_OVERLAP_SECONDS = 90 * 86_400.0
LONGEST_LIFE = timedelta(days=36_525)
"""A hundred years. Adding it to the current time again, at a rotation, can't overflow a datetime."""


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
    """Create an API key; return its row (hashed) and the key itself, which can't be read again.

    scopes, allowed_models: None: all that the kind and the tenant allow. by: actor for the audit entry; None
    for the system's own set-up. Raises Refused (see `check_key`).
    """
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
    """Check the arguments of a new key. Raises UnknownScope, ScopeNeedsOperator, ExpiresInPast,
    ExpiresTooFar."""
    if unknown := sorted(set(scopes or ()) - {scope.value for scope in Scope}):
        known = ", ".join(scope.value for scope in Scope)
        raise UnknownScope(f"There is no scope {unknown[0]!r}. Scopes: {known}.", pointer="/scopes")
    if scopes is not None and not scopes:
        raise UnknownScope("A key needs at least one scope; omit `scopes` for all.", pointer="/scopes")
    if scopes and Scope.OPERATE.value in scopes and kind != ApiKey.Kind.OPERATOR:
        raise ScopeNeedsOperator(pointer="/scopes")
    if expires_at is not None and expires_at <= timezone.now():
        raise ExpiresInPast(pointer="/expires_at")
    if expires_at is not None and expires_at > timezone.now() + LONGEST_LIFE:
        raise ExpiresTooFar(pointer="/expires_at")


def rotate_key(
    key: ApiKey, *, overlap_seconds: float = OVERLAP_SECONDS, by: str | None = None
) -> tuple[ApiKey, str]:
    """Replace a key by a new one with the same permissions and the same lifetime, counted from now.

    overlap_seconds: for how long the old key keeps working, at most until its own expiry. Returns the new row
    and the new key. Raises KeyNotActive if the key is revoked, expired or already rotated.
    """
    now = timezone.now()
    with transaction.atomic():
        old = ApiKey.objects.select_for_update().select_related("tenant").get(pk=key.pk)
        if old.revoked or old.has_expired or old.rotated_to_id is not None:
            raise KeyNotActive()
        # keys of older versions may exceed LONGEST_LIFE
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
    """Revoke the key; it stops working within 2 s in every process. Returns False if it was revoked
    before."""
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
