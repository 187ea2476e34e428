"""API keys taken out of texts: clients put them where none belongs, into a URL, a name, a value that an error
repeats. Pure."""

from __future__ import annotations

import re

_SECRET = re.compile(r"(\.|%2[eE])[A-Za-z0-9]{32}(?![A-Za-z0-9])")
"""What stands after the dot of a key, as `jobs.api.authentication` knows it."""


def hide_keys(text: str) -> str:
    """Of a key its prefix stays, which names it."""
    return _SECRET.sub(r"\1…", text)
