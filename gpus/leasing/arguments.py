"""A script's arguments: named in its head, from which come both what Python sends and what Lua reads.

docs/adr/0044-script-arguments-have-names.md says why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

Value = str | int | float | None
Row = Mapping[str, Value]
Argument = Value | Sequence[str] | Row | Sequence[Row]

_TYPES: Mapping[str, tuple[type, ...]] = {
    "text": (str,),
    "number": (int, float),
    "texts": (list, tuple),
    "record": (dict,),
    "records": (list, tuple),
}
_SCALARS = frozenset({"text", "number"})
_ARGS = re.compile(r"^-- Args:(.*?)^-- (?=[A-Z]\w+:)", re.MULTILINE | re.DOTALL)
_OF_SCRIPT, _OF_RECORD = "--   ", "--     "
_LINE = re.compile(r"(\w+(?:, \w+)*): (text|number|texts|records?)( or nil)?(?:, \S.*)?")
_COMMENT = re.compile(r"--.*")
_USED = re.compile(r"\bargs\.(\w+)")
_ALIAS = re.compile(r"(?:for \w+, (\w+) in ipairs\(args\.(\w+)\)|^local (\w+) = args\.(\w+)$)", re.MULTILINE)


class BadScript(Exception):
    """A Lua file does not keep to the rules."""


class BadCall(TypeError):
    """The arguments of a call are not those that the script's head names."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """kind: text, number, texts, record, records. record: the fields of the last two, else None."""

    kind: str
    is_optional: bool
    record: Record | None = None

    def is_right(self, value: object) -> bool:
        if value is None:
            return self.is_optional
        return isinstance(value, _TYPES[self.kind]) and not isinstance(value, bool)

    def lua(self, place: str) -> str:
        """The expression that reads it in Lua."""
        if self.kind == "number":
            # `tonumber` would parse it twice
            return f"{place} ~= '' and {place} + 0 or nil" if self.is_optional else f"{place} + 0"
        return f"{place} ~= '' and {place} or nil" if self.is_optional else place


class Record:
    """Named values: the arguments of a script, or one row of them. owner: for messages."""

    def __init__(self, owner: str, parameters: Mapping[str, Parameter]) -> None:
        self.owner, self.parameters = owner, parameters
        self._plain = [name for name, one in parameters.items() if one.kind in _SCALARS]
        self._list = next((name for name, one in parameters.items() if one.kind not in _SCALARS), None)
        self._known: dict[tuple[type, ...], bool] = {}
        """By types of values that were found right: whether one is None."""

    def values(self, given: Mapping[str, Any]) -> list[Any]:
        """In the order in which Lua reads them: texts and numbers, empty for None. Raises BadCall."""
        if given.keys() != self.parameters.keys():
            missing = [f"{name} is missing" for name in self.parameters if name not in given]
            unknown = [f"no argument is named {name}" for name in given if name not in self.parameters]
            raise BadCall(f"{self.owner}: {', '.join(missing + unknown)}")
        values = [given[name] for name in self._plain]
        types = tuple(map(type, values))
        has_none = self._known.get(types)
        if has_none is None:
            for name, value in zip(self._plain, values, strict=True):
                self._check(name, value)
            has_none = self._known[types] = None in values
        if has_none:
            values = ["" if value is None else value for value in values]
        if self._list is not None:
            values += self._rows(self._list, given[self._list])
        return values

    def _rows(self, name: str, rows: Any) -> list[Any]:
        self._check(name, rows)
        record = self.parameters[name].record
        if record is None:
            if not all(isinstance(text, str) for text in rows):
                raise BadCall(f"{self.owner}: {name} must hold texts only")
            return list(rows)
        if isinstance(rows, dict):
            return record.values(rows)
        return [value for row in rows or () for value in record.values(row)]

    def _check(self, name: str, value: object) -> None:
        if not self.parameters[name].is_right(value):
            raise BadCall(f"{self.owner}: {name} must be {self.parameters[name].kind}, it is {value!r}")

    def lua(self, first: int) -> str:
        """Reads the values from ``ARGV[first]`` on into locals, ``args_pool`` for ``args.pool``."""
        lines = [
            f"local args_{name} = {self.parameters[name].lua(f'ARGV[{first + at}]')}\n"
            for at, name in enumerate(self._plain)
        ]
        if self._list is not None:
            begin, record = first + len(self._plain), self.parameters[self._list].record
            kind, size = self.parameters[self._list].kind, len(record.parameters) if record else 1
            row = "ARGV[i]" if record is None else record._lua_row()
            if kind == "record":
                lines.append(f"local args_{self._list}\n")
                lines.append(f"if ARGV[{begin}] then local i = {begin} args_{self._list} = {row} end\n")
            else:
                lines.append(f"local args_{self._list} = {{}}\n")
                add = f"args_{self._list}[#args_{self._list} + 1] = {row}"
                lines.append(f"for i = {begin}, #ARGV, {size} do {add} end\n")
        return "".join(lines)

    def _lua_row(self) -> str:
        place = "ARGV[i + {}]".format
        fields = enumerate(self.parameters.items())
        return f"{{ {', '.join([f'{name} = {one.lua(place(at))}' for at, (name, one) in fields])} }}"


