"""Request bodies: strict JSON that every database can store, read into pydantic models.

A model (`Body`) both checks and documents: `foundation.http_api.openapi` publishes it. Limits of depth, size
and numbers are checked before pydantic reads a value (`foundation.json_text`)."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import Annotated, Any, TypeVar

from django.utils.dateparse import parse_datetime
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError, PydanticKnownError, core_schema

from foundation import json_paths, json_text
from foundation.http_api.problems import MAX_ERRORS, FieldError, Problem, validation_problem
from foundation.names import NAME_PATTERN

BODY_PENDING_KEY = "dispatcher.body_comes_later"
CONTINUE = 100


def require_body(environ: Mapping[str, Any]) -> None:
    """Raise Problem 100 if the body was not received yet; under plain WSGI it always was.

    A long body is received only once its sender was authorized, and never by one of the few threads. The
    async layer (`dispatcher_project.web.asgi_gateway`) calls the view without the body. The view rejects
    senders by key, token or length; where it reads the body, the request ends with 100 Continue. That answer
    is not sent: the layer receives the body and calls the view again. So a view must make no lasting change
    before it reads its body.
    """
    if environ.get("asgi.scope", {}).get(BODY_PENDING_KEY):
        raise Problem(CONTINUE, "body_wanted", "Send the body.")


DEFAULT_MAX_BYTES = 256 * 1024
_LONGEST_NAME = 100
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def expect_body(view: Any, environ: Mapping[str, Any]) -> int:
    """Return the size limit of the request's body.

    Raises Problem 413 if its Content-Length exceeds that, and 100 if the body was not received yet."""
    limit = getattr(view, "max_body_bytes", None)
    most: int = limit() if callable(limit) else limit or DEFAULT_MAX_BYTES
    declared = environ.get("CONTENT_LENGTH") or "0"
    if declared.isdigit() and int(declared) > most:
        raise too_large(most, view)
    require_body(environ)
    return most


def too_large(limit: int, view: Any = None) -> Problem:
    """Return the 413 for a body. view: its `body_setting` is the setting with which an operator raises the
    limit, its `larger_body` says what a client can do instead."""
    setting, advice = getattr(view, "body_setting", None), getattr(view, "larger_body", None)
    named = f" ({setting} sets this limit)" if setting else ""
    text = f"The body may have up to {limit} bytes{named}."
    return Problem(413, "payload_too_large", f"{text} {advice}" if advice else text)


def read_json(raw: bytes, escaped: Collection[str] = (), *, what: str = "The body") -> Any:
    """Return the value of a body. escaped: fields of an object whose texts are escaped, not refused, if they
    can't be stored. what: begins the texts of errors.

    Raises Problem 400 for text that is not JSON or has a key twice, 422 for JSON that can't be stored or
    exceeds a limit."""
    try:
        value = json_text.read(raw, pairs=partial(_unique_keys, what))
    except json_text.TooMuch as error:
        raise validation_problem([FieldError("", error.code, f"{what} can't be taken: {error}.")]) from None
    except json_text.NotReadable as error:
        raise _malformed(what, str(error)) from None
    if json_text.may_be_unstorable(raw):
        if isinstance(value, dict):
            value.update({name: json_text.storable(value[name]) for name in escaped if name in value})
        errors = list(islice(_unstorable(value, ()), MAX_ERRORS))
        if errors:
            raise validation_problem(errors)
    return value


def pointer_to(*path: object) -> str:
    """Return a JSON pointer, escaped."""
    return json_paths.pointer(path)


def _unique_keys(what: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Reject duplicate keys: readers differ in which value they take."""
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = json.dumps(counts.most_common(1)[0][0][:100])
        raise Problem(400, "duplicate_key", f"{what} has an object with more than one {twice}.")
    return found


def _malformed(what: str, why: str) -> Problem:
    return Problem(400, "malformed_json", f"{what} is not valid JSON: {why}.")


def _unstorable(value: Any, path: tuple[object, ...]) -> Iterator[FieldError]:
    """Yield an error for each text that PostgreSQL can't store: NUL, half a surrogate pair.

    Recursion is as deep as the value, which is bounded. Paths are built only for containers and errors: there
    may be two million texts."""
    if isinstance(value, dict):
        for key, child in value.items():
            if _UNSTORABLE.search(key):
                yield _bad_text(path, key)
            if isinstance(child, dict | list):
                yield from _unstorable(child, (*path, _readable(key)))
            elif isinstance(child, str) and _UNSTORABLE.search(child):
                yield _bad_text((*path, _readable(key)), child)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            if isinstance(child, dict | list):
                yield from _unstorable(child, (*path, index))
            elif isinstance(child, str) and _UNSTORABLE.search(child):
                yield _bad_text((*path, index), child)
    elif isinstance(value, str) and _UNSTORABLE.search(value):
        yield _bad_text(path, value)


