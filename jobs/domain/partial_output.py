"""Pieces of output that a run sends before its end, and how they are joined. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import groupby
from typing import Any


def join_pieces(pieces: Iterable[Any]) -> list[Any]:
    """Return the pieces with consecutive texts joined, also those of objects whose only value is a text under
    the same name (``{"reasoning": …}``). pieces: any JSON values."""
    joined: list[Any] = []
    for kind, group in groupby(pieces, key=_kind):
        if kind == _TEXT:
            joined.append("".join(group))
        elif isinstance(kind, tuple):
            (name,) = kind
            joined.append({name: "".join(piece[name] for piece in group)})
        else:
            joined += group
    return joined


def text_of(piece: Any) -> tuple[str | None, str] | None:
    """Return the text that a piece is a part of: its name (None: it has none) and the part. None for another
    value."""
    kind = _kind(piece)
    if kind == _TEXT:
        return None, piece
    if isinstance(kind, tuple):
        (name,) = kind
        return name, piece[name]
    return None


_TEXT = "text"


def _kind(piece: Any) -> Hashable:
    """Return `_TEXT`, the name of an object's only text as a tuple, or None for a piece of its own."""
    if isinstance(piece, str):
        return _TEXT
    if isinstance(piece, dict) and len(piece) == 1:
        ((name, value),) = piece.items()
        return (name,) if isinstance(value, str) else None
    return None
