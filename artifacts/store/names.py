"""File names in answers of a store."""

from __future__ import annotations

from urllib.parse import quote


def attachment(name: str) -> str:
    """Return a Content-Disposition: never shown inline, whatever the type. name: of the file, in any
    script (RFC 6266)."""
    if not name:
        return "attachment"
    return f"attachment; filename*=UTF-8''{quote(name, safe='')}"
