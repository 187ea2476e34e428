"""Secrets at rest: server headers and webhook secrets, encrypted under a key that is not in the database."""

from __future__ import annotations

import base64
import hashlib

from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings


class SecretUnreadable(Exception):
    """A stored secret can't be read: DISPATCHER_SECRET_KEY (or DJANGO_SECRET_KEY) was another one then."""

    def __init__(self) -> None:
        super().__init__((type(self).__doc__ or "").strip())


def encrypt(text: str) -> str:
    """URL-safe ASCII; another one each time."""
    return _cipher().encrypt(text.encode()).decode("ascii")


def decrypt(text: str) -> str:
    """The clear text; raises SecretUnreadable."""
    try:
        return _cipher().decrypt(text.encode("ascii", "replace")).decode()
    except InvalidToken:
        raise SecretUnreadable from None


def _cipher() -> Fernet:
    key = settings.DISPATCHER.secret_key or settings.SECRET_KEY
    return Fernet(base64.urlsafe_b64encode(hashlib.sha256(b"dispatcher secrets\0" + key.encode()).digest()))
