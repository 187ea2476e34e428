"""A script's arguments: named in its head, checked on both sides, sent as one JSON object.

docs/adr/0044-script-arguments-have-names.md says why. `lua/includes/call.lua` decodes the object.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from json.encoder import encode_basestring_ascii
from typing import Any

Value = str | int | float | None
Row = Mapping[str, Value]
Argument = Value | Sequence[str] | Row | Sequence[Row]

OF_EACH_CALL = frozenset({"clock_us", "since_us"})
"""What `Scripts` adds to the arguments of each call."""

_ARGS = re.compile(r"^-- Args:(.*?)^-- (?=[A-Z]\w+:)", re.MULTILINE | re.DOTALL)
_OF_SCRIPT, _OF_RECORD = "--   ", "--     "
_LINE = re.compile(r"(\w+(?:, \w+)*): (text|number|texts|records?)( or nil)?(?:, \S.*)?")
_COMMENT = re.compile(r"--.*")
_USED = re.compile(r"\bargs\.(\w+)")
_ALIAS = re.compile(r"(?:for \w+, (\w+) in ipairs\(args\.(\w+)\)|^local (\w+) = args\.(\w+)$)", re.MULTILINE)
_text = encode_basestring_ascii


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

    def writer(self) -> Callable[[Any], str]:
        """Writes a value as JSON; it raises TypeError for one of another kind."""
        if self.record is None:
            return _WRITERS[self.kind]
        return self.record.to_json if self.kind == "record" else partial(_rows, self.record.to_json)


class Record:
    """Named values: the arguments of a script, or one row of them. owner: for messages."""

    def __init__(self, owner: str, parameters: Mapping[str, Parameter]) -> None:
        self.owner, self.parameters = owner, parameters
        fields = [(name, one, f'"{name}":', one.writer()) for name, one in parameters.items()]
        self._always = [(name, start, write) for name, one, start, write in fields if not one.is_optional]
        self._maybe = [(name, start, write) for name, one, start, write in fields if one.is_optional]

    def members(self, values: Mapping[str, Any]) -> list[str]:
        """``"name":value`` of each that is not None; Lua reads what is missing as nil. Raises BadCall."""
        if values.keys() != self.parameters.keys():
            missing = [f"{name} is missing" for name in self.parameters if name not in values]
            unknown = [f"no argument is named {name}" for name in values if name not in self.parameters]
            raise BadCall(f"{self.owner}: {', '.join(missing + unknown)}")
        try:
            members = [start + write(values[name]) for name, start, write in self._always]
            for name, start, write in self._maybe:
                value = values[name]
                if value is not None:
                    members.append(start + write(value))
        except BadCall:
            raise
        except TypeError as error:
            raise BadCall(f"{self.owner}: {error}, in {dict(values)}") from error
        return members

    def to_json(self, values: Mapping[str, Any]) -> str:
        """Raises BadCall."""
        return to_json(self.members(values))


def to_json(members: Iterable[str]) -> str:
    return f"{{{','.join(members)}}}"


def _number(value: object) -> str:
    if value.__class__ is int or value.__class__ is float:
        return repr(value)
    raise TypeError(f"a number is expected, not {value!r}")


def _texts(values: object) -> str:
    if isinstance(values, list | tuple):
        return f"[{','.join(map(_text, values))}]"
    raise TypeError(f"a list of texts is expected, not {values!r}")


def _rows(write: Callable[[Any], str], values: Iterable[Any]) -> str:
    return f"[{','.join(map(write, values))}]"


_WRITERS: Mapping[str, Callable[[Any], str]] = {"text": _text, "number": _number, "texts": _texts}


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
    return parameters


def _check_code(script: str, code: str, parameters: Mapping[str, Parameter]) -> None:
    if numbered := re.search(r"\b(ARGV|KEYS)\b", code):
        raise BadScript(f"{script}.lua: {numbered[1]} is not used: arguments and keys have names")
    used = set(_USED.findall(code)) - OF_EACH_CALL
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
