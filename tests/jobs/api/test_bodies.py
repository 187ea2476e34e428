"""A body's model accepts exactly the values that its published schema allows."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import Field, TypeAdapter, ValidationError

from foundation.http_api import json_body
from foundation.http_api.json_body import Body, JsonObject, read_body
from foundation.http_api.openapi import json_schema
from foundation.http_api.problems import MAX_ERRORS, FieldError, Problem
from gpus.api.bodies import ModelConfigBody, Register, ServerChange
from jobs.api.bodies import BulkBody, BulkFilter, KeyBody, TenantChange
from jobs.submission import request
from jobs.submission.request import BatchItem, Submit

NAMES = [*BatchItem.model_fields, "surprise"]

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
likely = st.sampled_from([
    "zimg", "zimg\n", "", "queue", "reject", "a" * 64, "a" * 65, "key-1", "k" * 256, 1, 9, 10, 0, 5.0, 2.5,
    True, None, -1, 100_000, 100_001, 1e9, ["a"], ["a"] * 21, [""], [1], {}, {"a": {"b": [1]}},
])  # fmt: skip
RIGHT = {"model": "zimg", "payload": {}}
bodies = st.dictionaries(st.sampled_from(NAMES), likely | anything, max_size=2).map(lambda some: RIGHT | some)


def errors_of(body: type[Body], value: Any) -> tuple[FieldError, ...]:
    try:
        read_body(body, value)
    except Problem as problem:
        return problem.errors
    return ()


def beyond_a_schema(value: Any) -> bool:
    """`$` in a pattern is the end of the text, as in ECMAScript; jsonschema allows a line end after it."""
    if isinstance(value, dict):
        value.pop("run_at", None)
        return any(isinstance(one, str) and one.endswith("\n") for one in value.values())
    return False


@pytest.mark.parametrize("body", [Submit, BatchItem])
@given(value=bodies | anything)
@example(value={"payload": {}})
@example(value=RIGHT | {"model": "a" * 65})
@example(value=RIGHT | {"surprise": 1})
@example(value=RIGHT | {"deadline_seconds": 0})
@example(value=RIGHT | {"priority": 10})
@example(value=RIGHT | {"priority": True})
@example(value=RIGHT | {"priority": 5.0})
@example(value=RIGHT | {"max_retries": True})
@example(value=RIGHT | {"tags": ["a", ""]})
@example(value=RIGHT | {"tags": ["a"] * 21})
@example(value=RIGHT | {"if_busy": 1})
@example(value=dict.fromkeys(BatchItem.model_fields) | RIGHT)
@settings(max_examples=60, deadline=None)
def test_a_model_takes_what_its_schema_allows(body: type[Body], value: Any) -> None:
    if not beyond_a_schema(value):
        is_right = Draft202012Validator(json_schema(body)).is_valid(value)
        assert is_right == (not errors_of(body, value))


@pytest.mark.parametrize(
    ("body", "value", "pointer", "code", "detail"),
    [
        (Submit, RIGHT | {"model": "zimg\n"}, "/model", "invalid", "Must match"),
        (Submit, RIGHT | {"model": 7}, "/model", "wrong_type", "Must be of type string."),
        (Submit, RIGHT | {"deadline_seconds": 0}, "/deadline_seconds", "out_of_range", "greater than 0."),
        (Submit, RIGHT | {"deadline_seconds": "5"}, "/deadline_seconds", "wrong_type", "of type number."),
        (Submit, RIGHT | {"priority": 1.5}, "/priority", "wrong_type", "of type integer."),
        (Submit, RIGHT | {"if_busy": "x"}, "/if_busy", "not_a_choice", "one of 'queue' or 'reject'."),
        (Submit, RIGHT | {"tags": ["a"] * 21}, "/tags", "too_many", "at most 20 items."),
        (Submit, RIGHT | {"tags": ["ok", ""]}, "/tags/1", "too_short", "at least 1 characters."),
        (Submit, RIGHT | {"tags": {}}, "/tags", "wrong_type", "of type array."),
        (Submit, RIGHT | {"run_at": "tomorrow"}, "/run_at", "invalid", "a time with a zone"),
        (Submit, RIGHT | {"run_at": "2" * 65}, "/run_at", "too_long", "at most 64"),
        (Submit, RIGHT | {"metadata": {"a": "x" * 20_000}}, "/metadata", "too_large", "at most 16384 bytes"),
        (Submit, RIGHT | {"idempotency_key": "k"}, "/idempotency_key", "unknown_field", "no such field"),
        (Submit, [], "", "wrong_type", "of type object."),
        (ServerChange, {}, "", "invalid", "at least one field."),
        (BulkFilter, {}, "", "invalid", "at least one field."),
        (BulkFilter, {"model": None}, "/model", "wrong_type", "of type string."),
        (TenantChange, {"allowed_models": ["a", "a"]}, "/allowed_models", "invalid", "an item twice."),
        (TenantChange, {"allowed_models": [1]}, "/allowed_models/0", "wrong_type", "of type string."),
        (KeyBody, {"scopes": []}, "/scopes", "too_few", "at least 1 items."),
        (ModelConfigBody, {"poll_interval": None}, "/poll_interval", "wrong_type", "of type number."),
        (ModelConfigBody, {"payload_schema": 1}, "/payload_schema", "wrong_type", "object or boolean."),
        (Register, {"headers": {"a b": "c"}}, "/headers/a b", "invalid", "Must match"),
        (Register, {"headers": {"[key]": "c"}}, "/headers/[key]", "invalid", "Must match"),
        (Submit, RIGHT | {"[key]": 1}, "/[key]", "unknown_field", "no such field"),
        (BulkBody, {"filter": {"[key]": 1}}, "/filter/[key]", "unknown_field", "no such field"),
    ],
)  # fmt: skip
def test_an_error_names_its_place_a_stable_code_and_the_limit(
    body: type[Body], value: Any, pointer: str, code: str, detail: str
) -> None:
    [error] = [one for one in errors_of(body, value) if one.pointer == pointer]
    assert (error.code, detail in error.detail) == (code, True), error


def test_all_errors_are_named_at_once_by_place() -> None:
    found = errors_of(Submit, {"payload": [], "priority": 10, "colour": "red"})
    assert [(error.pointer, error.code) for error in found] == [
        ("/colour", "unknown_field"),
        ("/model", "required"),
        ("/payload", "wrong_type"),
        ("/priority", "out_of_range"),
    ]


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("priorty", "Did you mean priority?"),
        ("colour", "The body takes callback_url, deadline_seconds, "),
    ],
)
def test_an_unknown_field_names_the_one_that_was_meant_or_all(name: str, advice: str) -> None:
    (error,) = errors_of(Submit, RIGHT | {name: 1})
    assert error.detail.startswith(f"There is no such field. {advice}")


def test_null_is_not_an_omitted_option() -> None:
    assert read_body(ModelConfigBody, {"id_field": None}).given() == {"id_field": None}


def test_a_payload_is_neither_validated_item_by_item_nor_copied() -> None:
    payload = {"prompt": ["a", {"b": float("nan")}]}
    assert TypeAdapter(JsonObject).validate_python(payload) is payload
    assert read_body(Submit, {"model": "m", "payload": payload}).payload is payload


def test_only_a_few_of_many_errors_are_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FieldError] = []

    class Counted(FieldError):
        def __init__(self, *args: Any, **fields: Any) -> None:
            super().__init__(*args, **fields)
            made.append(self)

    monkeypatch.setattr(json_body, "FieldError", Counted)
    errors_of(KeyBody, {"allowed_models": [1] * 1000})
    assert len(made) == MAX_ERRORS


def test_a_body_with_a_million_unknown_fields_is_not_read_field_by_field(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pydantic collects all errors before they can be limited to twenty."""

    def read(value: Any) -> Any:
        raise AssertionError("it was read")

    monkeypatch.setattr(Submit, "model_validate", read)
    found = errors_of(Submit, RIGHT | {f"x{number:05}": 1 for number in range(2000)})
    assert [error.pointer for error in found] == [f"/x{number:05}" for number in range(MAX_ERRORS)]


