"""File names and media types in answers of a store."""

from __future__ import annotations

import re
from urllib.parse import quote


def attachment(name: str) -> str:
    """Return a Content-Disposition: never shown inline, whatever the type. name: of the file, in any
    script (RFC 6266)."""
    if not name:
        return "attachment"
    return f"attachment; filename*=UTF-8''{quote(name, safe='')}"


_INERT = re.compile(
    r"(image/(png|jpeg|gif|webp|avif|bmp|tiff|heic)|audio/[a-z0-9.+-]+|video/[a-z0-9.+-]+|"
    r"model/[a-z0-9.+-]+|font/[a-z0-9.+-]+|application/(octet-stream|json|zip|gzip|x-tar|x-ndjson)|"
    r"text/(plain|csv))\Z"
)


def served_type(content_type: str) -> str:
    """Return the type under which browsers get an artifact: its own if no browser runs anything in it, as it
    does in HTML, SVG, XML and PDF; else `application/octet-stream`. Parameters are dropped."""
    plain = content_type.partition(";")[0].strip().lower()
    return plain if _INERT.match(plain) else "application/octet-stream"