def _readable(key: str) -> str:
    return key[:_LONGEST_NAME].encode("ascii", "replace").decode()


def _bad_text(path: tuple[object, ...], text: str) -> FieldError:
    why = "must not contain the NUL character" if "\0" in text else "contains half a surrogate pair"
    return FieldError(pointer_to(*path), "invalid_text", f"Text {why}.")


# -- models ------------------------------------------------------------------------------------------------

Schema = dict[str, Any]


class Body(BaseModel):
    """A request body: values are not converted, and unknown fields are rejected."""

    model_config = ConfigDict(strict=True, extra="forbid")

    def given(self) -> dict[str, Any]:
        """Return the fields that the client sent, with their values."""
        return {name: getattr(self, name) for name in self.model_fields_set}


OMITTED: Any = None
"""The default of a field that may be omitted, but must not be null."""


def not_empty(body: Any) -> Any:
    """Validator of a body in which every field is optional: at least one must be given."""
    if not body.model_fields_set:
        raise PydanticCustomError("invalid", "Must have at least one field.")
    return body


BodyType = TypeVar("BodyType", bound=Body)


def read_body(body: type[BodyType], value: Any) -> BodyType:
    """Return the body as its model. Raises Problem 422 with the first `MAX_ERRORS` errors, sorted by
    place."""
    try:
        if type(value) is not dict or len(value) <= len(body.model_fields) + MAX_ERRORS:
            found: BodyType = body.model_validate(value)
            return found
    except ValidationError as error:
        raise validation_problem([_advised(one, body) for one in field_errors(error)]) from None
    raise validation_problem(_unknown_fields(body, value))


def _advised(error: FieldError, body: type[Body]) -> FieldError:
    """Return the error; that of an unknown field of the body itself names the field that was meant, or all
    that there are."""
    if error.code != "unknown_field" or error.pointer.count("/") != 1:
        return error
    names = sorted(field.alias or name for name, field in body.model_fields.items())
    near = get_close_matches(error.pointer[1:], names, n=1)
    advice = f"Did you mean {near[0]}?" if near else f"The body takes {', '.join(names)}."
    return replace(error, detail=f"{error.detail} {advice}")


def field_errors(error: ValidationError) -> list[FieldError]:
    """Return the first `MAX_ERRORS` errors, sorted by place."""
    found = (_field_error(raw) for raw in error.errors(include_url=False, include_input=False))
    return sorted(islice(found, MAX_ERRORS), key=lambda error: error.pointer)


def _unknown_fields(body: type[Body], value: Mapping[str, Any]) -> list[FieldError]:
    """Return errors for a body with so many fields that pydantic would collect a million errors."""
    names = nsmallest(MAX_ERRORS, value.keys() - body.model_fields.keys())
    return [FieldError(pointer_to(name[:_LONGEST_NAME]), *_ERRORS["extra_forbidden"]) for name in names]


_ERRORS = {
    "missing": ("required", "This field is required."),
    "extra_forbidden": ("unknown_field", "There is no such field."),
    "string_type": ("wrong_type", "Must be of type string."),
    "int_type": ("wrong_type", "Must be of type integer."),
    "float_type": ("wrong_type", "Must be of type number."),
    "bool_type": ("wrong_type", "Must be of type boolean."),
    "list_type": ("wrong_type", "Must be of type array."),
    "dict_type": ("wrong_type", "Must be of type object."),
    "model_type": ("wrong_type", "Must be of type object."),
    "is_instance_of": ("wrong_type", "Must be of type object."),
    "literal_error": ("not_a_choice", "Must be one of {expected}."),
    "greater_than_equal": ("out_of_range", "Must be at least {ge}."),
    "greater_than": ("out_of_range", "Must be greater than {gt}."),
    "less_than_equal": ("out_of_range", "Must be at most {le}."),
    "string_too_short": ("too_short", "Must have at least {min_length} characters."),
    "string_too_long": ("too_long", "Must have at most {max_length} characters."),
    "too_short": ("too_few", "Must have at least {min_length} items."),
    "too_long": ("too_many", "Must have at most {max_length} items."),
    "string_pattern_mismatch": ("invalid", "Must match {pattern}."),
    "string_unicode": ("invalid_text", "Text contains half a surrogate pair."),
}
"""Code and text by pydantic's error type. No text contains the value: it may be long, or a secret."""


