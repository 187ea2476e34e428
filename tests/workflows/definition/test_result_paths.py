"""Paths into results are refused only where the model's result_schema leaves no place for them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator

from foundation.expressions import expression
from tests.support.definitions import errors_of, nodes
from workflows.definition.outside import Outside
from workflows.definition.read import read_definition
from workflows.definition.result_paths import is_ruled_out, path_of

PICTURE = {"type": "object", "properties": {"url": {"type": "string"}}, "additionalProperties": False}
RESULT = {
    "type": "object",
    "properties": {
        "picture": PICTURE,
        "all": {"type": "array", "items": {"$ref": "#/$defs/picture"}},
        "pair": {"type": "array", "prefixItems": [{"type": "integer"}, PICTURE], "items": PICTURE},
        "free": {"type": "object"},
        "file": {"type": "string", "format": "uri", "contentMediaType": "image/png"},
        "either": {
            "anyOf": [PICTURE, {"type": "object", "properties": {"b": {}}, "additionalProperties": False}]
        },
        "maybe": {"anyOf": [PICTURE, {"type": "object"}]},
        "both": {"allOf": [PICTURE, {"type": "object"}]},
        "named": {**PICTURE, "patternProperties": {"^x": {}}},
        "untyped": {"properties": {"url": {}}, "additionalProperties": False},
        "loop": {"$ref": "#/$defs/loop"},
        "loops": {"$ref": "#/$defs/loops"},
        "never": False,
    },
    "additionalProperties": False,
    "$defs": {
        "picture": PICTURE,
        "loop": {"allOf": [{"$ref": "#/$defs/loop"}]},
        "loops": {"allOf": [{"$ref": "#/$defs/loops"}] * 2},
    },
}


@pytest.mark.parametrize(
    "path",
    ["typo", "typo.url", "picture.typo", "all[0].typo", "all[-1].typo", "pair[1].typo", "pair[7].typo",
     "either.typo", "both.typo", "never", "never.x"],
)  # fmt: skip
def test_a_path_that_a_closed_schema_does_not_have_is_ruled_out(path: str) -> None:
    assert is_ruled_out(RESULT, path_of(expression(path)) or ())


@pytest.mark.parametrize(
    "path",
    ["picture", "picture.url", "picture.url.x", "all[0].url", "pair[0].x", "pair[-1].typo", "free.x.y",
     "file.url", 'file."$artifact"', '"$artifact"', "either.b", "maybe.typo", "named.typo", "untyped.typo",
     "loop.x", "loops.x", "all.x"],
)  # fmt: skip
def test_a_path_that_may_exist_is_accepted(path: str) -> None:
    assert not is_ruled_out(RESULT, path_of(expression(path)) or ())


def test_only_plain_paths_are_followed() -> None:
    for text in ("a[*].b", "a || b", "a[?b].c", "length(a)", "a | b", "a[0:2].b", "a.*.b"):
        assert path_of(expression(text)) is None, text
    assert path_of(expression('a."b c"[2].d')) == ("a", "b c", 2, "d")


def test_a_definition_is_refused_at_the_reference() -> None:
    class Models(Outside):
        def result_schema(self, model: str) -> Any:
            return RESULT if model == "closed" else True

    def errors(ref: Any, **fields: Any) -> list[tuple[str, str]]:
        value = nodes(a={"model": "closed", **fields}, b={"model": "open", "payload": {"x": [ref]}})
        return errors_of(value, outside=Models())

    bad = [("/nodes/b/payload/x/0", "unknown_ref")]
    assert errors({"$ref": "a.typo"}) == bad
    assert errors({"$ref": "a[3].typo"}, map={"count": 4}) == bad
    over = nodes(a={"model": "closed"}, b={"model": "open", "map": {"over": {"$ref": "a.typo"}}})
    assert errors_of({**over, "output": {"$ref": "a.picture.typo"}}, outside=Models()) == [
        ("/nodes/b/map/over", "unknown_ref"),
        ("/output", "unknown_ref"),
    ]
    for right in ({"$ref": "a.typo", "default": 1}, {"$ref": "a.picture.url"}, {"$ref": "a.typo || a.file"}):
        value = nodes(a={"model": "closed"}, b={"model": "open", "payload": right})
        read_definition(value, outside=Models())
    read_definition(
        nodes(a={"model": "open"}, b={"model": "open", "payload": {"$ref": "a.typo"}}), outside=Models()
    )


_NAMES = st.sampled_from(["a", "b"])
_SCHEMAS = st.recursive(
    st.sampled_from([True, False, {}, {"type": "string"}, {"type": "object"}, {"type": "array"}]),
    lambda inner: st.one_of(
        st.fixed_dictionaries(
            {},
            optional={
                "type": st.sampled_from(["object", "array"]),
                "properties": st.dictionaries(_NAMES, inner, max_size=2),
                "additionalProperties": st.one_of(st.just(False), inner),
                "items": inner,
                "prefixItems": st.lists(inner, min_size=1, max_size=2),
                "patternProperties": st.dictionaries(st.sampled_from(["a", "^b"]), inner, max_size=1),
                "$ref": st.sampled_from(["#/properties/a", "#/items", "#/nowhere"]),
            },
        ),
        st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"oneOf": st.lists(inner, min_size=1, max_size=2)}),
    ),
    max_leaves=8,
)
_VALUES = st.recursive(
    st.sampled_from([1, "x"]),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(_NAMES, inner, max_size=2)),
    max_leaves=6,
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(one for name, part in parts for one in _paths(part, (*path, name)))]


@settings(max_examples=300, deadline=None)
@given(_SCHEMAS, _VALUES)
def test_no_path_of_a_valid_result_is_ruled_out(schema: Any, value: Any) -> None:
    try:
        validator = Draft202012Validator(schema)
    except ValueError:  # a reference to nowhere
        return
    try:
        if not validator.is_valid(value):
            return
    except ValueError:
        return
    for path in _paths(value):
        assert not is_ruled_out(schema, path), (schema, value, path)
