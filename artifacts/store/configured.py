"""The store that the settings name. One per process; tests make their own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from artifacts.store.contract import Store
from artifacts.store.local import LocalStore
from artifacts.store.s3 import S3Place, S3Store
from foundation.public_url import public_url


class ProcessStore:
    """The store of one process, made at its first use and again when the settings change (in tests)."""

    def __init__(self) -> None:
        self._made: tuple[object, Store] | None = None

    def get(self, now: Callable[[], datetime]) -> Store:
        """Return the store. now: as of `make_store`. Raises ImproperlyConfigured."""
        wanted = (settings.DISPATCHER, settings.ARTIFACT_FOLDER)
        if self._made is None or self._made[0] != wanted:
            self._made = wanted, make_store(now)
        return self._made[1]


STORE_PATH = "/store"
"""Path of the web process that serves signed requests to a local store."""
_SETTING = "DISPATCHER_ARTIFACT_STORE"
_OPTIONS = frozenset({"endpoint", "public_endpoint", "region"})


def make_store(now: Callable[[], datetime]) -> Store:
    """Return a new store of the settings. now: the time, the same for all processes. Raises
    ImproperlyConfigured."""
    limits = settings.DISPATCHER
    place = read_place(limits.artifact_store)
    if isinstance(place, S3Place):
        return S3Store(place, now)
    folder, is_shared = place
    return LocalStore(
        folder or Path(settings.ARTIFACT_FOLDER),
        public_url(STORE_PATH, base=limits.artifact_url),
        now,
        reserve_bytes=limits.artifact_reserve_bytes,
        is_shared=is_shared,
    )


def read_place(text: str) -> S3Place | tuple[Path | None, bool]:
    """Return the bucket, or the folder (None: the default one) and whether all hosts share it
    (``/path?shared=1``). Raises ImproperlyConfigured."""
    if text.startswith("s3://"):
        return _bucket(text)
    if "://" in text and not text.startswith("file://"):
        scheme = text.partition("://")[0]
        raise ImproperlyConfigured(f"{_SETTING} is a folder or s3://BUCKET, not {scheme}://")
    path, _, query = text.removeprefix("file://").partition("?")
    if query not in ("", "shared=1"):
        raise ImproperlyConfigured(f"{_SETTING}: a folder has one option, ?shared=1")
    if path and not Path(path).is_absolute():
        raise ImproperlyConfigured(f"{_SETTING}: the folder must be absolute, it is {path}")
    return (Path(path) if path else None), bool(query)


def _bucket(text: str) -> S3Place:
    parts = urlsplit(text)
    try:
        options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    except ValueError:
        raise ImproperlyConfigured(f"{_SETTING}: the options after ? can't be read") from None
    if unknown := sorted(options.keys() - _OPTIONS):
        known = ", ".join(sorted(_OPTIONS))
        raise ImproperlyConfigured(f"{_SETTING}: there is no option {unknown[0]}, only {known}")
    if not parts.netloc or parts.username or ":" in parts.netloc:
        raise ImproperlyConfigured(
            f"{_SETTING} must name a bucket (s3://BUCKET); credentials come from AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or the machine's role"
        )
    prefix = parts.path.strip("/")
    return S3Place(parts.netloc, f"{prefix}/" if prefix else "", **options)
