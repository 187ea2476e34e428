"""Settings of `manage.py up`: a secret key in the data folder, services from the environment."""

from __future__ import annotations

import os
import secrets

from .base import *  # noqa: F403
from .base import DATA_DIR, env

_key_file = DATA_DIR / "secret_key"


def _kept_secret_key() -> str:
    """Read the key; create it atomically at the first start, so that two processes at once use the same."""
    DATA_DIR.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = _key_file.with_suffix(f".{os.getpid()}")
    if not _key_file.exists():
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(50))
        try:
            os.link(fresh, _key_file)
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    return _key_file.read_text().strip()


SECRET_KEY = env.str("DJANGO_SECRET_KEY", default="") or _kept_secret_key()
