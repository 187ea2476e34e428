"""The schema of a result in which references replace the texts of files. Rules for a file's own text, such as
its length, do not apply to a reference, so they are removed at these places."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from django.conf import settings

from foundation.foreign_schema import ForeignSchema, SchemaRefused, compiled
from foundation.json_paths import Path, at_reference

_ITEM = -1
"""In a path: any item of a list."""
_OF_THE_TEXT = ("minLength", "maxLength", "pattern", "enum", "const", "not", "if", "then", "else")


def schema_of_shown(schema: ForeignSchema, files: Iterable[Path]) -> ForeignSchema:
    """Return the schema without the rules for texts at these places. Their type, `format` and
    `contentEncoding` stay."""
    places = {tuple(_ITEM if type(one) is int else one for one in path) for path in files}
    try:
        return _rewritten(schema.text, frozenset(places)) if places else schema
    except SchemaRefused:  # too large: the targets of its references are copied into it
        return schema


@lru_cache(maxsize=128)
def _rewritten(text: str, places: frozenset[Path]) -> ForeignSchema:
    root = json.loads(text)
    return compiled(_Rewriter(root).rewrite(root, places, ()))


class _Rewriter:
    """Copies the parts of a schema that lead to the places. The target of a `$ref` is copied too, because
    other values may refer to the same definition."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._steps, self._most_steps = 0, settings.DISPATCHER.schema_file_steps

    def rewrite(self, schema: Any, places: frozenset[Path], under_way: tuple[str, ...]) -> Any:
        """Return the schema of a value. places: from that value on."""
        self._steps += 1
        if not isinstance(schema, dict) or not places or self._steps > self._most_steps:
            return schema
        new = dict(schema)
        more: list[Any] = []
        if () in places:
            for name in _OF_THE_TEXT:
                new.pop(name, None)
            if isinstance(branches := new.pop("oneOf", None), list):  # several may match without their rules
                more.append({"anyOf": [self.rewrite(one, places, under_way) for one in branches]})
        reference = new.get("$ref")
        if isinstance(reference, str) and (target := at_reference(self._root, reference)) is not None:
            del new["$ref"]
            if reference not in under_way:  # a reference to itself adds no rule
                more.append(self.rewrite(target, places, (*under_way, reference)))
        for name in ("allOf", "anyOf", "oneOf"):
            if isinstance(new.get(name), list):
                new[name] = [self.rewrite(one, places, under_way) for one in new[name]]
        for name in ("then", "else"):
            if name in new:
                new[name] = self.rewrite(new[name], places, under_way)
        if more:
            new["allOf"] = [*new.get("allOf", ()), *more]
        self._rewrite_below(new, places)
        return new

    def _rewrite_below(self, new: dict[str, Any], places: frozenset[Path]) -> None:
        below: defaultdict[Any, set[Path]] = defaultdict(set)
        for path in places:
            if path:
                below[path[0]].add(path[1:])
        of_items = frozenset(below.pop(_ITEM, ()))
        if of_items:
            if "items" in new:
                new["items"] = self.rewrite(new["items"], of_items, ())
            if isinstance(new.get("prefixItems"), list):
                new["prefixItems"] = [self.rewrite(one, of_items, ()) for one in new["prefixItems"]]
        of_members = frozenset(path for paths in below.values() for path in paths)
        if not of_members:
            return
        properties = new.get("properties")
        if isinstance(properties, dict):
            new["properties"] = {
                key: self.rewrite(one, frozenset(below.get(key, ())), ()) for key, one in properties.items()
            }
        if "additionalProperties" in new:
            new["additionalProperties"] = self.rewrite(new["additionalProperties"], of_members, ())
        patterns = new.get("patternProperties")
        if isinstance(patterns, dict):
            new["patternProperties"] = {
                key: self.rewrite(one, of_members, ()) for key, one in patterns.items()
            }
