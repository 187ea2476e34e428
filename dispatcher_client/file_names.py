"""Names for downloaded files. An artifact's own name is any text of its uploader, or of a server."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

_NAME_BYTES, _SUFFIX_CHARS = 200, 16
"""Of a file's name, before an artifact's id: file systems take 255 bytes."""


def free_names(name: str, artifact_id: str, taken: Iterable[str]) -> list[str]:
    """Return names for a file in a folder, best first; the last one begins with the artifact's id. No name
    is a path, equals a taken one in another case or Unicode form, or is too long for a file system.
    artifact_id: letters and digits."""
    last = name.replace("\\", "/").rpartition("/")[2]
    plain = _shortened("".join(filter(str.isprintable, last)).strip(". "))
    if not plain:
        return [artifact_id]
    is_free = _folded(plain) not in map(_folded, taken)
    return [*([plain] if is_free else []), f"{artifact_id}-{plain}"]


def _folded(name: str) -> str:
    """Return a text that is equal for names which some file systems take for the same: they ignore case, or
    the Unicode form of accents."""
    return unicodedata.normalize("NFC", name.casefold())


def _shortened(name: str) -> str:
    """Return at most `_NAME_BYTES` of a name, with its suffix."""
    if len(name.encode()) <= _NAME_BYTES:
        return name
    stem, dot, suffix = name.rpartition(".")
    if not stem or len(suffix) > _SUFFIX_CHARS:
        stem, dot, suffix = name, "", ""
    room = _NAME_BYTES - len((dot + suffix).encode())
    return stem.encode()[:room].decode(errors="ignore") + dot + suffix
