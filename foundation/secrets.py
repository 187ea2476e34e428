"""Secrets: encrypted at rest (server headers, webhook secrets) and tokens signed, both under a key that is
not in the database. API keys are taken out of texts."""

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
    """A stored secret can't be read: DISPATCHER_SECRET_KEY (or DJANGO_SECRET_KEY) was another one then."""

    def __init__(self) -> None:
        super().__init__((type(self).__doc__ or "").strip())


def encrypt(text: str) -> str:
    """URL-safe ASCII; another one each time."""
    return _cipher().encrypt(text.encode()).decode("ascii")


def decrypt(text: str) -> str:
    """The clear text; raises SecretUnreadable."""
    from cryptography.fernet import InvalidToken

    try:
        return _cipher().decrypt(text.encode("ascii", "replace")).decode()
    except InvalidToken:
        raise SecretUnreadable from None


def _cipher() -> Fernet:
    from cryptography.fernet import Fernet  # not in each process that writes logs

    return Fernet(base64.urlsafe_b64encode(hashlib.sha256(b"dispatcher secrets\0" + _key()).digest()))


def signed(text: str, *, purpose: str) -> str:
    """Return ``<text>.<40 hex digits>``: the text with an HMAC, which `verified` checks without a stored
    row."""
    return f"{text}.{_mac(text, purpose)}"


def verified(token: str, *, purpose: str) -> str | None:
    """Return the text of a token that `signed` made for this purpose; None for any other token."""
    text, _, mac = token.partition(".")
    return text if hmac.compare_digest(mac.encode(), _mac(text, purpose).encode()) else None


def _mac(text: str, purpose: str) -> str:
    return hmac.digest(_key(), f"{purpose}:{text}".encode(), "sha256").hex()[:40]


def _key() -> bytes:
    return (settings.DISPATCHER.secret_key or settings.SECRET_KEY).encode()


_SECRET = re.compile(r"(\.|%2[eE])[A-Za-z0-9]{32}(?![A-Za-z0-9])")
"""What stands after the dot of a key, as `jobs.api.authentication` knows it."""


def hide_keys(text: str) -> str:
    """Take API keys out of a text: clients put them where none belongs, into a URL, a name, a value that an
    error repeats. Of a key its prefix stays, which names it."""
    return _SECRET.sub(r"\1…", text)
