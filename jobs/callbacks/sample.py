"""A message that an operator sends to see whether a receiver takes it: signed and guarded like every other,
sent once, belonging to no job."""

from __future__ import annotations

import json
from datetime import datetime

from django.db import transaction

from foundation.ids import new_id
from foundation.secrets import SecretUnreadable
from gpus.registry.audit import record
from jobs.models import Tenant

from .guard import check_callback_url, refused_origins
from .message import secrets_of
from .sending import Message, Outcome, failure_text, send_now


def send_sample(tenant: Tenant, url: str, *, by: str, now: datetime) -> Outcome:
    """Raises CallbackUrlRefused for an address that must not be called. Never inside a transaction."""
    refused = refused_origins()
    check_callback_url(url, refused)
    message_id = f"msg_{new_id(now.timestamp())}"
    body = json.dumps(
        {"status": "test", "message": "A test of this address, sent by hand.", "sent_at": now.isoformat()},
        separators=(",", ":"),
    )
    with transaction.atomic():  # before it leaves: what was done is known even if this process ends here
        record(by, "send_sample_callback", f"tenant:{tenant.name}", url=url, message_id=message_id)
    try:
        secrets = secrets_of(tenant, now)
    except SecretUnreadable as failure:
        return Outcome(None, failure_text(failure), 0)
    return send_now(Message(message_id, tenant.pk, url, body, secrets, refused), now=now)
