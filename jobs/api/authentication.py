"""Authentication by API key (`Authorization: Bearer …`) or by the session of a staff user (with CSRF
check)."""

from __future__ import annotations

import hashlib
import re
from datetime import timedelta
from typing import Any, cast

import structlog
from django.db import DatabaseError
from django.db.models import Q
from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

import jobs.ports
from foundation.http_api.problems import Problem
from gpus.api.permissions import require_permission
from jobs.domain.access import ALL_SCOPES, TENANT_SCOPES, Principal, Scope
from jobs.models import ApiKey
from jobs.ports import Ports

log = structlog.get_logger()

LAST_USED_SECONDS = 60.0
"""Minimum time between two updates of a key's `last_used_at`."""
_KEY = re.compile(r"[A-Za-z0-9]{8}\.[A-Za-z0-9]{32}\Z")


class KeyAuthentication(BaseAuthentication):
    """Authenticates an API key; sets `request.user` to a `Principal`."""

    def authenticate(self, request: Request) -> tuple[Principal, str] | None:
        authorization = request.headers.get("Authorization", "")
        if not authorization.partition(" ")[0]:
            return None
        principal = principal_of_header(authorization, jobs.ports.production_ports())
        if principal is None:
            raise AuthenticationFailed(
                "The API key is unknown, expired or revoked. Send a valid one: `Authorization: Bearer <key>`."
            )
        return principal, "key"

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="dispatcher"'


class StaffSession(SessionAuthentication):
    """Authenticates by a staff user's session of the Django admin. Writes need the CSRF token."""

    def authenticate(self, request: Request) -> tuple[Principal, str] | None:
        user = getattr(request._request, "user", None)
        if user is None or not user.is_active or not user.is_staff:
            return None
        self.enforce_csrf(request)
        return Principal(None, is_operator=True, name=f"user:{user.get_username()}", user=user), "session"


class HasScopeOrPermission(BasePermission):
    """Allows API keys with the scope in `view.scopes`, and staff sessions with the permission in
    `view.needs`."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if not isinstance(request.user, Principal):
            return False
        if request.user.user is not None:
            require_permission(request, view)
        else:
            _require_scope(request.user, request, view)
        return True


_READS = {"HEAD": "GET", "OPTIONS": "GET"}


def _require_scope(principal: Principal, request: Request, view: Any) -> None:
    """Check the key's scope. A method that the view handles but `view.scopes` lacks is refused. Raises
    Problem 403."""
    method = _READS.get(str(request.method), str(request.method))
    scope = view.scopes.get(method)
    if scope not in principal.scopes and hasattr(view, method.lower()):
        raise Problem(403, "scope_required", f"This request needs an API key with the scope {scope}.")


def principal_of_header(authorization: str, ports: Ports) -> Principal | None:
    """Return the principal of an `Authorization` header; None without a valid key."""
    scheme, _, key = authorization.partition(" ")
    return principal_of_key(key.strip(), ports) if scheme.lower() == "bearer" else None


def principal_of_key(key: str, ports: Ports) -> Principal | None:
    """Return the principal of a key, cached; None if the key is malformed, unknown, revoked or expired."""
    if not _KEY.match(key):
        return None
    return ports.valid_keys.get(hashlib.sha256(key.encode()).digest(), lambda: _read(key))


def cached_tenant(authorization: str, ports: Ports) -> int | None:
    """Return the tenant id of an `Authorization` header whose key is in the cache of valid keys, else None;
    no database query."""
    scheme, _, key = authorization.partition(" ")
    if scheme.lower() != "bearer":
        return None
    principal = ports.valid_keys.peek(hashlib.sha256(key.strip().encode()).digest())
    return principal.tenant_id if principal is not None else None


def _read(key: str) -> Principal | None:
    try:
        row = cast("ApiKey", ApiKey.objects.get_from_key(key))
    except ApiKey.DoesNotExist:
        return None
    if row.has_expired:
        return None
    principal = _principal(row)
    _record_use(row)
    return principal


def _principal(row: ApiKey) -> Principal:
    allowed = ALL_SCOPES if row.kind == ApiKey.Kind.OPERATOR else TENANT_SCOPES
    scopes = allowed if row.scopes is None else allowed & frozenset(row.scopes)
    return Principal(
        tenant_id=row.tenant_id,
        is_operator=Scope.OPERATE in scopes,
        name=f"key:{row.prefix}",
        scopes=scopes,
        models=None if row.allowed_models is None else frozenset(row.allowed_models),
        key_name=row.name,
    )


def _record_use(row: ApiKey) -> None:
    """Update `last_used_at`, at most once a minute per key; a database that is read-only is no error."""
    now = timezone.now()
    before = now - timedelta(seconds=LAST_USED_SECONDS)
    if row.last_used_at is not None and row.last_used_at > before:
        return
    unused = ApiKey.objects.filter(Q(last_used_at=None) | Q(last_used_at__lte=before), pk=row.pk)
    try:
        unused.update(last_used_at=now)
    except DatabaseError as error:
        log.warning("key_use_not_recorded", key=row.prefix, error=str(error).strip())


class _KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "jobs.api.authentication.KeyAuthentication"
    name = "apiKey"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "An API key of a tenant or an operator."}


class _SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "jobs.api.authentication.StaffSession"
    name = "staffSession"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "apiKey", "in": "cookie", "name": "sessionid"}
