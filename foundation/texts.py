"""Texts that people read: counts in them, and API keys taken out of them. Pure."""

from __future__ import annotations

import re


def counted(number: int, one: str, many: str = "") -> str:
    """``1 slot``, ``2 slots``. many: where it is not `one` and an s."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


_SECRET = re.compile(r"(\.|%2[eE])[A-Za-z0-9]{32}(?![A-Za-z0-9])")
"""What stands after the dot of a key, as `jobs.api.authentication` knows it."""


def hide_keys(text: str) -> str:
    """Take API keys out of a text: clients put them where none belongs, into a URL, a name, a value that an
    error repeats. Of a key its prefix stays, which names it."""
    return _SECRET.sub(r"\1…", text)
