"""Request bodies: strict JSON that every database can store, checked against the published schema.

The schemas are JSON Schema 2020-12, which is what OpenAPI 3.1 uses: one text is the contract and the check.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator, ValidationError, validators
from referencing import Registry
from rest_framework.parsers import BaseParser

from foundation import json_text
from foundation.http_api.problems import MAX_ERRORS, FieldError, Problem, validation_problem

LATER_KEY = "dispatcher.body_comes_later"
GO_ON = 100


def require_body(environ: Mapping[str, Any]) -> None:
    """A long body is taken in only once its sender is known to be welcome, and never by one of the few
    threads.

    The async layer (`dispatcher_project.web.asgi_gateway`) lets the view begin without it. The view turns
    away who may not send, by key, token or length; where it reads the body, the request ends with 100
    Continue. This answer stays in the house: the layer takes the body in and lets the view begin again. So a
    view does nothing that lasts before it reads its body.

    Raises Problem 100 if the body was not taken in yet. Under plain WSGI it always was."""
    if environ.get("asgi.scope", {}).get(LATER_KEY):
        raise Problem(GO_ON, "body_wanted", "Send the body.")


DEFAULT_MAX_BYTES = 256 * 1024
_LONGEST_NAME = 100
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")

_CODES = {
    "required": "required",
    "additionalProperties": "unknown_field",
    "type": "wrong_type",
    "enum": "not_a_choice",
    "const": "not_a_choice",
    "minimum": "out_of_range",
    "maximum": "out_of_range",
    "exclusiveMinimum": "out_of_range",
    "exclusiveMaximum": "out_of_range",
    "minLength": "too_short",
    "maxLength": "too_long",
    "minItems": "too_few",
    "maxItems": "too_many",
}


class StrictJsonParser(BaseParser):
    """`request.data` for a JSON body; a view's `max_body_bytes` bounds it before it is read."""

    media_type = "application/json"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        limit = expect_body((parser_context or {}).get("view"), (parser_context or {})["request"].META)
        raw = stream.read(limit + 1)
        if len(raw) > limit:
            raise _too_large(limit)
        return read_json(raw)


def expect_body(view: Any, environ: Mapping[str, Any]) -> int:
    """The most bytes that the request's body may have. Raises Problem 413 where it says that it has more, and
    100 if it was not taken in yet."""
    limit = getattr(view, "max_body_bytes", None)
    most: int = limit() if callable(limit) else limit or DEFAULT_MAX_BYTES
    declared = environ.get("CONTENT_LENGTH") or "0"
    if declared.isdigit() and int(declared) > most:
        raise _too_large(most)
    require_body(environ)
    return most


def _too_large(limit: int) -> Problem:
    return Problem(413, "payload_too_large", f"The body may have up to {limit} bytes.")


def read_json(raw: bytes) -> Any:
    """The value; raises Problem 400 for text that is not JSON or names a key twice, 422 for JSON that can't
    be stored, or has too much of something."""
    try:
        value = json_text.read(raw, pairs=_unique_keys)
    except json_text.TooMuch as error:
        raise validation_problem([FieldError("", error.code, f"The body can't be taken: {error}.")]) from None
    except json_text.NotReadable as error:
        raise _malformed(str(error)) from None
    if json_text.may_be_unstorable(raw):
        errors = list(islice(_unstorable(value, ()), MAX_ERRORS))
        if errors:
            raise validation_problem(errors)
    return value


def check(value: Any, validator: Draft202012Validator) -> list[FieldError]:
    """What is wrong with the value, by place: the first `MAX_ERRORS`, since a body may have a million."""
    found = (error for raw in validator.iter_errors(value) for error in _field_errors(raw))
    return sorted(islice(found, MAX_ERRORS), key=lambda error: error.pointer)


def compiled(schema: Mapping[str, Any]) -> Draft202012Validator:
    """A validator for one of our own schemas. `$ref`s lead nowhere outside it."""
    return _StrictValidator(schema, registry=Registry())


def pointer_to(*path: object) -> str:
    """A JSON pointer, escaped."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two values under one name readers take either: what was meant nobody can know."""
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = json.dumps(counts.most_common(1)[0][0][:100])
        raise Problem(400, "duplicate_key", f"The body has an object with more than one {twice}.")
    return found


def _malformed(why: str) -> Problem:
    return Problem(400, "malformed_json", f"The body is not valid JSON: {why}.")


def _unstorable(value: Any, path: tuple[object, ...]) -> Iterator[FieldError]:
    """Text that PostgreSQL can't hold: NUL, half a surrogate pair. As deep as the value, which is bounded;
    a path is made for what holds others, and for what is wrong: there may be two million texts."""
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


def _field_errors(error: ValidationError) -> Iterator[FieldError]:
    code = _CODES.get(str(error.validator), "invalid")
    path = [str(part) for part in error.absolute_path]
    if error.validator == "required":
        for name in error.validator_value:
            if name not in error.instance and error.message.startswith(repr(name)):
                yield FieldError(pointer_to(*path, name), code, "This field is required.")
    elif error.validator == "additionalProperties":
        for name in sorted(set(error.instance) - set(error.schema.get("properties", ()))):
            yield FieldError(pointer_to(*path, name[:100]), code, "There is no such field.")
    else:
        yield FieldError(pointer_to(*path), code, _message_of(error))


def _message_of(error: ValidationError) -> str:
    """jsonschema's message without the value: it may be a megabyte, or a secret."""
    limit = error.validator_value
    match error.validator:
        case "type":
            return f"Must be of type {' or '.join([limit] if isinstance(limit, str) else limit)}."
        case "enum":
            return f"Must be one of {', '.join(json.dumps(choice) for choice in limit)}."
        case "minimum":
            return f"Must be at least {limit}."
        case "exclusiveMinimum":
            return f"Must be greater than {limit}."
        case "maximum":
            return f"Must be at most {limit}."
        case "minLength" | "minItems":
            return (
                f"Must have at least {limit} {'characters' if error.validator == 'minLength' else 'items'}."
            )
        case "maxLength" | "maxItems":
            return f"Must have at most {limit} {'characters' if error.validator == 'maxLength' else 'items'}."
        case "pattern":
            return f"Must match {limit}."
        case _:
            return f"Does not satisfy {error.validator!r} of its schema."


def _strict_pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """`$` means the end, as in ECMAScript; Python's would let a newline follow."""
    if validator.is_type(instance, "string"):
        exact = pattern[:-1] + r"\Z" if pattern.endswith("$") else pattern
        if not re.search(exact, instance):
            yield ValidationError("does not match")


_StrictValidator = validators.extend(Draft202012Validator, {"pattern": _strict_pattern})
