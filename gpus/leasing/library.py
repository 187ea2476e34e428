"""Reads the Lua files, checks them, and builds one Redis library of functions from them.

Each script's head is its contract, and a file without one is refused. A line ``-- include: slots`` names a
file of ``lua/includes`` that returns a table of functions. The library contains the table once, as ``Slots``,
before the files that use it. A file that uses a table it does not list, or a missing name, is refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path

from gpus.leasing.codec import SCALARS, Parameter, Record

FOLDER = Path(__file__).parent / "lua"
LIBRARIES = "gpuq_"
"""Prefix of the names of our libraries."""
GROWING = frozenset({"push"})
"""Scripts that a server at its maxmemory refuses, because they add data without bound. All others must run
there, or waiting jobs could not be processed; slots, servers and tenants bound their number."""
CONTRACT = ("Why", "Keys", "Returns")
"""Entries that each script's head must have, besides its arguments."""
OWN_ARGUMENTS = 2
"""Arguments before those of a script, for the time (call.lua): since_us and clock_us."""
_INCLUDE = re.compile(r"^-- include: (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"^ *--.*\n", re.MULTILINE)
_TABLE = re.compile(r"^return \{\n(.*)^\}$", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"(\w+) = ")
_MEMBER = re.compile(r"\b(?:Keys|Call)\.(\w+)")
_USE = re.compile(r"\b([A-Z][a-z]\w*)\.(\w+)")
_TEXT = re.compile(r"'(?:[^'\\]|\\.)*'")
MODULE = """
local {name} = (function()
{body}end)()
"""
FUNCTION = """
register_function{{ function_name = LIBRARY .. '_{name}', flags = {{ {flags} }},
callback = function(KEYS, ARGV)
if not Call.run_id then return {{ err = 'UNGREETED this process has not received its run id' }} end
Call.begin_call(KEYS[1], {since_us}, {clock_us})
{arguments}{body}end }}
"""
GREETING = """
local READS = { 'no-writes' }
register_function{ function_name = LIBRARY .. '_greet', flags = READS, callback = function(_, ARGV)
  bind_globals()
  Call.run_id, Call.replication = ARGV[1], ARGV[2] or ''
end }
register_function{ function_name = LIBRARY .. '_idle', flags = READS, callback = function()
  bind_globals()
  return math.floor((Call.redis_clock() - (Call.now or 0)) / 1000000)
end }
"""
_CHUNK = re.compile(
    r"^(?P<begin>local (?P<module>[A-Z]\w*) = \(function\(\)\n|register_function\{)"
    r"(?P<body>.*?^end(?:\)\(\)| \})\n)",
    re.MULTILINE | re.DOTALL,
)
_GLOBAL = re.compile(
    r"(?<![\w.:])((?:cjson|cmsgpack|math|redis|string|table)\.\w+"
    r"|(?:ipairs|next|pairs|pcall|tonumber|tostring|unpack)\b)"
)
_HEAD = """local register_function = redis.register_function
local function read_globals() return {globals} end
local {locals}
local function bind_globals() {locals} = read_globals() end
"""
_ARGS = re.compile(r"^-- Args:(.*?)^-- (?=[A-Z]\w+:)", re.MULTILINE | re.DOTALL)
_OF_SCRIPT, _OF_RECORD = "--   ", "--     "
_LINE = re.compile(r"(\w+(?:, \w+)*): (text|number|texts|records?)( or nil)?(?:, \S.*)?")
_REMARK = re.compile(r"--.*")
_USED = re.compile(r"\bargs\.(\w+)")
_ALIAS = re.compile(r"(?:for \w+, (\w+) in ipairs\(args\.(\w+)\)|^local (\w+) = args\.(\w+)$)", re.MULTILINE)


class BadScript(Exception):
    """A Lua file breaks a rule of this module."""


@cache
def script_names() -> tuple[str, ...]:
    """Names of all scripts: the files of `lua/` without their suffix."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.lua")))


@cache
def library_code() -> str:
    """The code of all includes and scripts, without comments and library name. Raises BadScript."""
    includes: dict[str, str] = {}
    add_includes("-- include: call", FOLDER / "includes", includes)
    scripts = {name: read_script(name, includes) for name in script_names()}
    exports = {module_name(name): exported_names(text) for name, text in includes.items()}
    for name, text in includes.items():
        check_modules(name, text, exports, own=module_name(name))
    for name, text in scripts.items():
        check_modules(name, text, exports)
    modules = (MODULE.format(name=module_name(name), body=code_of(text)) for name, text in includes.items())
    functions = (function_of(name, text) for name, text in scripts.items())
    return "".join((*modules, *functions, GREETING))


def code_of(text: str) -> str:
    """The Lua text without its comment lines."""
    return _COMMENT.sub("", text)


def module_name(include: str) -> str:
    """The name of the include's table in other files; capitalized, unlike their locals."""
    return include.capitalize()


def exported_names(text: str) -> frozenset[str]:
    """The names in the table that an include returns."""
    table = _TABLE.search(text)
    return frozenset(_FIELD.findall(table[1]) if table else _MEMBER.findall(code_of(text)))


def check_modules(name: str, text: str, exports: Mapping[str, frozenset[str]], own: str = "") -> None:
    """Raise BadScript if a file uses other includes than it lists, or a name that an include does not export.

    exports: names by module. own: the file's own module, if it is an include.
    """
    used = {use for use in _USE.findall(_TEXT.sub("''", re.sub("--.*", "", text))) if use[0] in exports}
    listed = set(map(module_name, _INCLUDE.findall(text)))
    if differing := listed ^ ({module for module, _ in used} - {own}):
        raise BadScript(f"{name}.lua: its includes differ from what it uses: {', '.join(sorted(differing))}")
    for module, part in sorted(used):
        if part not in exports[module]:
            raise BadScript(f"{name}.lua: {module} has no {part}")


def read_script(name: str, includes: dict[str, str]) -> str:
    """Read a script, and add the texts of its includes to `includes`, dependencies first.

    Raises BadScript if its head has no contract, or an include is missing.
    """
    text = read_text(FOLDER / f"{name}.lua")
    head = text.split("\n\n")[0]
    for part in CONTRACT:
        if f"-- {part}: " not in head:
            raise BadScript(f"{name}.lua: its head has no '{part}:'")
    read_parameters(name, text)
    add_includes(text, FOLDER / "includes", includes)
    return text


def function_of(name: str, text: str) -> str:
    """The script as a function of the library."""
    flags = "" if name in GROWING else "'allow-oom'"
    arguments = read_parameters(name, text).lua(OWN_ARGUMENTS + 1)
    since_us, clock_us = (Parameter("number", True).lua(f"ARGV[{at + 1}]") for at in range(OWN_ARGUMENTS))
    return FUNCTION.format(
        name=name, flags=flags, since_us=since_us, clock_us=clock_us, arguments=arguments,
        body=with_locals(code_of(text)),
    )  # fmt: skip


@cache
def parameters_of(name: str) -> Record:
    """The script's arguments, of its head. Raises BadScript."""
    return read_parameters(name, read_text(FOLDER / f"{name}.lua"))


def read_text(path: Path) -> str:
    """Read a Lua file. Raises BadScript if it is missing, or does not begin with a comment."""
    if not path.exists():
        raise BadScript(f"{path.name} is missing")
    text = path.read_text()
    if not text.startswith("-- "):
        raise BadScript(f"{path.name}: must begin with a comment that states its purpose")
    return text


def add_includes(text: str, folder: Path, includes: dict[str, str]) -> None:
    """Add the includes of a Lua text to `includes`, by name, dependencies first."""
    for name in _INCLUDE.findall(text):
        if name not in includes:
            include = read_text(folder / f"{name}.lua")
            add_includes(include, folder, includes)
            includes[name] = include


def library_name(code: str, database: int = 0) -> str:
    """The library's name, from a hash of its code, so that workers of two versions each call their own.

    database: number of the Redis database: the fleet's clock in a library's memory belongs to one database.
    """
    name = f"{LIBRARIES}{hashlib.sha1(code.encode(), usedforsecurity=False).hexdigest()[:12]}"
    return f"{name}_{database}" if database else name


def library_text(name: str, code: str) -> str:
    """The text for FUNCTION LOAD."""
    return f"#!lua name={name}\nlocal LIBRARY = '{name}'\n{with_local_names(code)}"


def with_local_names(code: str) -> str:
    """Replace table lookups by locals, such as `Slots.read_slot` by `Slots_read_slot`.

    The lookups took 4 % of a release-and-claim's instructions. Redis gives a library its globals only after
    loading, so each function of the library calls `bind_globals` first. code: includes and scripts in the
    form of `MODULE` and `FUNCTION`.
    """
    names = sorted(set(_GLOBAL.findall(code)))
    head = _HEAD.format(globals=", ".join(names), locals=", ".join(map(_local, names)))
    return head + _GLOBAL.sub(lambda use: _local(use[0]), _CHUNK.sub(_with_imports, code))


def _local(name: str) -> str:
    return name.replace(".", "_")


def _with_imports(chunk: re.Match[str]) -> str:
    """An include or a script, with a local for each function of an include that it uses.

    `Call` stays a table, because its values change.
    """
    own = ("Call", chunk["module"])
    used = sorted({use[0] for use in _USE.finditer(chunk["body"]) if use[1] not in own})
    if not used:
        return chunk[0]
    body = _USE.sub(lambda use: _local(use[0]) if use[0] in used else use[0], chunk["body"])
    imports = f"local {', '.join(map(_local, used))} = {', '.join(used)}\n"
    if chunk["module"]:
        return f"{chunk['begin']}{imports}{body}"
    return f"do\n{imports}{chunk['begin']}{body}end\n"


def read_parameters(script: str, text: str) -> Record:
    """The arguments in the head of a script.

    text: of its file. Raises BadScript if the head cannot be parsed, or differs from the code's arguments.
    """
    found = _ARGS.search(text.split("\n\n", maxsplit=1)[0])
    if found is None:
        raise BadScript(f"{script}.lua: its head has no 'Args:' before 'Returns:'")
    lines = found[1].strip().splitlines()
    parameters = _parameters(f"{script}.lua", [] if lines == ["none"] else lines, _OF_SCRIPT)
    _check_code(script, _REMARK.sub("", text), parameters)
    return Record(f"{script}.lua", parameters)


def _parameters(owner: str, lines: Sequence[str], indent: str) -> dict[str, Parameter]:
    """Parse argument lines; lines that are indented further are fields of the record above. Raises
    BadScript."""
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
            record = Record(name, _parameters(name, list(rows), _OF_RECORD))
        for name in match[1].split(", "):
            if name in parameters:
                raise BadScript(f"{owner}: the argument {name} is named twice")
            parameters[name] = Parameter(match[2], bool(match[3]), record)
    kinds = [one.kind for one in parameters.values()]
    if any(kind not in SCALARS for kind in (kinds if indent == _OF_RECORD else kinds[:-1])):
        raise BadScript(f"{owner}: only the last argument may be a list or a record")
    return parameters


def with_locals(code: str) -> str:
    """The code of a script with the locals of `Record.lua` in place of `args.name`."""
    return _USED.sub(r"args_\1", code)


def _check_code(script: str, code: str, parameters: Mapping[str, Parameter]) -> None:
    if numbered := re.search(r"\b(ARGV|KEYS)\b", code):
        raise BadScript(f"{script}.lua: {numbered[1]} must not be used: arguments and keys have names")
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
