"""JSON as text: the one reader of what came from outside, values that are kept as their text, and the one
canonical text of a value.

What a text from a tenant, a GPU server, a model or a browser may cost is bounded before it is parsed: a list
of empty lists takes Python eighty times the bytes that it has as text. Numbers that JSON does not have, or
that no double holds, are refused. Parsing a large text has its turn (`TURN`).
"""

from __future__ import annotations

import json
import math
import re
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from types import TracebackType
from typing import Any

MAX_DEPTH = 64
"""Deeper than any payload means, and shallow enough for every recursion on its way."""
_LONG_NUMBER = b"0" * 309
"""As many digits as the largest double has; Python's own whole numbers end far later."""
_POSITIVE_EXPONENTS = (b"0e0", b"0e+0")
_DIGITS_AS_ZERO = bytes.maketrans(b"123456789E", b"000000000e")
_SUSPICIOUS_ESCAPE = re.compile(rb"\\u(?:0000|d[89a-f])", re.IGNORECASE)
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'[]{},"'))
_WINDOW_BYTES = 1 << 16
_NUMBERS_WINDOW_BYTES = 1 << 20
_OPENING = b"[{"
Pairs = Callable[[list[tuple[str, Any]]], Any]


@dataclass(frozen=True, slots=True)
class Bounds:
    """containers: lists and objects. values: members of all of these. depth: levels."""

    containers: int = 200_000
    values: int = 2_000_000
    depth: int = MAX_DEPTH


DEFAULT_BOUNDS = Bounds()


class NotReadable(ValueError):
    """The text is not JSON, or has a number that no other reader has."""


class TooMuch(NotReadable):
    """The text has more of something than it may have. code: of the error in an answer of the API."""

    code = "too_many"


class TooDeep(TooMuch):
    """The text is nested too deep."""

    code = "too_deep"


def read(body: bytes, *, bounds: Bounds = DEFAULT_BOUNDS, pairs: Pairs | None = None) -> Any:
    """The value. pairs: makes an object of its members. Raises NotReadable."""
    check_bounds(body, bounds)
    has_long, may_be_infinite = _large_numbers(body)
    try:
        return json.loads(
            body.decode(),
            parse_constant=_refuse,
            parse_float=_finite if may_be_infinite else None,  # a million calls take a second
            parse_int=_whole if has_long else None,
            object_pairs_hook=pairs,
        )
    except NotReadable:
        raise
    except RecursionError:
        raise _too_deep(bounds) from None
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors too
        raise NotReadable(str(error)) from None


def _large_numbers(body: bytes) -> tuple[bool, bool]:
    """Return whether the text may have a whole number, and any number, too large for a double.

    A window at a time: one pattern over 15 MB keeps the interpreter from all other threads for 0.4 s.
    """
    has_long = has_exponent = False
    for first in range(0, len(body), _NUMBERS_WINDOW_BYTES):
        window = body[first : first + _NUMBERS_WINDOW_BYTES + len(_LONG_NUMBER) - 1]
        digits = window.translate(_DIGITS_AS_ZERO)
        has_long = has_long or _LONG_NUMBER in digits
        has_exponent = has_exponent or any(exponent in digits for exponent in _POSITIVE_EXPONENTS)
    return has_long, has_long or has_exponent


def may_be_unstorable(body: bytes) -> bool:
    """Whether an escape may stand for a NUL or for half a surrogate pair, which jsonb refuses."""
    return _SUSPICIOUS_ESCAPE.search(body) is not None


def check_bounds(body: bytes, bounds: Bounds = DEFAULT_BOUNDS) -> None:
    """In a time that grows with the length alone. Raises TooMuch."""
    containers = sum(map(body.count, (b"[", b"{")))
    if containers <= bounds.depth and body.count(b",") + containers <= bounds.values:
        return  # whatever of it stands in texts
    values = containers = level = 0
    for structure in _structure(body):
        containers += sum(map(structure.count, (b"[", b"{")))
        if containers > bounds.containers:
            raise TooMuch(f"it has more than {bounds.containers} lists and objects")
        values += structure.count(b",")
        if values + containers > bounds.values:
            raise TooMuch(f"it has more than {bounds.values} values")
        steps = (1 if bracket in _OPENING else -1 for bracket in structure.replace(b",", b""))
        levels = list(accumulate(steps, initial=level))
        if max(levels) > bounds.depth:
            raise _too_deep(bounds)
        level = levels[-1]


def _structure(body: bytes) -> Iterator[bytes]:
    """Brackets and commas outside of texts, a window at a time: a text of three bytes must not cost fifty."""
    # an escape begins at the first of its backslashes, so pairs go first; then a quote left escaped is no end
    marks = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NOT_STRUCTURE)
    in_text = 0
    for first in range(0, len(marks), _WINDOW_BYTES):
        pieces = marks[first : first + _WINDOW_BYTES].split(b'"')
        yield b"".join(pieces[in_text::2])
        in_text ^= (len(pieces) - 1) & 1


def _too_deep(bounds: Bounds) -> TooDeep:
    return TooDeep(f"it is nested more than {bounds.depth} levels deep")


def _refuse(constant: str) -> Any:
    raise NotReadable(f"{constant} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise NotReadable("a number is too large")
    return number


def _whole(text: str) -> int:
    _finite(text)
    return int(text)


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


_SHORT_VALUES = 2_000
"""Written in one go: a call of C keeps the interpreter from other threads, 0.5 ms for so many."""


def canonical_pieces(value: object) -> Iterator[str]:
    """The canonical text in pieces: one for each part of a container that is not short as a whole."""
    if not isinstance(value, (dict, list)) or is_short(value, _SHORT_VALUES):
        yield canonical_json(value)
    elif isinstance(value, dict):
        opening = "{"
        for name in sorted(value):
            yield f"{opening}{canonical_json(name)}:"
            yield from canonical_pieces(value[name])
            opening = ","
        yield "}"
    else:
        opening = "["
        for item in value:
            yield opening
            yield from canonical_pieces(item)
            opening = ","
        yield "]"


def is_short(value: object, most: int) -> bool:
    """Return whether a JSON value has at most `most` values and characters; looks at no more than that."""
    left, waiting = most, [iter((value,))]
    while waiting:
        for one in waiting[-1]:
            left -= 1 + (len(one) if isinstance(one, str) else 0)
            if left < 0:
                return False
            if isinstance(one, dict):
                waiting += [iter(one.values()), iter(one)]
                break
            if isinstance(one, list):
                waiting.append(iter(one))
                break
        else:
            waiting.pop()
    return True


class Turn:
    """A lock that is taken in the order in which it was asked for. Not reentrant."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_taken = False
        self._waiting: deque[threading.Event] = deque()

    def __enter__(self) -> None:
        with self._lock:
            if not self._is_taken:
                self._is_taken = True
                return
            mine = threading.Event()
            self._waiting.append(mine)
        mine.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._is_taken = False


TURN = Turn()
"""Of this process: taken to read a large answer or to write a transaction. Parsing a large answer holds the
interpreter for up to a second, and no transaction may be open meanwhile."""
