"""Signatures after Standard Webhooks (https://www.standardwebhooks.com, symmetric, ``v1``)."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from datetime import datetime

from standardwebhooks import Webhook

_SECRET_BYTES = 32


def new_secret() -> str:
    """``whsec_`` and 32 random bytes in base 64: what the receiver gives to any Standard Webhooks library."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode("ascii")


def sign(secret: str | Sequence[str], message_id: str, timestamp: datetime, body: str) -> dict[str, str]:
    """The three headers that let a receiver trust `body`. timestamp: aware; of this try. Of several secrets
    each makes a signature, and a receiver that knows one of them is content."""
    all_of_them = [secret] if isinstance(secret, str) else secret
    signatures = [Webhook(one).sign(message_id, timestamp, body) for one in all_of_them]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(timestamp.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
