"""The operations that an OpenAPI document describes: path, payload schema, an example payload."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_OPERATIONS = 20
MAX_STEPS = 200_000
"""Values visited in one document: its parts may refer to each other again and again."""
MAX_EXAMPLE_BYTES = 1_000_000
"""In all examples of one document: each may be a large part of it, many times."""
_MAX_DEPTH = 8
_PATH = re.compile(r"/[^\s?#{}]{0,400}")


@dataclass(frozen=True, slots=True)
class Operation:
    """A POST with a JSON body; its path has no parameters and can be written in a URL.

    schema: of the body, a JSON Schema that needs no other document; None where the document gives none, or
    is older than OpenAPI 3.1, whose schemas are JSON Schemas. example: a payload that it probably takes.
    """

    path: str
    schema: Mapping[str, Any] | None
    example: Any


class OpenApiDocument:
    """Reads a document of any shape; parts that are not valid OpenAPI are skipped."""

    def __init__(self, document: Any) -> None:
        self._document: Mapping[str, Any] = document if isinstance(document, dict) else {}
        self.steps_left = MAX_STEPS
        self._example_bytes_left = MAX_EXAMPLE_BYTES

    def operations(self) -> list[Operation]:
        paths = self._document.get("paths")
        found = []
        for path, methods in paths.items() if isinstance(paths, dict) else ():
            schema = _json_body(methods)
            if schema is None or not (_PATH.fullmatch(path) and path.isprintable()):
                continue
            found.append(Operation(path, self._standalone(schema), self.example_of(schema)))
            if len(found) == MAX_OPERATIONS:
                break
        return found

    def schema_at(self, *names: str) -> Mapping[str, Any] | None:
        """The schema at ``components.schemas.<name>``, complete; None if there is none."""
        found = self._at(("components", "schemas", *names))
        return None if found is None else self._standalone(found)

    def example_of(self, schema: Any) -> Any:
        """A small value: the schema's example or default, else its required properties alone."""
        return self._example(schema, 0)

    def _standalone(self, schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The schema with all that it refers to, under the same pointers; None if they are keys of its
        own."""
        if not str(self._document.get("openapi", "")).startswith("3.1"):
            return None
        whole: dict[str, Any] = dict(schema)
        waiting, seen = self._references(schema), set[str]()
        while waiting:
            reference = waiting.pop()
            parts = reference.removeprefix("#/").split("/")
            target = self._at(parts)
            if reference in seen or target is None:
                continue
            if parts[0] in schema:
                return None
            seen.add(reference)
            place: Any = whole
            for part in parts[:-1]:
                place = place.setdefault(part, {})
            place[parts[-1]] = target
            waiting += self._references(target)
        return whole if self.steps_left > 0 else None

    def _references(self, schema: Any) -> list[str]:
        found, waiting = [], [schema]
        while waiting and self.steps_left > 0:
            value = waiting.pop()
            self.steps_left -= 1
            if isinstance(value, list):
                waiting += value
            elif isinstance(value, dict):
                if isinstance(reference := value.get("$ref"), str) and reference.startswith("#/"):
                    found.append(reference)
                waiting += value.values()
        return found

    def _at(self, parts: Sequence[str]) -> dict[str, Any] | None:
        found: Any = self._document
        for part in parts:
            found = found.get(part) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else None

    def _example(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, dict) or depth > _MAX_DEPTH or self.steps_left <= 0:
            return None
        self.steps_left -= 1
        if isinstance(reference := schema.get("$ref"), str):
            return self._example(self._at(reference.removeprefix("#/").split("/")), depth + 1)
        for name in ("example", "default", "const"):
            if name in schema:
                return self._taken(schema[name])
        for name in ("examples", "enum"):
            if isinstance(schema.get(name), list) and schema[name]:
                return self._taken(schema[name][0])
        for name in ("anyOf", "oneOf", "allOf"):
            if isinstance(schema.get(name), list) and schema[name]:
                return self._example(schema[name][0], depth + 1)
        return self._of_type(schema, depth)

    def _taken(self, value: Any) -> Any:
        """The value; None once the examples have MAX_EXAMPLE_BYTES."""
        if self._example_bytes_left > 0:
            self._example_bytes_left -= len(json.dumps(value))
        return value if self._example_bytes_left > 0 else None

    def _of_type(self, schema: Mapping[str, Any], depth: int) -> Any:
        properties, required = schema.get("properties"), schema.get("required")
        if schema.get("type") == "object" or isinstance(properties, dict):
            known = properties if isinstance(properties, dict) else {}
            names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
            return {
                name: self._example(known.get(name, {}), depth + 1)
                for name in names
                if self._taken(name) is not None
            }
        lowest = schema.get("minimum")
        lowest = lowest if isinstance(lowest, int | float) and not isinstance(lowest, bool) else 1
        by_type = {"string": "test", "integer": int(lowest), "number": lowest, "boolean": False, "array": []}
        return by_type.get(str(schema.get("type")))


def _json_body(methods: Any) -> dict[str, Any] | None:
    found = methods
    for name in ("post", "requestBody", "content", "application/json", "schema"):
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None
