"""The address of this dispatcher for GPU servers, clients and people."""

from __future__ import annotations

from django.conf import settings


def public_url(path: str, *, base: str = "") -> str:
    """Return the URL of a path, which begins with a slash. base: in place of `DISPATCHER_PUBLIC_URL`; empty:
    that one."""
    return (base or settings.DISPATCHER.public_url).rstrip("/") + path
