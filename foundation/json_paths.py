"""Places in a JSON value: pointers (RFC 6901), targets of references, and copies with other values at
some places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

Path = tuple[str | int, ...]
"""Keys and indices from the root."""


def pointer(path: Iterable[object]) -> str:
    """Return a path as a JSON pointer."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def at_reference(document: Any, reference: str) -> Any:
    """Return what a `$ref` inside a document leads to, such as ``#/$defs/picture``; None for one that leads
    nowhere or outside."""
    if reference == "#":
        return document
    if not reference.startswith("#/"):
        return None
    found = document
    for part in unquote(reference[2:]).split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(key)
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found


def with_values(value: Any, new: Mapping[Path, Any]) -> Any:
    """Return a copy of a JSON value with other values at these places; unchanged parts are shared.

    No place is inside another one. Recursion is as deep as the paths.
    """
    if () in new:
        return new[()]
    inside: dict[str | int, dict[Path, Any]] = {}
    for path, one in new.items():
        inside.setdefault(path[0], {})[path[1:]] = one
    copy = dict(value) if isinstance(value, dict) else list(value)
    for key, below in inside.items():
        copy[key] = with_values(copy[key], below)  # type: ignore[index,call-overload]
    return copy