_OWN_CODES = frozenset({"wrong_type", "too_few", "too_many", "too_large", "invalid"})
"""The error types that our own validators raise."""


def _field_error(error: Any) -> FieldError:
    """Return our error for one of pydantic's."""
    place = error["loc"]
    if place and place[-1] == "[key]" and error["type"] != "extra_forbidden":  # an error of the key
        place = place[:-1]
    pointer = pointer_to(*(part[:_LONGEST_NAME] if isinstance(part, str) else part for part in place))
    if error["type"] not in _ERRORS:
        return FieldError(pointer, error["type"] if error["type"] in _OWN_CODES else "invalid", error["msg"])
    code, text = _ERRORS[error["type"]]
    limits = {name: whole(value) for name, value in error.get("ctx", {}).items()}
    return FieldError(pointer, code, text.format_map(limits))


# -- types of fields -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """A field with one of these texts, as in `Annotated[str, Choice("a", "b")]`."""

    values: tuple[str, ...]

    def __init__(self, *values: str) -> None:
        object.__setattr__(self, "values", values)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.literal_schema(list(self.values))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Schema:
        return {"enum": list(self.values)}


@dataclass(frozen=True)
class Items:
    """Limits of a list's length, checked before its items. most: a function if it depends on settings."""

    least: int = 0
    most: int | Callable[[], int] | None = None
    unique: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Schema:
        found: Schema = handler(schema)
        limits: Schema = {"minItems": self.least or None, "maxItems": self._most()}
        limits["uniqueItems"] = self.unique or None
        return found | {name: limit for name, limit in limits.items() if limit is not None}

    def _most(self) -> int | None:
        return self.most() if callable(self.most) else self.most

    def _check(self, value: Any) -> Any:
        if isinstance(value, list):
            most = self._most()
            if len(value) < self.least:
                raise PydanticCustomError(
                    "too_few", "Must have at least {least} items.", {"least": self.least}
                )
            if most is not None and len(value) > most:
                raise PydanticCustomError("too_many", "Must have at most {most} items.", {"most": most})
            texts = [one for one in value if isinstance(one, str)] if self.unique else ()
            if len(texts) > len(set(texts)):
                raise PydanticCustomError("invalid", "Must not have an item twice.")
        return value


@dataclass(frozen=True)
class Members:
    """Limit of an object's members inside a body, checked before they are: of a million wrong ones pydantic
    would collect a million errors while it holds the GIL."""

    most: int

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self._check, handler(source))

    def _check(self, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > self.most:
            raise PydanticCustomError("too_many", "Must have at most {most} items.", {"most": self.most})
        return value


@dataclass(frozen=True)
class Whole:
    """A whole number within these limits, as in `Annotated[int, Whole(1, 9)]`."""

    least: int
    most: int | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        number = core_schema.int_schema(strict=True, ge=self.least, le=self.most)
        return core_schema.no_info_before_validator_function(whole, number)


class _Opaque:
    """An object that pydantic neither validates nor copies."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.is_instance_schema(dict)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Schema:
        return {"type": "object"}


def whole(value: Any) -> Any:
    """Convert 5.0 to 5: JSON has one type of number."""
    return int(value) if type(value) is float and value.is_integer() else value


def read_time(text: str) -> datetime | None:
    """Return the time in UTC; None if the text is not a time, has no zone, or exceeds datetime's range."""
    try:
        parsed = parse_datetime(text)
        if parsed is None or parsed.tzinfo is None:
            return None
        return parsed.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


NO_TIME = "Must be a time with a zone, as in 2026-02-01T12:00:00Z."
"""The error for a text that `read_time` can't read."""
_LONGEST_TIME = 64


def _time(value: Any) -> Any:
    if isinstance(value, datetime):  # set by our own code
        return value
    if not isinstance(value, str):
        raise PydanticKnownError("string_type")
    if len(value) > _LONGEST_TIME:
        raise PydanticKnownError("string_too_long", {"max_length": _LONGEST_TIME})
    if (found := read_time(value)) is None:
        raise PydanticCustomError("invalid", NO_TIME)
    return found


JsonObject = Annotated[dict[str, Any], _Opaque()]
Time = Annotated[
    datetime,
    BeforeValidator(_time),
    WithJsonSchema({"type": "string", "format": "date-time", "maxLength": _LONGEST_TIME}),
]
Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=64)]


def choices(values: Iterable[str]) -> Choice:
    """Return the field type for an enumeration."""
    return Choice(*(str(value) for value in values))


def about(text: str) -> Any:
    """Return a field's description for the published document."""
    return Field(description=text)
