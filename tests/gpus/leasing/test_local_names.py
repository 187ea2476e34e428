"""The loaded library has no table lookups of functions, and handles calls before its greeting."""

from __future__ import annotations

import re
from typing import Any

import pytest
from redis.exceptions import ResponseError

from gpus.leasing.library import (
    FUNCTION,
    LIBRARIES,
    MODULE,
    library_code,
    library_text,
    script_names,
    with_local_names,
)
from gpus.leasing.scripts import Client


def test_functions_of_includes_and_globals_become_locals() -> None:
    include = MODULE.format(
        name="Slots", body="local N = 1\nreturn {\n  n = function() return next({}) end,\n}\n"
    )
    script = FUNCTION.format(
        name="a",
        flags="",
        since_us="1",
        clock_us="2",
        arguments="",
        body="return Slots.n(math.max(Call.now, 'x'.next))\n",
    )
    code = with_local_names(include + script)
    assert "do\nlocal Slots_n = Slots.n\nregister_function{" in code
    assert "return Slots_n(math_max(Call.now, 'x'.next))" in code
    assert "local math_max, next\n" in code


def test_only_values_of_the_call_are_looked_up_in_tables() -> None:
    head, code = library_text("x", library_code()).split("= read_globals() end\n")
    assert not re.search(r"(?<!\w)(redis|math|cmsgpack|string|table)\.", code)
    kept = {use for use in re.findall(r"\b([A-Z][a-z]\w*)\.\w+(?=[(\[.])", code)}
    assert kept <= {"Keys", "Call"}
    assert head.count("redis.call") == 1
    for name in script_names():
        assert f"'_{name}'" in code


def test_an_ungreeted_library_refuses_calls_and_reports_its_idle_time(client: Client) -> None:
    server: Any = client
    name = f"{LIBRARIES}ungreeted"
    server.function_load(library_text(name, library_code()), replace=True)
    try:
        with pytest.raises(ResponseError, match=r"^UNGREETED this process has not received its run id"):
            server.fcall(f"{name}_pools", 1, "x:", "", "")
        assert server.fcall(f"{name}_idle", 0) > 1_000_000
    finally:
        server.function_delete(name)
