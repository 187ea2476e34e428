"""JSON values as texts: a large one is kept as its text, since a number, as an object, takes ten times the
bytes; equal ones have one canonical text."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class JsonText:
    """text: JSON in ASCII, without spaces."""

    text: str

    @classmethod
    def of(cls, value: Any) -> JsonText:
        return cls(json.dumps(value, separators=(",", ":")))


def plain(value: Any) -> Any:
    """The value itself, whichever way it was kept."""
    return json.loads(value.text) if isinstance(value, JsonText) else value


def dumps(value: Any, *, default: Callable[[Any], Any] | None = None, sort_keys: bool = False) -> str:
    """Compact JSON; a `JsonText` in it is put in as it stands. default: as `json.dumps` has it."""
    texts: list[tuple[str, str]] = []

    def other(found: Any) -> Any:
        if isinstance(found, JsonText):
            mark = secrets.token_hex(16)
            texts.append((f'"{mark}"', found.text))
            return mark
        if default is None:
            raise TypeError(f"{type(found).__name__} is no JSON")
        return default(found)

    rest = json.dumps(value, separators=(",", ":"), default=other, sort_keys=sort_keys)
    if not texts:
        return rest
    pieces = []
    for mark, text in texts:  # they stand in the order in which they were found
        before, _, rest = rest.partition(mark)
        pieces += [before, text]
    return "".join([*pieces, rest])


def canonical_json(value: object) -> str:
    """One text per value: sorted keys, no white space."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
