"""Places for files in schemas: found behind references, in lists and branches, and bounded in cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from artifacts.file_fields import checked_schema, file_fields
from foundation.foreign_schema import SchemaRefused
from foundation.json_text import canonical_json
from gpus.models.model_config import RuleBroken, usable_schema

FILE = {"type": "string", "format": "uri", "contentMediaType": "image/png"}


def places(schema: Any, value: Any) -> list[tuple[Any, ...]]:
    found = file_fields(canonical_json(schema))
    return [one.path for one in found.find(value)] if found else []


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (FILE, "x", [()]),
        ({"properties": {"a": FILE, "b": {"type": "string"}}}, {"b": "y", "a": "x"}, [("a",)]),
        ({"items": FILE}, ["x", "y"], [(0,), (1,)]),
        ({"prefixItems": [{}, FILE]}, ["x", "y", "z"], [(1,)]),
        ({"additionalProperties": FILE}, {"a": "x"}, [("a",)]),
        ({"patternProperties": {"^a": FILE}}, {"a": "x"}, [("a",)]),
        ({"anyOf": [{"type": "null"}, FILE]}, "x", [()]),
        ({"if": {}, "then": {"properties": {"a": FILE}}}, {"a": "x"}, [("a",)]),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": FILE}}, "x", [()]),
        ({"$ref": "#/prefixItems/0", "prefixItems": [FILE]}, "x", [()]),
        ({"properties": {"a": {**FILE, "type": ["string", "null"]}}}, {"a": None}, [("a",)]),
        ({"properties": {"a": {**FILE, "type": "object"}}}, {"a": "x"}, []),
        ({"properties": {"a": {**FILE, "format": "date"}}}, {"a": "x"}, []),
        ({"properties": {"a": {"contentMediaType": "image/png"}}}, {"a": "x"}, []),
        ({"properties": {"a": FILE}}, ["x"], []),
        ({"$ref": "#/$defs/none", "contentMediaType": 7}, "x", []),
        (True, "x", []),
    ],
)
def test_places_for_files(schema: Any, value: Any, expected: list[tuple[Any, ...]]) -> None:
    assert places(schema, value) == expected


def test_a_schema_that_refers_to_itself_ends() -> None:
    schema = {"properties": {"image": FILE, "child": {"$ref": "#"}}}
    assert places(schema, {"image": "x", "child": {"image": "y"}}) == [("image",), ("child", "image")]


def test_a_schema_with_too_many_schemas_is_refused(settings: Any) -> None:
    defs = {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(60)}
    doubling = {"$ref": "#/$defs/d0", "$defs": {**defs, "d60": FILE}, "properties": {"a": FILE}}
    with pytest.raises(SchemaRefused, match=r"20000 schemas.*DISPATCHER_SCHEMA_FILE_STEPS"):
        places(doubling, {"a": "x"})
    settings.DISPATCHER = replace(settings.DISPATCHER, schema_file_steps=3)
    two = {"properties": {"a": FILE, "b": FILE}}
    assert places(two, {"a": "x"}) == [("a",)]
    assert checked_schema(two)
    three = {"properties": {"a": FILE, "b": FILE, "c": {}}}
    with pytest.raises(SchemaRefused, match="3 schemas"):
        checked_schema(three)
    with pytest.raises(RuleBroken, match="DISPATCHER_SCHEMA_FILE_STEPS") as broken:
        usable_schema(three)
    assert broken.value.api_code == "invalid_schema"
