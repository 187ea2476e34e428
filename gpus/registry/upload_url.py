"""The address to which a Cog container of one server uploads the files of its outputs (``--upload-url``)."""

from __future__ import annotations

from django.conf import settings

from foundation.secrets import signed, verified

COG_UPLOADS = "/api/v1/tasks/cog/"
_PURPOSE = "cog-uploads"
_MAX_KEY = 120


def upload_url(server: str) -> str:
    """Return the address. The key in it is good for runs on this server alone, until `DISPATCHER_SECRET_KEY`
    changes."""
    return f"{settings.DISPATCHER.public_url.rstrip('/')}{COG_UPLOADS}{signed(server, purpose=_PURPOSE)}"


def server_of_key(key: str) -> str | None:
    """Return the name of the server whose key this is; None for any other text."""
    return verified(key, purpose=_PURPOSE) if key.isascii() and len(key) <= _MAX_KEY else None
