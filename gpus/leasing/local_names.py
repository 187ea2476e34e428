"""Makes locals of the names that the Lua library looks up in tables: `Slots_read_slot` of `Slots.read_slot`,
`redis_call` of `redis.call`. Looked up at every use they took 4 % of a release-and-claim's instructions.
"""

from __future__ import annotations

import re

_USE = re.compile(r"\b([A-Z][a-z]\w*)\.(\w+)")
_CHUNK = re.compile(
    r"^(?P<begin>local (?P<module>[A-Z]\w*) = \(function\(\)\n|register_function\{)"
    r"(?P<body>.*?^end(?:\)\(\)| \})\n)",
    re.MULTILINE | re.DOTALL,
)
_GLOBAL = re.compile(
    r"(?<![\w.:])((?:cmsgpack|math|redis|string|table)\.\w+"
    r"|(?:ipairs|next|pairs|tonumber|tostring|unpack)\b)"
)
_HEAD = """local register_function = redis.register_function
local function read_globals() return {globals} end
local {locals}
local function bind_globals() {locals} = read_globals() end
"""


def with_local_names(code: str) -> str:
    """code: includes and scripts as `scripts.MODULE` and `scripts.FUNCTION` write them.

    Redis shows globals to a library only once it is loaded: what is called first calls `bind_globals`."""
    names = sorted(set(_GLOBAL.findall(code)))
    head = _HEAD.format(globals=", ".join(names), locals=", ".join(map(_local, names)))
    return head + _GLOBAL.sub(lambda use: _local(use[0]), _CHUNK.sub(_with_imports, code))


def _local(name: str) -> str:
    return name.replace(".", "_")


def _with_imports(chunk: re.Match[str]) -> str:
    """An include or a script, with a local for each function that it uses of an include. `Call` holds values
    that change, and stays a table."""
    own = ("Call", chunk["module"])
    used = sorted({use[0] for use in _USE.finditer(chunk["body"]) if use[1] not in own})
    if not used:
        return chunk[0]
    body = _USE.sub(lambda use: _local(use[0]) if use[0] in used else use[0], chunk["body"])
    imports = f"local {', '.join(map(_local, used))} = {', '.join(used)}\n"
    if chunk["module"]:
        return f"{chunk['begin']}{imports}{body}"
    return f"do\n{imports}{chunk['begin']}{body}end\n"
