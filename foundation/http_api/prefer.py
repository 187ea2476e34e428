"""The header `Prefer` (RFC 7240)."""

from __future__ import annotations

import re

_PIECE = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[,;]|[^,;"]+', re.DOTALL)
"""A quoted string, a separator, or the text between them. An unfinished string ends with the header."""
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def preferences(header: str) -> dict[str, str]:
    """Return the values by name in lower case; "" for a preference without a value.

    Of a name that comes twice the first one counts. Parameters (``respond-async; wait=5`` has `wait` as one
    of `respond-async`) are left out, as is the content of quoted strings.
    """
    found: dict[str, str] = {}
    text, is_parameter = "", False
    for piece in (*_PIECE.findall(header), ","):
        if piece == ",":
            _add(text, found)
            text, is_parameter = "", False
        elif piece == ";":
            is_parameter = True
        elif not is_parameter:
            text += piece
    return found


def _add(preference: str, found: dict[str, str]) -> None:
    name, _, value = preference.partition("=")
    value = value.strip()
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = _ESCAPED.sub(r"\1", value[1:-1])
    if name := name.strip().lower():
        found.setdefault(name, value)
