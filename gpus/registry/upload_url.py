"""The address to which a Cog container of one server uploads the files of its outputs (``--upload-url``)."""

from __future__ import annotations

import secrets

from django.conf import settings
from django.db import transaction

from foundation.secrets import signed, verified
from gpus.models import Server
from gpus.registry.audit import record

COG_UPLOADS = "/api/v1/tasks/cog/"
_PURPOSE = "cog-uploads"
_MAX_KEY = 160


def upload_url(server: Server) -> str:
    """Return the address. The key in it is good for runs on this server alone, until it is renewed."""
    return f"{settings.DISPATCHER.public_url}{COG_UPLOADS}{signed(_text(server), purpose=_PURPOSE)}"


def server_of_key(key: str) -> str | None:
    """Return the name of the server whose key this is; None for any other text, and for a key that was
    renewed or whose server was removed."""
    text = verified(key, purpose=_PURPOSE) if key.isascii() and len(key) <= _MAX_KEY else None
    if text is None:
        return None
    row = Server.objects.filter(name=text.partition("~")[0]).first()
    return row.name if row is not None and _text(row) == text else None


def new_salt() -> str:
    """Return a new part of a server's key, which makes all its earlier keys invalid."""
    return secrets.token_hex(8)


def renew_upload_url(name: str, *, by: str) -> str | None:
    """Make a new key for a server, with which its container must be started again: the old one is refused at
    once. Return the address; None if there is no such server."""
    with transaction.atomic():
        row = Server.objects.select_for_update().filter(name=name).first()
        if row is None:
            return None
        row.upload_salt = new_salt()
        row.save(update_fields=["upload_salt"])
        record(by, "renew_upload_url", f"server:{name}")
    return upload_url(row)


def _text(server: Server) -> str:
    return f"{server.name}~{server.upload_salt}".rstrip("~")  # servers of earlier versions have no salt
