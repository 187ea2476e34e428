"""The groups `viewers` (read) and `operators` (also change, and see payloads and results), written after each
migration. Neither may change audit entries or model versions."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Group, Permission
from django.db.models import Q

_APPS = ("admin_ui", "gpus", "jobs", "workflows", "schedules")
_PAYLOADS = "view_payload"
_REGISTRY = ("modelconfig", "placement", "pool", "server")
_OPERATED = ("apikey", "callback", "deadletter", "job", "run", "schedule", "tenant")


def write_groups(using: str = "default", **_: Any) -> None:
    """Write both groups. Idempotent; changes by hand last until the next migration."""
    ours = Permission.objects.using(using).filter(content_type__app_label__in=_APPS)
    view = Q(codename__startswith="view_") & ~Q(codename=_PAYLOADS)
    act = Q(content_type__model__in=_REGISTRY) | Q(codename__in=[f"change_{name}" for name in _OPERATED])
    add = Q(codename__in=["add_apikey", "add_tenant", "add_pause", "delete_pause", "delete_signinfailure"])
    _write("viewers", ours.filter(view), using)
    _write("operators", ours.filter(view | act | add | Q(codename=_PAYLOADS)), using)


def _write(name: str, permissions: Any, using: str) -> None:
    group, _ = Group.objects.using(using).get_or_create(name=name)
    group.permissions.set(permissions)
