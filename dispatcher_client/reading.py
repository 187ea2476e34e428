"""Reads dataclasses from JSON: `read_answer` checks each field against its annotation.

Fields of a newer server are ignored; a missing field that may be None is None."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from functools import cache
from typing import Any, TypeVar

from .errors import NoAnswer

T = TypeVar("T")


def read_answer(kind: type[T], document: Any) -> T:
    """Return the answer as a dataclass of this kind. Raises NoAnswer if a field does not fit."""
    try:
        return typing.cast("T", _read(kind, document))
    except ValueError as error:
        raise NoAnswer(f"the answer is not {kind.__name__}: {error}") from None


def _read(annotation: Any, value: Any) -> Any:
    """Raises ValueError."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return value
    if origin is types.UnionType:  # only `… | None` is used
        return None if value is None else _read(arguments[0], value)
    if origin is tuple:
        return tuple(_read(arguments[0], item) for item in _of(list, value))
    if origin is Mapping:
        return _of(dict, value)
    if is_dataclass(annotation):
        return _read_fields(annotation, _of(dict, value))
    if annotation in (date, datetime):
        return annotation.fromisoformat(_of(str, value))
    if annotation is float and type(value) is int:
        return _of_float(value)
    return _of(annotation, value)


def _read_fields(kind: Any, given: Mapping[str, Any]) -> Any:
    return kind(**{name: _read(annotation, given.get(sent)) for name, sent, annotation in _fields(kind)})


@cache
def _fields(kind: Any) -> list[tuple[str, str, Any]]:
    """(name, name in JSON, type) of each field."""
    hints = typing.get_type_hints(kind)
    return [(one.name, one.metadata.get("name", one.name), hints[one.name]) for one in fields(kind)]


def _of(kind: type[Any], value: Any) -> Any:
    if type(value) is not kind:  # not isinstance: True is no number
        raise ValueError(f"{type(value).__name__} in place of {kind.__name__}")
    return value


def _of_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError("a number out of range") from None