def read_parameters(script: str, text: str) -> Record:
    """The arguments that the head of the script names. text: of its file. Raises BadScript: its head is not
    understood, or it names others than the code uses."""
    found = _ARGS.search(text.split("\n\n", maxsplit=1)[0])
    if found is None:
        raise BadScript(f"{script}.lua: its head does not say 'Args:' before 'Returns:'")
    lines = found[1].strip().splitlines()
    parameters = _read(f"{script}.lua", [] if lines == ["none"] else lines, _OF_SCRIPT)
    _check_code(script, _COMMENT.sub("", text), parameters)
    return Record(f"{script}.lua", parameters)


def _read(owner: str, lines: Sequence[str], indent: str) -> dict[str, Parameter]:
    """Lines that are indented further belong to the record above them. Raises BadScript."""
    parameters: dict[str, Parameter] = {}
    record: Record | None = None
    for at, line in enumerate(lines):
        if record and line.startswith(_OF_RECORD):
            continue
        match = _LINE.fullmatch(line.removeprefix(indent))
        if match is None:
            raise BadScript(f"{owner}: cannot read the argument {line!r}")
        record = None
        if match[2].startswith("record"):
            rows = takewhile(lambda below: below.startswith(_OF_RECORD), lines[at + 1 :])
            name = f"{owner}, {match[1]}"
            record = Record(name, _read(name, list(rows), _OF_RECORD))
        for name in match[1].split(", "):
            if name in parameters:
                raise BadScript(f"{owner}: the argument {name} is named twice")
            parameters[name] = Parameter(match[2], bool(match[3]), record)
    kinds = [one.kind for one in parameters.values()]
    if any(kind not in _SCALARS for kind in (kinds if indent == _OF_RECORD else kinds[:-1])):
        raise BadScript(f"{owner}: only the last argument may be a list or a record")
    return parameters


def with_locals(code: str) -> str:
    """The code of a script that reads its arguments from the locals that `Record.lua` makes."""
    return _USED.sub(r"args_\1", code)


def _check_code(script: str, code: str, parameters: Mapping[str, Parameter]) -> None:
    if numbered := re.search(r"\b(ARGV|KEYS)\b", code):
        raise BadScript(f"{script}.lua: {numbered[1]} is not used: arguments and keys have names")
    used = set(_USED.findall(code))
    if used != parameters.keys():
        differing = ", ".join(sorted(used ^ parameters.keys()))
        raise BadScript(f"{script}.lua: head and code differ in the arguments {differing}")
    for in_loop, of_loop, alone, of_alone in _ALIAS.findall(code):
        row, record = in_loop or alone, parameters[of_loop or of_alone].record
        if record is None:
            continue
        own = set(re.findall(rf"\b{row}\.(\w+) = ", code))
        if unknown := set(re.findall(rf"\b{row}\.(\w+)", code)) - own - record.parameters.keys():
            raise BadScript(f"{script}.lua: its head names no {row}.{', '.join(sorted(unknown))}")
