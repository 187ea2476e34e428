"""What a version of a definition changed, line by line."""

from __future__ import annotations

import difflib
import json
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

MAX_LINES = 4_000
"""Lines of a version that are compared: the time grows with their square."""
CHANGES_SHOWN = 400
"""Lines shown."""


def shown_changes(before: Any, after: Any) -> SafeString | str:
    """Return the difference of two definitions as HTML."""
    old, new = _lines(before), _lines(after)
    if max(len(old), len(new)) > MAX_LINES:
        return f"More than {MAX_LINES} lines: too long to compare here. Get both versions by the API."
    lines = list(difflib.unified_diff(old, new, lineterm="", n=2))[2:]
    if not lines:
        return "Only the order of fields."
    shown = format_html_join("\n", "<{0}>{1}</{0}>", ((_tag(line), line) for line in lines[:CHANGES_SHOWN]))
    more = f"\n… {len(lines) - CHANGES_SHOWN} more lines" if len(lines) > CHANGES_SHOWN else ""
    return format_html(
        '<pre class="json-block changes" tabindex="0" aria-label="Changes">{}{}</pre>', shown, more
    )


def _lines(spec: Any) -> list[str]:
    return (
        json.dumps(spec, indent=2, ensure_ascii=False, sort_keys=True)
        .encode("utf-8", "replace")
        .decode()
        .splitlines()
    )


def _tag(line: str) -> str:
    return {"+": "ins", "-": "del"}.get(line[:1], "span")
