"""Key names: the functions of `keys.py` and those of `keys.lua` are the same."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from gpus.leasing.keys import Keys
from gpus.leasing.library import FOLDER
from gpus.leasing.scripts import Client

LUA = (FOLDER / "includes" / "keys.lua").read_text()
IN_LUA = {
    name: re.findall(r"\w+", parameters)
    for name, parameters in re.findall(r"^function Keys\.(\w+)\(([^)]*)\)", LUA, re.MULTILINE)
    if name != "set_prefix"
}
IN_PYTHON = {name: function for name, function in vars(Keys).items() if not name.startswith("_")}
OPTIONAL = {"turn", "heads"}


def test_both_languages_name_the_same_keys_by_the_same_parts() -> None:
    in_python = {
        name: [part.removesuffix("_id") for part in inspect.signature(function).parameters if part != "self"]
        for name, function in IN_PYTHON.items()
    }
    assert in_python == IN_LUA
    assert len(IN_LUA) > 40


@pytest.mark.parametrize("name", sorted(IN_LUA))
def test_both_languages_make_the_same_key(client: Client, fleet: str, name: str) -> None:
    keys, server = Keys(fleet), client
    values = [f"part{number}" for number in range(len(IN_LUA[name]))]
    make = "Keys.set_prefix(KEYS[1])\nreturn Keys[ARGV[1]](unpack(ARGV, 2))"
    script = LUA.replace("return Keys\n", make)
    for given in (values, values[:-1]) if name in OPTIONAL else (values,):
        made: Any = server.eval(script, 1, keys.prefix, name, *given)
        assert made == getattr(keys, name)(*given)
        assert made.startswith(f"gpuq:{{{fleet}}}:"), "one hash tag: one node of a cluster holds all keys"


def test_a_key_consists_of_its_kind_and_its_parts_in_order() -> None:
    keys = Keys("main")
    assert keys.clock() == "gpuq:{main}:clock"
    assert keys.generation() == "gpuq:{main}:v6:generation"
    assert Keys("main", 5).slot("s1/0") == "gpuq:{main}:v5:slot:s1/0"
    assert keys.line("pool", 1, "flux", "t1") == "gpuq:{main}:v6:line:pool:1:flux:t1"
    assert keys.warm("pool", "001-ab", "flux", "h:1") == "gpuq:{main}:v6:warm:pool:001-ab:flux:h:1"
    assert (keys.turn("pool:1"), keys.turn("pool:1", "flux")) == (
        "gpuq:{main}:v6:turn:pool:1",
        "gpuq:{main}:v6:turn:pool:1:flux",
    )


def test_no_other_lua_file_builds_a_key() -> None:
    for path in FOLDER.rglob("*.lua"):
        code = re.sub(r"--.*", "", path.read_text())
        if path.stem not in ("keys", "call"):
            assert "prefix" not in code, path
        assert not re.search(r"\bKeys\.\w+ = ", code), f"{path} changes a key's name"
        if path.stem != "keys":
            assert not re.search(r"redis\.call\('(?!TIME')\w+', *'", code), f"{path} writes a key out"
