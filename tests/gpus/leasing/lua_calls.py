"""Finds the keys that a script can touch, by following function calls."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from gpus.leasing.library import FOLDER, module_name

OF_EACH_CALL = frozenset({"clock", "ticking"})
"""For the time of each call (`Call.begin_call`); a head lists them where its script uses them, too."""

_CALL = re.compile(r"\b([A-Z][a-z]+)\.(\w+)")

Function = tuple[str, str]
"""Module and name."""


def code_of(text: str) -> str:
    """The text without comments and string literals."""
    return re.sub(r"'(?:[^'\\\n]|\\.)*'", "''", re.sub(r"--.*", "", text))


@cache
def functions() -> dict[Function, str]:
    """The code of each function of each include."""
    found: dict[Function, str] = {}
    for path in (FOLDER / "includes").glob("*.lua"):
        if path.stem != "keys":
            module = module_name(path.stem)
            found |= {(module, name): body for name, body in _split(code_of(path.read_text()))}
    return found


def _split(code: str) -> Iterator[tuple[str, str]]:
    """A function begins in the first column, and ends there or on the line on which it began."""
    lines = code.split("\n")
    for at, line in enumerate(lines):
        if match := re.match(r"local function (\w+)", line):
            last = at if re.search(r"\bend\s*$", line) else lines.index("end", at)
            yield match[1], "\n".join(lines[at : last + 1]).removeprefix(f"local function {match[1]}")


def called(code: str, module: str = "") -> set[Function]:
    """The functions that the code names, of its own module too."""
    own = {one for one in functions() if one[0] == module and re.search(rf"(?<![\w.]){one[1]}\(", code)}
    return own | {one for one in _CALL.findall(code) if one in functions()}


def keys_of(script: str) -> set[str]:
    """The kinds of keys that the script and all that it calls can touch."""
    code = code_of((FOLDER / f"{script}.lua").read_text())
    seen, left = set[Function](), list(called(code))
    kinds = {name for module, name in _CALL.findall(code) if module == "Keys"}
    while left:
        one = left.pop()
        if one not in seen:
            seen.add(one)
            body = functions()[one]
            kinds |= {name for module, name in _CALL.findall(body) if module == "Keys"}
            left += called(body, one[0])
    return kinds - {"set_prefix"}
