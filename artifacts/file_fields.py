"""The fields of payloads and results that hold files, as their JSON Schema marks them: a text with
`format: "uri"` and a `contentMediaType`, such as ``image/png`` or ``image/*``.

In a payload the server gets a URL there, and a client may give an artifact, a `data:` URI or a URL. In a
result the server may also answer base64: with `contentEncoding: "base64"` in place of the format, or without
either where the type is of no text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from django.conf import settings

from foundation.foreign_schema import ForeignSchema, Schema, SchemaRefused, compiled
from foundation.json_paths import Path, at_reference
from foundation.stored_schema import StoredSchema

_HERE = ("allOf", "anyOf", "oneOf")
_BRANCHES = ("if", "then", "else")
_BASE64 = ("base64", "base64url")
_NO_TEXT = ("image/", "audio/", "video/", "font/", "model/", "application/octet-stream")
"""Bytes of these types can't stand in a JSON text as they are."""


@dataclass(frozen=True, slots=True)
class FileValue:
    """A value at a place for a file. media_types: those that the schema declares for it."""

    path: Path
    value: Any
    media_types: tuple[str, ...]


@dataclass(slots=True)
class _Node:
    """Places below a value: by key or index, of all further members, of all further items."""

    media_types: list[str] = field(default_factory=list)
    children: dict[str | int, _Node] = field(default_factory=dict)
    members: _Node | None = None
    items: _Node | None = None

    @property
    def is_empty(self) -> bool:
        below = [*self.children.values(), self.members, self.items]
        return not self.media_types and all(one is None or one.is_empty for one in below)


class FileFields:
    """The places for files of one schema."""

    def __init__(self, root: _Node) -> None:
        self._root = root

    def find(self, value: Any) -> Iterator[FileValue]:
        """Yield the values of a payload or result at these places, whatever they are."""
        waiting: list[tuple[_Node, Any, Path]] = [(self._root, value, ())]
        while waiting:
            node, one, path = waiting.pop()
            if node.media_types:
                yield FileValue(path, one, tuple(node.media_types))
                continue
            if isinstance(one, dict):
                pairs = [(node.children.get(key, node.members), key) for key in one]
            elif isinstance(one, list):
                pairs = [(node.children.get(at, node.items), at) for at in range(len(one))]
            else:
                continue
            below = [(child, one[key], (*path, key)) for child, key in pairs if child is not None]
            waiting += reversed(below)


def file_fields(schema_text: str, *, of_result: bool = False) -> FileFields | None:
    """Return the places for files of a schema; None if it has none. schema_text: canonical, as
    `ForeignSchema.text`. of_result: of a result, not of a payload. Raises SchemaRefused."""
    if '"contentMediaType"' not in schema_text:
        return None
    return _file_fields(schema_text, of_result, settings.DISPATCHER.schema_file_steps)


def checked_schema(schema: Schema | StoredSchema) -> ForeignSchema:
    """Return a schema, compiled, whose places for files are known. Raises SchemaRefused."""
    found = compiled(schema)
    file_fields(found.text)
    return found


@lru_cache(maxsize=256)
def _file_fields(schema_text: str, of_result: bool, most_steps: int) -> FileFields | None:
    root = _Node()
    _Reader(json.loads(schema_text), _is_output if of_result else _is_input, most_steps).read(root)
    return None if root.is_empty else FileFields(root)


class _Reader:
    """Collects the places of a schema. A part that refers to itself is not followed into itself."""

    def __init__(
        self, schema: Any, is_file: Callable[[Mapping[str, Any], str], bool], most_steps: int
    ) -> None:
        self._schema, self._is_file = schema, is_file
        self._steps, self._most_steps = 0, most_steps

    def read(self, root: _Node) -> None:
        self._read(self._schema, root, ())

    def _read(self, schema: Any, node: _Node, under_way: tuple[str, ...]) -> None:
        if not isinstance(schema, dict):
            return
        self._steps += 1
        if self._steps > self._most_steps:
            raise SchemaRefused(
                f"A schema with files may have up to {self._most_steps} schemas in it, counted again "
                "wherever a $ref leads to them (DISPATCHER_SCHEMA_FILE_STEPS)."
            )
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in under_way:
            self._read(at_reference(self._schema, reference), node, (*under_way, reference))
        media_type = schema.get("contentMediaType")
        if isinstance(media_type, str) and _is_text(schema) and self._is_file(schema, media_type):
            node.media_types.append(media_type)
        for name in _HERE:
            for one in schema.get(name) if isinstance(schema.get(name), list) else ():  # type: ignore[union-attr]
                self._read(one, node, under_way)
        for name in _BRANCHES:
            self._read(schema.get(name), node, under_way)
        self._read_below(schema, node, under_way)

    def _read_below(self, schema: Mapping[str, Any], node: _Node, under_way: tuple[str, ...]) -> None:
        properties = schema.get("properties")
        for key, one in properties.items() if isinstance(properties, dict) else ():
            self._read(one, node.children.setdefault(key, _Node()), under_way)
        first = schema.get("prefixItems")
        for at, one in enumerate(first if isinstance(first, list) else ()):
            self._read(one, node.children.setdefault(at, _Node()), under_way)
        if isinstance(schema.get("items"), dict):
            node.items = node.items or _Node()
            self._read(schema["items"], node.items, under_way)
        patterns = schema.get("patternProperties")
        further = [schema.get("additionalProperties")]
        further += patterns.values() if isinstance(patterns, dict) else ()
        for one in further:
            if isinstance(one, dict):
                node.members = node.members or _Node()
                self._read(one, node.members, under_way)


def _is_input(schema: Mapping[str, Any], media_type: str) -> bool:
    return schema.get("format") == "uri"


def _is_output(schema: Mapping[str, Any], media_type: str) -> bool:
    encoding = schema.get("contentEncoding")
    if encoding is not None:
        return bool(encoding in _BASE64)
    return schema.get("format") == "uri" or media_type.strip().lower().startswith(_NO_TEXT)


def _is_text(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type", "string")
    return kind == "string" or (isinstance(kind, list) and "string" in kind)
