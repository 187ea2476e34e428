"""JSON to be read by people: indented, coloured, and cut where it is long. Pure.

A result may be megabytes (base64 images, vectors): it is cut before it is written as text, never after.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

MOST_STRING = 2_000
"""Characters of one string or key; the rest is counted."""
MOST_ITEMS = 200
"""Of one list or object."""
MOST_LEAVES = 2_000
"""Values of the whole."""
_HEAD = 48
_TOKEN = re.compile(
    r'(?P<key>"(?:[^"\\]|\\.)*")(?=:)|(?P<string>"(?:[^"\\]|\\.)*")'
    r"|(?P<number>-?\d[\d.eE+-]*)|(?P<word>true|false|null|NaN|-?Infinity)"
)


@dataclass(slots=True)
class _Budget:
    left: int
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Shown:
    """html: escaped, with spans. is_cut: something was left out."""

    html: SafeString
    is_cut: bool


def show_json(value: Any) -> Shown:
    budget = _Budget(MOST_LEAVES)
    text = json.dumps(_shortened(value, budget), indent=2, ensure_ascii=False)
    text = text.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair can't be sent
    return Shown(_coloured(text), budget.is_cut)


def _shortened(value: Any, budget: _Budget) -> Any:
    budget.left -= 1
    if isinstance(value, str):
        return _short_text(value, budget)
    if isinstance(value, dict):
        room = min(len(value), MOST_ITEMS, max(budget.left, 0))
        short: dict[str, Any] = {}
        for key in list(value)[:room]:
            name = _short_text(key, budget)
            if name in short:  # two long keys that begin alike
                name = f"{name} #{len(short) + 1}"
            short[name] = _shortened(value[key], budget)
        return short | {"…": _more(len(value) - room, budget)} if room < len(value) else short
    if isinstance(value, list):
        room = min(len(value), MOST_ITEMS, max(budget.left, 0))
        items = [_shortened(item, budget) for item in value[:room]]
        return [*items, _more(len(value) - room, budget)] if room < len(value) else items
    return value


def _short_text(text: str, budget: _Budget) -> str:
    if len(text) <= MOST_STRING:
        return text
    budget.is_cut = True
    return f"{text[:_HEAD]}… ({len(text) - _HEAD:,} more characters)"


def _more(count: int, budget: _Budget) -> str:
    budget.is_cut = True
    return f"… {count:,} more"


def _coloured(text: str) -> SafeString:
    parts: list[str] = []
    end = 0
    for match in _TOKEN.finditer(text):
        parts.append(escape(text[end : match.start()]))
        parts.append(f'<span class="j-{match.lastgroup}">{escape(match[0])}</span>')
        end = match.end()
    parts.append(escape(text[end:]))
    return mark_safe("".join(parts))  # every piece of it was escaped
