"""A quick yes for values that plainly satisfy one of our own schemas.

The validator of `json_body` says what is wrong and where, and takes a tenth of a millisecond to say that
nothing is; nearly every body is right. What this here is not sure of it leaves to that one, so it may be
simple: a false no costs time, a false yes would let something in (tests compare the two).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

Plain = Callable[[Any], bool]
"""True: the value satisfies the schema for sure."""

_SAYS_NOTHING = frozenset({"description", "default", "format", "title", "examples"})
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_KNOWN = _SAYS_NOTHING | {
    "type", "enum", "minLength", "maxLength", "pattern", "minItems", "maxItems", "items", "required",
    "properties", "additionalProperties", *_NUMBERS,
}  # fmt: skip
_TYPES: Mapping[str, type] = {
    "null": type(None),
    "boolean": bool,
    "integer": int,
    "string": str,
    "array": list,
    "object": dict,
}


def plain(schema: Mapping[str, Any]) -> Plain:
    """Raises ValueError for a schema with a keyword that is not known here."""
    if unknown := schema.keys() - _KNOWN:
        raise ValueError(f"no plain check for {', '.join(sorted(unknown))}")
    if "enum" in schema:
        return _choice(schema)
    of_type: dict[type, Plain] = {type_: _of(type_, schema) for type_ in _types(schema)}
    return lambda value: (check := of_type.get(type(value))) is not None and check(value)


def _types(schema: Mapping[str, Any]) -> set[type]:
    """Those of Python, exactly: what `json.loads` makes. 5.0 for a whole number is left to the validator."""
    named = schema.get("type", [*_TYPES, "number"])
    names = [named] if isinstance(named, str) else named
    numbers: set[type] = {int, float} if "number" in names else set()
    return numbers | {_TYPES[name] for name in names if name != "number"}


def _of(type_: type, schema: Mapping[str, Any]) -> Plain:
    if type_ is str:
        return _text(schema)
    if type_ in (int, float):
        return _number(schema)
    if type_ is list:
        return _list(schema)
    return _object(schema) if type_ is dict else _yes


def _yes(value: Any) -> bool:
    return True


def _choice(schema: Mapping[str, Any]) -> Plain:
    if schema.keys() - _SAYS_NOTHING > {"enum"}:
        raise ValueError("no plain check for choices that are limited further")
    texts = {choice for choice in schema["enum"] if isinstance(choice, str)}
    has_null = None in schema["enum"]
    return lambda value: value in texts if type(value) is str else value is None and has_null


def _text(schema: Mapping[str, Any]) -> Plain:
    least, most = schema.get("minLength", 0), schema.get("maxLength", math.inf)
    pattern = schema.get("pattern", "")
    # `$` means the end, as in ECMAScript
    search = re.compile(pattern[:-1] + r"\Z" if pattern.endswith("$") else pattern).search
    return lambda text: least <= len(text) <= most and search(text) is not None


def _number(schema: Mapping[str, Any]) -> Plain:
    if not any(name in schema for name in _NUMBERS):
        return _yes
    least, most = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    above, below = schema.get("exclusiveMinimum", -math.inf), schema.get("exclusiveMaximum", math.inf)
    return lambda number: least <= number <= most and above < number < below


def _list(schema: Mapping[str, Any]) -> Plain:
    least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
    item = plain(schema.get("items", {})) if schema.get("items") else _yes
    return lambda items: least <= len(items) <= most and all(map(item, items))


def _object(schema: Mapping[str, Any]) -> Plain:
    properties = {name: plain(one) if one else _yes for name, one in schema.get("properties", {}).items()}
    required, others = tuple(schema.get("required", ())), schema.get("additionalProperties", True)
    if not isinstance(others, bool):
        raise ValueError("no plain check for a schema of additional properties")
    if not properties and not required and others:
        return _yes

    def check(value: dict[str, Any]) -> bool:
        for name in required:
            if name not in value:
                return False
        for name, one in value.items():
            of_property = properties.get(name)
            if of_property is None:
                if not others:
                    return False
            elif not of_property(one):
                return False
        return True

    return check
