"""Paths that no result of a model has, by its `result_schema`. An open schema rules nothing out, nor does
anything that this module does not understand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from foundation.expressions import Expression, Node

Step = str | int
_MAX_DEPTH, _MAX_PARTS = 50, 1_000
"""Schemas inside one another, and in all, that are followed; `$ref` may lead back."""
_ONE_OF = ("anyOf", "oneOf")


def path_of(expression: Expression) -> tuple[Step, ...] | None:
    """Return the steps of a plain path such as ``a.b[0]``; None for any other expression."""
    return _steps(expression.tree)


def _steps(node: Node) -> tuple[Step, ...] | None:
    kind = node["type"]
    if kind in ("field", "index"):
        return (node["value"],)
    if kind == "identity":
        return ()
    if kind not in ("subexpression", "index_expression"):
        return None
    found: tuple[Step, ...] = ()
    for child in node["children"]:
        steps = _steps(child)
        if steps is None:
            return None
        found += steps
    return found


def is_ruled_out(schema: Any, path: Sequence[Step]) -> bool:
    """Return True if no value that matches the schema has anything at this path."""
    return _Root(schema).rules_out(schema, tuple(path), 0)


class _Root:
    """A whole schema, to which the `$ref`s of its parts refer."""

    def __init__(self, whole: Any) -> None:
        self._whole = whole
        self._left = _MAX_PARTS

    def rules_out(self, schema: Any, path: tuple[Step, ...], depth: int) -> bool:
        if schema is False:
            return True
        self._left -= 1
        if not isinstance(schema, Mapping) or not path or depth > _MAX_DEPTH or self._left < 0:
            return False
        if "$id" in schema and schema is not self._whole:
            return False  # its references are to other places
        step, rest = path[0], path[1:]
        if isinstance(step, str) and _has_no(schema, step):
            return True
        parts = _members(schema, step) if isinstance(step, str) else _items(schema, step)
        if any(self.rules_out(part, rest, depth + 1) for part in parts):
            return True
        if any(self.rules_out(part, path, depth + 1) for part in self._all_of(schema)):
            return True
        branches = (schema[name] for name in _ONE_OF if isinstance(schema.get(name), list))
        return any(all(self.rules_out(part, path, depth + 1) for part in branch) for branch in branches)

    def _all_of(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        """Yield the other schemas that the same value matches."""
        if isinstance(schema.get("allOf"), list):
            yield from schema["allOf"]
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/") or "%" in reference:
            return
        found: Any = self._whole
        for part in reference[2:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if (
                not isinstance(found, Mapping)
                or name not in found
                or (found is not self._whole and "$id" in found)
            ):
                return
            found = found[name]
        yield found


def _has_no(schema: Mapping[str, Any], name: str) -> bool:
    """Return True for a closed object without this member. Only a schema that requires an object is closed:
    a text may become the reference to an artifact, whose members no schema names."""
    members = schema.get("properties", {})
    return (
        schema.get("type") == "object"
        and schema.get("additionalProperties") is False
        and not schema.get("patternProperties")
        and isinstance(members, Mapping)
        and name not in members
        and not any(one.startswith("$") for one in (*members, name))
    )


def _members(schema: Mapping[str, Any], name: str) -> Iterator[Any]:
    """Yield the schemas of a member, as far as it is that of an object."""
    members = schema.get("properties")
    if schema.get("type") == "object" and isinstance(members, Mapping) and name in members:
        yield members[name]


def _items(schema: Mapping[str, Any], index: int) -> Iterator[Any]:
    """Yield the schemas of an element, as far as it is that of a list."""
    if schema.get("type") != "array":
        return
    first = schema.get("prefixItems", [])
    if not isinstance(first, list):
        return
    if 0 <= index < len(first):
        yield first[index]
    elif (index >= 0 or not first) and isinstance(schema.get("items"), Mapping):
        yield schema["items"]
