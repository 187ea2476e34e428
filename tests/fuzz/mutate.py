"""Mutates a document into many similar ones."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

PIECES = (
    b"",
    b"\0",
    b"\\u0000",
    b"\\ud800",
    b"\xff",
    b"\xed\xa0\x80",
    b"\r\n",
    b"\n\n",
    b"\n",
    b":",
    b",",
    b'"',
    b"\\",
    b"[" * 200,
    b"[" * 3000,
    b'{"a":' * 200,
    b"[[]," * 300,
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"-1e999",
    b"9" * 400,
    b"9" * 5000,
    b"0.1",
    b"-1",
    b"1e308",
    b"true",
    b"null",
    b"{}",
    b"[]",
    b"data: ",
    b"data:\n\n",
    b"event: error\n",
    b"retry: ",
    b"[DONE]",
    b"=",
    b"&",
    b"%00",
    b"%ff",
    b"../",
    b"http://",
    b"[::1]",
    b"@",
    b"xn--",
    b"Wed, 21 Oct 99999 07:28:00",
    b"\xe2\x80\xae",
    b"\x1b[31m",
    b"0x10",
    b"\xd9\xa3",
    b"\xc2\xb2",
    b" ",
    b"\t",
    b";",
    b"a" * 3000,
)
"""What parsers trip over: numbers that no double holds, half characters, digits that are not ASCII."""
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    2**63,
    2**200,
    -(2**200),
    10**400,
    1e308,
    -0.0,
    float("inf"),
    float("nan"),
    "",
    "\0",
    "\ud800",
    "9" * 5000,
    "a" * 3000,
    "\u0663",
    [],
    {},
    [[]],
    [None],
    {"": None},
    ["a"] * 300,
    {"message": {"message": 1}},
)


def variations(document: Any, seed: int, count: int) -> Iterator[Any]:
    """Yield the document itself, then `count` - 1 mutations. The same seed yields the same ones."""
    yield document
    chance = random.Random(seed)
    change = _change_of(document)
    found = document
    for number in range(count - 1):
        found = change(document if number % 4 == 0 else found, chance)
        yield found


def _change_of(document: Any) -> Callable[[Any, random.Random], Any]:
    if isinstance(document, bytes):
        return _bytes
    return _text if isinstance(document, str) else _value


def _text(text: str, chance: random.Random) -> str:
    content = _bytes(text.encode("utf-8", "surrogatepass"), chance)
    return content.decode("utf-8", chance.choice(("replace", "surrogateescape", "ignore")))


def _bytes(content: bytes, chance: random.Random) -> bytes:
    start = chance.randint(0, len(content))
    end = min(len(content), start + chance.choice((0, 0, 1, 1, 2, 8, len(content))))
    kind = chance.randrange(5)
    if kind == 0:
        middle = chance.choice(PIECES)
    elif kind == 1:
        middle = content[start:end] * chance.choice((0, 2, 3))
    elif kind == 2:
        middle = bytes(byte ^ 1 << chance.randrange(8) for byte in content[start:end])
    elif kind == 3:
        middle = chance.randbytes(chance.randint(0, 4))
    else:
        middle = json.dumps(chance.choice(VALUES)).encode()
    return (content[:start] + middle + content[end:])[:20_000]


def _value(value: Any, chance: random.Random) -> Any:
    """Replace, remove or rename one member."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        name = chance.choice(list(value))
        rest = {other: one for other, one in value.items() if other != name}
        kind = chance.randrange(6)
        return rest if kind == 0 else {**rest, name if kind else "a": _value(value[name], chance)}
    if isinstance(value, (list, tuple)) and value and chance.random() < 0.8:
        place = chance.randrange(len(value))
        middle = [] if chance.randrange(5) == 0 else [_value(value[place], chance)]
        return [*value[:place], *middle, *value[place + 1 :]][:300]
    return chance.choice(VALUES)
