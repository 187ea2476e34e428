"""Failures of one kind have one fingerprint, whatever jobs, servers, files and numbers they name."""

from __future__ import annotations

import hashlib
import re

_LOOKED_AT = 1000
"""Characters of a message. What differs only behind them is the same kind."""

_NAMES = (
    (r"\b[a-z][a-z0-9+.-]*://[^\s\"'<>]+", "<url>"),
    (r"\"[^\"]*\"|(?<!\w)'[^']*'(?!\w)|`[^`]*`", "<text>"),
    (r"(?<![\w/])(?:[a-z]:[\\/]|(?:\.{1,2}|~)?/)[\w.~+@%/\\-]+", "<path>"),
    (r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<id>"),
    (r"\b(?=[a-z]*[0-9])[0-9a-hjkmnp-tv-z]{26}\b", "<id>"),
    (r"\b0x[0-9a-f]+\b|\b(?=[a-f]*[0-9])[0-9a-f]{7,}\b", "<id>"),
    (r"\d+(?:[.,:]\d+)*", "#"),
)
"""In this order: an address is no path, and what is quoted may hold anything."""
_PATTERNS = tuple((re.compile(pattern, re.IGNORECASE), name) for pattern, name in _NAMES)


def kind_of(message: str) -> str:
    """The message without what is particular to one case."""
    text = message[:_LOOKED_AT]
    for pattern, name in _PATTERNS:
        text = pattern.sub(name, text)
    return " ".join(text.split()).lower()


def fingerprint_of(error_code: str, message: str) -> str:
    """16 hexadecimal digits."""
    kind = f"{error_code}\n{kind_of(message)}"
    return hashlib.blake2b(kind.encode(errors="replace"), digest_size=8).hexdigest()
