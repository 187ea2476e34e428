"""The fields of a form."""

from __future__ import annotations

import re


def fields_of(text: str) -> dict[str, list[str]]:
    """The hidden fields that the page's form sends."""
    form = text[text.index('<form method="post">') :]
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', form):
        found.setdefault(name, []).append(value)
    return found
