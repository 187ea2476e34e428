"""The head of a script lists the keys that the script and its includes can touch."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from gpus.leasing.library import FOLDER, script_names
from tests.gpus.leasing.lease_harness import POOL, WORKER, LeaseHarness
from tests.gpus.leasing.lua_calls import OF_EACH_CALL, code_of, functions, keys_of


def listed(script: str) -> list[str]:
    """After `Keys:`, up to a remark."""
    found = re.search(r"^-- Keys: (.*\n(?:--   .*\n)*)", (FOLDER / f"{script}.lua").read_text(), re.MULTILINE)
    assert found is not None
    names = re.sub(r"\n(-- )?", " ", found[1]).partition(";")[0]
    return [] if names.strip() == "none" else re.findall(r"\w+", names)


@pytest.mark.parametrize("script", script_names())
def test_a_head_lists_each_key_that_the_script_can_touch(script: str) -> None:
    assert listed(script) == sorted(keys_of(script))


def test_all_functions_of_includes_are_looked_through() -> None:
    for path in (FOLDER / "includes").glob("*.lua"):
        names = set(re.findall(r"^local function (\w+)", path.read_text(), re.MULTILINE))
        module = path.stem.capitalize()
        assert {name for one, name in functions() if one == module} == names
        assert not re.search(
            r"^\s*Keys\.\w+\(", re.sub(r"(?ms)^local function.*?^end", "", code_of(path.read_text()))
        )


def test_python_and_lua_name_files_of_each_other_that_exist() -> None:
    root = FOLDER.parents[2]
    in_lua = {path: re.findall(r"[\w/]+/\w+\.py", path.read_text()) for path in FOLDER.rglob("*.lua")}
    python = [path for floor in ("gpus", "jobs") for path in (root / floor).rglob("*.py")]
    in_python = {path: re.findall(r"gpus/leasing/lua/[\w/]+\.lua", path.read_text()) for path in python}
    found = {name for names in (*in_lua.values(), *in_python.values()) for name in names}
    assert len(found) > 15
    assert {name for name in found if not (root / name).is_file()} == set()


def test_keys_touched_in_a_real_run_are_listed(harness: LeaseHarness) -> None:
    """The heads are compared with the code elsewhere; here with the keys that a real server reports."""
    harness.server(slots=2)
    harness.tenant("t1", most=2)
    done: dict[str, Any] = {}

    def claim() -> None:
        done["lease"] = harness.must_claim()

    def release() -> None:
        harness.release(done["lease"], gpu_seconds=1.0, next_attempt_id="next")

    steps: dict[str, Callable[[], Any]] = {
        "push": lambda: harness.push("a", "b", "c"),
        "claim": claim,
        "renew": lambda: harness.leases.renew(WORKER, [done["lease"]], []),
        "release": release,
        "confirm_ends": lambda: harness.leases.confirm_ends([done["lease"].ref]),
        "depth": lambda: harness.leases.depth(POOL),
        "slots": lambda: harness.leases.slots("s1"),
        "expired": harness.leases.expired,
        "spare_slots": lambda: harness.leases.spare_slots(POOL, "t1", ["flux"]),
        "queue_status": lambda: harness.leases.queue_status(POOL, harness.tickets["c"]),
        "forget_server": lambda: harness.leases.forget_server("s1"),
    }
    with harness.client.monitor() as monitor:
        for script, step in steps.items():
            step()
            harness.client.echo(f"after {script}")
            touched, command = set[str](), ""
            while f"after {script}" not in command:
                command = monitor.next_command()["command"]
                names = re.findall(rf"{re.escape(harness.prefix)}(\w+)", command)
                touched |= set() if command.startswith("FCALL") else set(names)
            assert len(touched) > 2, script
            assert touched <= {*listed(script), *OF_EACH_CALL}, script