@pytest.mark.parametrize(
    ("body", "name", "most"),
    [(Register, "headers", 50), (BulkBody, "filter", len(BulkFilter.model_fields) + MAX_ERRORS)],
)
def test_an_object_in_a_body_with_too_many_members_is_not_read_one_by_one(
    body: type[Body], name: str, most: int
) -> None:
    found = errors_of(body, {name: {f"x y{number}": 1 for number in range(most + 1)}})
    assert [(error.code, error.detail) for error in found if error.pointer.startswith(f"/{name}")] == [
        ("too_many", f"Must have at most {most} items.")
    ]


def test_error_codes_are_the_documented_ones() -> None:
    class Even(Body):
        number: Annotated[int, Field(multiple_of=2)]

    [error] = errors_of(Even, {"number": 1})
    assert (error.pointer, error.code) == ("/number", "invalid")


def test_an_error_contains_no_submitted_value() -> None:
    with pytest.raises(ValidationError) as refused:
        Submit.model_validate(RIGHT | {"callback_url": ["secret"], "if_busy": "secret"})
    assert "secret" not in str(json_body.field_errors(refused.value))


def test_long_metadata_is_refused_before_serialization(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[object] = []
    monkeypatch.setattr(request, "canonical_json", lambda value: written.append(value) or "")
    nested = {"a": [[[{"x": number}] * 10 for number in range(20)] * 20]}
    for metadata in (nested, {"a": "x" * 20_000}):
        with pytest.raises(Problem):
            read_body(Submit, RIGHT | {"metadata": metadata})
    assert written == []
