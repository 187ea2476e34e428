"""The token with which a GPU server pushes a result: an HMAC of the attempt id, verifiable without a row."""

from __future__ import annotations

import hashlib
import hmac

from django.conf import settings


def push_token(attempt_id: str) -> str:
    """``<attempt id>.<40 hex digits>``"""
    return f"{attempt_id}.{_mac(attempt_id)}"


def attempt_of_token(token: str) -> str | None:
    """The attempt that the token was made for; None if it was not made here."""
    attempt_id, _, mac = token.partition(".")
    return attempt_id if hmac.compare_digest(mac.encode(), _mac(attempt_id).encode()) else None


def _mac(attempt_id: str) -> str:
    key = (settings.DISPATCHER.secret_key or settings.SECRET_KEY).encode()
    return hmac.new(key, b"push:" + attempt_id.encode(), hashlib.sha256).hexdigest()[:40]
