"""What DISPATCHER_ARTIFACT_STORE may say. The settings read it, so nothing here needs them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from django.core.exceptions import ImproperlyConfigured

_SETTING = "DISPATCHER_ARTIFACT_STORE"
_OPTIONS = frozenset({"endpoint", "public_endpoint", "region"})


@dataclass(frozen=True, slots=True)
class S3Place:
    """Where a bucket is.

    prefix: of all keys, with a trailing slash, or "". endpoint: URL for the dispatcher; "": that of AWS.
    public_endpoint: URL for clients and GPU servers; "": the same. region: "" for that of the environment.
    """

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    public_endpoint: str = ""
    region: str = ""


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
