"""Places in a JSON value: pointers (RFC 6901), and copies with other values at some places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Path = tuple[str | int, ...]
"""Keys and indices from the root."""


def pointer(path: Iterable[object]) -> str:
    """Return a path as a JSON pointer."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


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
