"""Fingerprints that group failures by kind, independent of the jobs, servers, files and numbers in the
message."""

from __future__ import annotations

import hashlib
import re

_PREFIX_LENGTH = 1000
"""Characters of a message that are compared."""

_NAMES = (
    (r"\b[a-z][a-z0-9+.-]*://[^\s\"'<>]+", "<url>"),
    (r"\"[^\"]*\"|(?<!\w)'[^']*'(?!\w)|`[^`]*`", "<text>"),
    (r"(?<![\w/])(?:[a-z]:[\\/]|(?:\.{1,2}|~)?/)[\w.~+@%/\\-]+", "<path>"),
    (r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<id>"),
    (r"\b(?=[a-z]*[0-9])[0-9a-hjkmnp-tv-z]{26}\b", "<id>"),
    (r"\b0x[0-9a-f]+\b|\b(?=[a-f]*[0-9])[0-9a-f]{7,}\b", "<id>"),
    (r"\d+(?:[.,:]\d+)*", "#"),
)
"""Replaced in this order: a URL contains paths, and quoted text may contain anything."""
_PATTERNS = tuple((re.compile(pattern, re.IGNORECASE), name) for pattern, name in _NAMES)


def kind_of(message: str) -> str:
    """Return the message with URLs, quoted text, paths, ids and numbers replaced by placeholders."""
    text = message[:_PREFIX_LENGTH]
    for pattern, name in _PATTERNS:
        text = pattern.sub(name, text)
    return " ".join(text.split()).lower()


def fingerprint_of(error_code: str, message: str) -> str:
    """Return the fingerprint of a failure, 16 hexadecimal digits."""
    kind = f"{error_code}\n{kind_of(message)}"
    return hashlib.blake2b(kind.encode(errors="replace"), digest_size=8).hexdigest()
