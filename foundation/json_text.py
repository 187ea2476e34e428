"""JSON as text: the reader of all JSON from outside, values kept as text, and canonical JSON.

The cost of a text from a tenant, a GPU server, a model or a browser is bounded before it is parsed: a list of
empty lists takes eighty times its text in Python. Numbers that JSON does not have, or that no double can
hold, are rejected. Large texts are parsed one at a time (`PARSE_LOCK`).
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
"""Deeper than any real payload, and low enough for every recursive function on its way."""
_LONG_NUMBER = b"0" * 309
"""As many digits as the largest double; Python's integers may have far more."""
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
    """Limits of a text. containers: lists and objects. values: members of all of these. depth: levels."""

    containers: int = 200_000
    values: int = 2_000_000
    depth: int = MAX_DEPTH


DEFAULT_BOUNDS = Bounds()


class NotReadable(ValueError):
    """The text is not JSON, or has a number that other readers can't hold."""


class TooMuch(NotReadable):
    """The text exceeds a limit. code: of the error in an answer of the API."""

    code = "too_many"


class TooDeep(TooMuch):
    """The text is nested too deeply."""

    code = "too_deep"


def read(body: bytes, *, bounds: Bounds = DEFAULT_BOUNDS, pairs: Pairs | None = None) -> Any:
    """Return the value of a JSON text. pairs: makes an object of its members. Raises NotReadable."""
    check_bounds(body, bounds)
    has_long, may_be_infinite = _large_numbers(body)
    try:
        return _decoder(may_be_infinite, has_long, pairs).decode(body.decode())
    except NotReadable:
        raise
    except RecursionError:
        raise _too_deep(bounds) from None
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors too
        raise NotReadable(str(error)) from None


def _decoder(may_be_infinite: bool, has_long: bool, pairs: Pairs | None) -> json.JSONDecoder:
    """Return the decoder for a text with such numbers."""
    if not may_be_infinite and pairs is None:
        return _USUAL
    return json.JSONDecoder(
        parse_constant=_refuse,
        parse_float=_finite if may_be_infinite else None,  # a million calls take a second
        parse_int=_whole if has_long else None,
        object_pairs_hook=pairs,
    )


def _large_numbers(body: bytes) -> tuple[bool, bool]:
    """Return whether the text may have an integer, and any number, too large for a double.

    In windows: one pattern over 15 MB would hold the GIL for 0.4 s."""
    has_long = has_exponent = False
    for first in range(0, len(body), _NUMBERS_WINDOW_BYTES):
        window = body[first : first + _NUMBERS_WINDOW_BYTES + len(_LONG_NUMBER) - 1]
        digits = window.translate(_DIGITS_AS_ZERO)
        has_long = has_long or _LONG_NUMBER in digits
        has_exponent = has_exponent or any(exponent in digits for exponent in _POSITIVE_EXPONENTS)
    return has_long, has_long or has_exponent


def may_be_unstorable(body: bytes) -> bool:
    """Return True if an escape may be a NUL or half a surrogate pair, which jsonb rejects."""
    return _SUSPICIOUS_ESCAPE.search(body) is not None


def storable(value: Any) -> Any:
    """Return the value with NULs and halves of surrogate pairs escaped: log lines may have them, and must not
    fail the answer that they are in."""
    if isinstance(value, str):
        return value.replace("\0", "\\x00").encode(errors="backslashreplace").decode()
    if isinstance(value, list):
        return [storable(item) for item in value]
    if isinstance(value, dict):
        return {storable(name): storable(item) for name, item in value.items()}
    return value


def check_bounds(body: bytes, bounds: Bounds = DEFAULT_BOUNDS) -> None:
    """Check the limits in time linear in the length. Raises TooMuch."""
    containers = sum(map(body.count, (b"[", b"{")))
    if containers <= bounds.depth and body.count(b",") + containers <= bounds.values:
        return  # even if none of them is inside a string
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
    """Yield brackets and commas outside strings, a window at a time: a string of three bytes must not cost
    fifty."""
    # remove escaped backslashes first; a quote that is still escaped does not end a string
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


_USUAL = json.JSONDecoder(parse_constant=_refuse)


@dataclass(frozen=True, slots=True)
class JsonText:
    """A value kept as text. text: JSON in ASCII, without spaces."""

    text: str

    @classmethod
    def of(cls, value: Any) -> JsonText:
        return cls(json.dumps(value, separators=(",", ":")))


def unwrap(value: Any) -> Any:
    """Return the value itself, also of a `JsonText`."""
    return json.loads(value.text) if isinstance(value, JsonText) else value


def dumps(value: Any, *, default: Callable[[Any], Any] | None = None, sort_keys: bool = False) -> str:
    """Return compact JSON; a `JsonText` in it is inserted as it is. default: as in `json.dumps`."""
    texts: list[tuple[str, str]] = []

    def replace(found: Any) -> Any:
        if isinstance(found, JsonText):
            mark = secrets.token_hex(16)
            texts.append((f'"{mark}"', found.text))
            return mark
        if default is None:
            raise TypeError(f"{type(found).__name__} is not JSON")
        return default(found)

    rest = json.dumps(value, separators=(",", ":"), default=replace, sort_keys=sort_keys)
    if not texts:
        return rest
    pieces = []
    for mark, text in texts:  # in order of occurrence
        before, _, rest = rest.partition(mark)
        pieces += [before, text]
    return "".join([*pieces, rest])


def canonical_json(value: object) -> str:
    """Return the one canonical text of a value: sorted keys, no white space."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def same_value(left: Any, right: Any) -> bool:
    """Return whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_value(left[name], right[name]) for name in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_value, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


_SHORT_VALUES = 2_000
"""Written by one call into C, which holds the GIL for 0.5 ms."""


def canonical_pieces(value: object) -> Iterator[str]:
    """Yield the canonical text in pieces: one for each part of a container that is not short as a whole."""
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
    """Return True if a JSON value has at most `most` values and characters; looks at no more than that."""
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


class FifoLock:
    """A lock that is granted in the order of requests. Not reentrant."""

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


PARSE_LOCK = FifoLock()
"""Of this process: held while a large answer is parsed, and while a transaction is written. Parsing holds the
GIL for up to a second, and no transaction may be open meanwhile."""
