"""Shows payloads and results: JSON indented, coloured and shortened; images, sound and video in it extracted.
Pure.

A result may have megabytes (base64 images, vectors), so it is shortened before it becomes text. Embedded
media (a data: URI, or bare base64 that begins like an image) are served by us, by their place in the value. A
URL of another host is only a link, so that viewing a job sends no request elsewhere.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from jobs.operations.erase import ERASED, is_erased

MAX_STRING = 2_000
"""Longest string or key that is shown whole."""
MAX_ITEMS = 200
"""Items shown of one list or object."""
MAX_LEAVES = 2_000
"""Values shown in all."""
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
    """A value for a page. html: escaped JSON with coloured spans. is_cut: True if a part was left out."""

    html: SafeString
    is_cut: bool


def show_json(value: Any) -> Shown:
    """Format a JSON value, shortened to `MAX_STRING`, `MAX_ITEMS` and `MAX_LEAVES`."""
    text, is_cut = _text_of(value, indent=2)
    return Shown(_coloured(text), is_cut)


def erased_mark(value: Any) -> dict[str, str] | None:
    """Return `at` and `sha256`, if known, of a value that was erased; None for any other value."""
    mark: dict[str, str] | None = value[ERASED] if is_erased(value) else None
    return mark


def one_line_json(value: Any) -> str:
    """Return a JSON value, shortened in the same way, in one line."""
    return _text_of(value, indent=None)[0]


def _text_of(value: Any, *, indent: int | None) -> tuple[str, bool]:
    """Return the shortened JSON, and True if a part was left out."""
    budget = _Budget(MAX_LEAVES)
    text = json.dumps(_shortened(value, budget), indent=indent, ensure_ascii=False)
    return text.encode("utf-8", "replace").decode("utf-8"), budget.is_cut  # a lone surrogate has no UTF-8


def _shortened(value: Any, budget: _Budget) -> Any:
    budget.left -= 1
    if isinstance(value, str):
        return _short_text(value, budget)
    if isinstance(value, dict):
        room = min(len(value), MAX_ITEMS, max(budget.left, 0))
        short: dict[str, Any] = {}
        for key in list(value)[:room]:
            name = _short_text(key, budget)
            if name in short:  # two long keys with the same beginning
                name = f"{name} #{len(short) + 1}"
            short[name] = _shortened(value[key], budget)
        return short | {"…": _more(len(value) - room, budget)} if room < len(value) else short
    if isinstance(value, list):
        room = min(len(value), MAX_ITEMS, max(budget.left, 0))
        items = [_shortened(item, budget) for item in value[:room]]
        return [*items, _more(len(value) - room, budget)] if room < len(value) else items
    return value


def _short_text(text: str, budget: _Budget) -> str:
    if len(text) <= MAX_STRING:
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
    return mark_safe("".join(parts))  # each part is escaped above


SHOWN_TYPES = frozenset(
    {
        *("image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp"),
        *("video/mp4", "video/webm", "audio/mpeg", "audio/wav", "audio/ogg", "audio/mp4"),
    }
)
"""Types that a browser shows without running code: no SVG, no HTML."""
MAX_FOUND = 24
_MAX_VALUES = 50_000
_DATA_URI = re.compile(r"data:([a-z]+/[a-z0-9.+-]+)(?:;[a-z0-9=.-]+)*;base64,", re.IGNORECASE)
_BEGINS = (
    ("iVBORw0KGgo", "image/png"),
    ("/9j/", "image/jpeg"),
    ("R0lGOD", "image/gif"),
    ("UklGR", "image/webp"),
    ("AAAAIGZ0eXBhdmlm", "image/avif"),
    ("GkXfo", "video/webm"),
)
_SHORTEST_BASE64 = 64
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]++={0,2}\s*+\Z")  # possessive: no backtracking on a mismatch
_ENDINGS = {
    **dict.fromkeys(("png", "jpg", "jpeg", "gif", "webp", "avif", "bmp"), "image"),
    **dict.fromkeys(("mp4", "webm"), "video"),
    **dict.fromkeys(("mp3", "wav", "ogg", "m4a"), "audio"),
}


@dataclass(frozen=True, slots=True)
class Media:
    """A file or link found in a value.

    path: its place in the value, as in ``images/0``. kind: image, video, audio, file or link. content_type:
    of an embedded file; empty for a URL. text: the string in the value.
    """

    path: str
    kind: str
    content_type: str
    text: str

    @property
    def is_embedded(self) -> bool:
        return bool(self.content_type)

    def decoded(self) -> bytes:
        """Return the file's content. Raises ValueError if the text is not base64."""
        match = _DATA_URI.match(self.text)
        text = self.text[match.end() :] if match else self.text
        try:
            return base64.b64decode("".join(text.split()), validate=True)
        except binascii.Error as error:
            raise ValueError(str(error)) from None


def find_media(value: Any, *, host: str) -> list[Media]:
    """Find files and URLs in a value, in its order, at most `MAX_FOUND`.

    host: our own; its URLs are shown, those of other hosts become links.
    """
    found = []
    for path, text in _strings(value):
        media = _media(path, text, host)
        if media is not None:
            found.append(media)
            if len(found) == MAX_FOUND:
                break
    return found


def _media(path: str, text: str, host: str) -> Media | None:
    match = _DATA_URI.match(text)
    if match:
        content_type = match[1].lower()
        shown = content_type in SHOWN_TYPES
        return Media(path, content_type.split("/")[0] if shown else "file", content_type, text)
    if len(text) >= _SHORTEST_BASE64:
        for begin, content_type in _BEGINS:
            if text.startswith(begin) and _BASE64.match(text):
                return Media(path, content_type.split("/")[0], content_type, text)
    if text.startswith(("http://", "https://", "/")) and not text.startswith("//"):
        return _address(path, text, host)
    return None


def _address(path: str, text: str, host: str) -> Media | None:
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    if any(character.isspace() or character == "\\" for character in text):
        return None
    kind = _ENDINGS.get(parts.path.rpartition(".")[2].lower())
    if parts.netloc and parts.netloc != host:
        return Media(path, "link", "", text)
    return Media(path, kind, "", text) if kind else None


def _strings(value: Any) -> Iterator[tuple[str, str]]:
    waiting, seen = [("", value)], 0
    while waiting and seen < _MAX_VALUES:
        path, item = waiting.pop()
        seen += 1
        if isinstance(item, str):
            yield path, item
        elif isinstance(item, dict):
            inner = [(f"{path}/{key}" if path else str(key), child) for key, child in item.items()]
            waiting.extend(reversed(inner))
        elif isinstance(item, list):
            inner = [(f"{path}/{at}" if path else str(at), child) for at, child in enumerate(item)]
            waiting.extend(reversed(inner[:_MAX_VALUES]))
