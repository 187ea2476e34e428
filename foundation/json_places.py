"""Paths such as ``images[*]`` and ``video.url``: the places in a JSON value that an expression leads to.

Of the expressions of `foundation.expressions` those that only select, so that each match has a place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from foundation.expressions import ExpressionRefused, Node, expression
from foundation.json_paths import Path

_STEPS = frozenset(
    ["current", "field", "identity", "index", "index_expression", "projection", "subexpression"]
) | {"value_projection"}


@dataclass(frozen=True, slots=True)
class FoundPlaces:
    """values: by place, in the order of the value. is_there: there is a match, or an empty list or object in
    whose items one would be."""

    values: Mapping[Path, Any]
    is_there: bool


@dataclass(frozen=True, slots=True)
class Places:
    """A checked path: members, indices, `[*]`, `.*` and `@`, the value itself."""

    text: str
    _root: Node

    def find(self, value: Any) -> FoundPlaces:
        """Return the places of a JSON value. The cost is at most that of visiting each value once per part of
        the path."""
        search = _Search()
        found = search.step(self._root, {(): value})
        return FoundPlaces(found, search.has_empty or bool(found))


@lru_cache(maxsize=1024)
def places(text: str) -> Places:
    """Check a path. Raises ExpressionRefused."""
    root = expression(text).tree
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node["type"] not in _STEPS:
            raise ExpressionRefused(
                "a path to files has names, indices, [*] and * only, such as images[*] or video.url"
            )
        waiting += node["children"]
    return Places(text, root)


class _Search:
    def __init__(self) -> None:
        self.has_empty = False

    def step(self, node: Node, values: dict[Path, Any]) -> dict[Path, Any]:
        kind, children = node["type"], node["children"]
        if kind in ("identity", "current"):
            return values
        if kind == "field":
            name = node["value"]
            return {
                (*path, name): one[name] for path, one in values.items() if type(one) is dict and name in one
            }
        if kind == "index":
            at = node["value"]
            return {
                (*path, at % len(one)): one[at]
                for path, one in values.items()
                if type(one) is list and -len(one) <= at < len(one)
            }
        if kind in ("subexpression", "index_expression"):
            for child in children:
                values = self.step(child, values)
            return values
        left, right = children
        return self.step(right, self._items(kind, self.step(left, values)))

    def _items(self, kind: str, values: dict[Path, Any]) -> dict[Path, Any]:
        found: dict[Path, Any] = {}
        for path, one in values.items():
            if kind == "projection" and type(one) is list:
                found |= {(*path, at): item for at, item in enumerate(one)}
            elif kind == "value_projection" and type(one) is dict:
                found |= {(*path, key): item for key, item in one.items()}
            else:
                continue
            self.has_empty = self.has_empty or not one
        return found
