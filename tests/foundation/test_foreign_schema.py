from __future__ import annotations

import json
import socket
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from django.conf import LazySettings

from foundation import foreign_schema
from foundation.foreign_schema import CHEAP_STEPS, SchemaRefused, compiled, make_validator
from foundation.stored_schema import StoredSchema


def refusal(schema: Any) -> SchemaRefused:
    with pytest.raises(SchemaRefused) as refused:
        compiled(schema)
    return refused.value


@pytest.mark.parametrize("pattern", [r"(?=a)b", r"(?!a)b", r"(?<=a)b", r"(a)\1", "(", "a{1,9999999}"])
def test_a_pattern_without_a_linear_time_engine_is_refused_with_its_place(pattern: str) -> None:
    refused = refusal({"properties": {"name": {"pattern": pattern}}})
    assert "linear-time" in str(refused)
    assert refused.path == ("properties", "name", "pattern")
    assert refusal({"patternProperties": {pattern: True}}).path == ("patternProperties", pattern)


@pytest.mark.parametrize(
    ("schema", "path", "why"),
    [
        ({"type": "strin"}, ("type",), "/type: 'strin' is not a type: array, boolean"),
        (
            {"properties": {"a": {"type": "strin"}}},
            ("properties", "a", "type"),
            "/properties/a/type: 'strin'",
        ),
        ({"$defs": {"a/b": {"type": 5}}}, ("$defs", "a/b", "type"), "/$defs/a~1b/type: 5 is not a type"),
        (
            {"allOf": [{"type": ["null", "int"]}]},
            ("allOf", 0, "type", 1),
            "/allOf/0/type/1: 'int' is not",
        ),
        ({"type": ["null", "null"]}, ("type",), "/type: a type is named twice"),
        ({"type": []}, ("type",), "/type: the list names no type"),
        ({"type": {"a": 1}}, ("type",), '/type: {"a":1} is not a type'),
        ({"properties": {"a": 5}}, ("properties", "a"), "/properties/a: The value is not of types"),
        ([1], (), "(2020-12): The value is not of types"),
    ],
)
def test_a_fault_has_its_place_and_its_reason(schema: Any, path: tuple[object, ...], why: str) -> None:
    refused = refusal(schema)
    assert refused.path == path
    assert why in str(refused)
    assert len(str(refused)) < 500


def test_all_patterns_of_a_schema_share_one_limit() -> None:
    """A hundred took 2.7 s and 578 MB to compile."""
    large = [{"pattern": rf"^[\pL\pN]{{100}}a{{{number}}}$"} for number in range(100)]
    assert "134217728 bytes" in str(refusal({"allOf": large}))
    assert "134217728 bytes" in str(refusal({"patternProperties": {one["pattern"]: True for one in large}}))
    compiled({"allOf": large[:10]})


def test_a_pattern_that_backtracks_in_other_engines_is_fast() -> None:
    schema = compiled({"pattern": r"^(a+)+$"})
    found = schema.mismatch("a" * 100_000 + "!")
    assert found is not None
    assert len(found.text) <= 200


def test_equal_items_are_found_in_linear_time() -> None:
    schema = compiled({"uniqueItems": True})
    items: list[Any] = [{"a": number} for number in range(20_000)]
    assert schema.mismatch(items) is None
    assert schema.mismatch([*items, {"a": 7}]) is not None


ELSEWHERE: list[Any] = [
    {"$ref": "URL"},
    {"$id": "URL", "properties": {"a": {"$ref": "x"}}},
    {"properties": {"a": {"$id": "URL", "$ref": "x"}}},
]


@pytest.mark.parametrize("schema", [*ELSEWHERE, {"$ref": "file:///etc/passwd"}, {"$ref": "#/nowhere"}])
def test_a_reference_outside_the_schema_is_refused(schema: Any) -> None:
    assert "$" in str(refusal(schema))


@pytest.mark.parametrize("schema", [*ELSEWHERE, {"$schema": "URL", "type": "object"}])
def test_no_reference_is_fetched(schema: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        with suppress(SchemaRefused):
            make_validator(json.dumps(schema).replace("URL", url))
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_schema_has_bounds(settings: LazySettings) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, schema_bytes=1000, schema_depth=10, schema_values=100)
    assert "1000 bytes (DISPATCHER_SCHEMA_BYTES)" in str(refusal({"const": "x" * 1000}))
    deep: dict[str, Any] = {}
    for _ in range(11):
        deep = {"not": deep}
    assert "10 levels deep (DISPATCHER_SCHEMA_DEPTH)" in str(refusal(deep))
    many = str(refusal({"enum": list(range(101))}))
    assert "100 values" in many
    assert "DISPATCHER_SCHEMA_VALUES" in many


def test_the_size_of_a_schema_includes_its_references() -> None:
    """The billion laughs: twenty definitions, each of which holds the one before it twice."""
    laughs: dict[str, Any] = {"d0": {"type": "integer"}}
    for number in range(1, 21):
        laughs[f"d{number}"] = {"allOf": [{"$ref": f"#/$defs/d{number - 1}"}] * 2}
    assert "values" in str(refusal({"$defs": laughs, "$ref": "#/$defs/d20"}))
    chain: dict[str, Any] = {"d0": {"type": "integer"}}
    for number in range(1, 100):
        chain[f"d{number}"] = {"$ref": f"#/$defs/d{number - 1}"}
    assert "levels" in str(refusal({"$defs": chain, "$ref": "#/$defs/d99"}))


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"properties": {"a": {"$ref": "#"}}},
        {"$anchor": "n", "properties": {"a": {"$ref": "#n"}}},
        {"$defs": {"n": {"items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"},
        {"$dynamicAnchor": "n", "items": {"$dynamicRef": "#n"}},
        {"pattern": r"^.{1,1000}$"},
        {"properties": {"a": {"unevaluatedProperties": False}}},
        {"$defs": {"n": {"unevaluatedItems": {"type": "integer"}}}, "allOf": [{"$ref": "#/$defs/n"}]},
    ],
)
def test_an_expensive_check_is_not_done_in_this_thread(schema: Any) -> None:
    assert compiled(schema).steps(b"1") == float("inf")


def test_the_cost_of_a_check_is_known_before() -> None:
    schema = compiled({"items": {"enum": list(range(1000))}})
    assert schema.steps(json.dumps([1]).encode()) < CHEAP_STEPS / 100
    assert schema.steps(json.dumps([1] * 10_000).encode()) > CHEAP_STEPS
    many = compiled({"allOf": [{"pattern": f"a{number}"} for number in range(100)]})
    assert many.steps(json.dumps("b" * 100_000).encode()) > CHEAP_STEPS


def test_compiled_schemas_are_kept_and_bounded() -> None:
    assert compiled({"minimum": 5}) is compiled({"minimum": 5})
    assert foreign_schema._compiled.cache_info().maxsize == 128


def test_a_stored_schema_is_compiled_once_and_read_as_text_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = StoredSchema({"minimum": 5})
    first = compiled(stored)
    monkeypatch.setattr(foreign_schema, "canonical_json", None)
    assert compiled(stored) is first
    assert compiled(stored).mismatch(4)


def test_an_error_does_not_contain_the_value() -> None:
    found = compiled({"properties": {"a": {"type": "integer"}}}).mismatch({"a": "secret"})
    assert found is not None
    assert (found.path, found.text) == (("a",), 'The value is not of type "integer"')
