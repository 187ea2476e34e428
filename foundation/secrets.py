"""Secrets: encryption at rest (server headers, webhook secrets) and signed tokens, both under a key that is
not in the database. Also masks API keys in texts."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import TYPE_CHECKING

from django.conf import settings

if TYPE_CHECKING:
    from cryptography.fernet import Fernet


class SecretUnreadable(Exception):
    """A stored secret can't be decrypted: DISPATCHER_SECRET_KEY (or DJANGO_SECRET_KEY) has changed since."""

    def __init__(self) -> None:
        super().__init__((type(self).__doc__ or "").strip())


def encrypt(text: str) -> str:
    """Return the encrypted text as URL-safe ASCII; it differs each time."""
    return _cipher().encrypt(text.encode()).decode("ascii")


def decrypt(text: str) -> str:
    """Return the clear text. Raises SecretUnreadable."""
    from cryptography.fernet import InvalidToken

    try:
        return _cipher().decrypt(text.encode("ascii", "replace")).decode()
    except InvalidToken:
        raise SecretUnreadable from None


def _cipher() -> Fernet:
    from cryptography.fernet import Fernet  # loaded late: processes that only write logs don't need it

    return Fernet(base64.urlsafe_b64encode(hashlib.sha256(b"dispatcher secrets\0" + _key()).digest()))


def signed(text: str, *, purpose: str) -> str:
    """Return ``<text>.<40 hex digits>``: the text with an HMAC, which `verified` checks without a stored
    row."""
    return f"{text}.{_mac(text, purpose)}"


def verified(token: str, *, purpose: str) -> str | None:
    """Return the text of a token that `signed` made for this purpose; None for any other token."""
    text, _, mac = token.rpartition(".")
    return text if hmac.compare_digest(mac.encode(), _mac(text, purpose).encode()) else None


def _mac(text: str, purpose: str) -> str:
    return hmac.digest(_key(), f"{purpose}:{text}".encode(), "sha256").hex()[:40]


def _key() -> bytes:
    return (settings.DISPATCHER.secret_key or settings.SECRET_KEY).encode()


_KEY_SECRET = re.compile(r"(\.|%2[eE])[A-Za-z0-9]{32}(?![A-Za-z0-9])")
"""The part of an API key after its dot, as `jobs.api.authentication` makes it."""


def hide_keys(text: str) -> str:
    """Replace the secret part of API keys in a text; the prefix, which identifies the key, stays.

    Clients put keys into places that are logged or repeated: URLs, names, values in errors."""
    return _KEY_SECRET.sub(r"\1…", text)
