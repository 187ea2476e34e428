"""The record of what operators did. Called inside the transaction of the deed: neither stands alone."""

from __future__ import annotations

import getpass
import os
from typing import Any

from django.utils import timezone

from gpus.models import AuditEntry


def record(actor: str, action: str, target: str, **detail: Any) -> None:
    """action: verb_noun, as the service is called. target: ``kind:name``, as in ``server:flux-1``."""
    AuditEntry.objects.create(
        at=timezone.now(), actor=actor, action=action, target=target[:200], detail=detail
    )


def cli_actor() -> str:
    """Who sits at the command line: ``cli:<name>``."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a container may know no name for its user
        return f"cli:{os.getuid()}"
