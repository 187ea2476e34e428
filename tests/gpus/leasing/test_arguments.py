"""Arguments have names on both sides, and a wrong one is found before or at the call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpus.leasing.codec import BadCall
from gpus.leasing.library import FOLDER, BadScript, parameters_of, read_parameters, script_names, with_locals
from tests.gpus.leasing.lease_harness import LeaseHarness

HEAD = "-- Why: w\n-- Keys: none\n-- Args:\n{args}-- Returns: r\n{code}"


def read(args: str, code: str) -> Any:
    return read_parameters("a", HEAD.format(args=args, code=code))


@pytest.mark.parametrize("name", script_names())
def test_every_head_lists_the_arguments_of_its_code(name: str) -> None:
    parameters_of(name)
    assert "ARGV" not in (FOLDER / f"{name}.lua").read_text()


def test_a_head_is_read() -> None:
    rows = (
        "--   rows: records, in order\n--     job, model: text\n--     epoch: number or nil, of the lease\n"
    )
    found = read(f"--   pool: text\n{rows}", "return args.pool, args.rows")
    assert list(found.parameters) == ["pool", "rows"]
    fields = found.parameters["rows"].record.parameters
    assert {name: (one.kind, one.is_optional) for name, one in fields.items()} == {
        "job": ("text", False),
        "model": ("text", False),
        "epoch": ("number", True),
    }


@pytest.mark.parametrize(
    ("args", "code", "why"),
    [
        ("--   pool: text\n", "return 1", "differ in the arguments pool"),
        ("--   pool: text\n", "return args.pol", "differ in the arguments pol, pool"),
        ("--   pool: text\n", "return args.pool .. ARGV[2]", "ARGV must not be used"),
        ("--   pool: text\n", "return args.pool .. KEYS[1]", "KEYS must not be used"),
        ("--   pool: words\n", "return args.pool", "cannot read the argument"),
        ("--   pool: text\n--   pool: text\n", "return args.pool", "named twice"),
        (
            "--   rows: records\n--     job: text\n",
            "for _, row in ipairs(args.rows) do f(row.jobs) end",
            "names no row.jobs",
        ),
        ("--     job: text\n", "return 1", "cannot read the argument"),
        ("--   a: texts\n--   b: text\n", "return args.a, args.b", "only the last argument"),
        (
            "--   row: record\n--     job: text\n",
            "local row = args.row\nreturn row.jobs",
            "names no row.jobs",
        ),
    ],
)
def test_a_head_that_differs_from_its_code_is_refused(args: str, code: str, why: str) -> None:
    with pytest.raises(BadScript, match=why):
        read(args, code)


RIGHT: dict[str, Any] = {
    "pool": "p",
    "count": 1,
    "warm": None,
    "rows": [{"job": "j", "epoch": 1}, {"job": "k", "epoch": 2}],
}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"pol": "p"}, "no argument is named pol"),
        ({"pool": None}, "pool must be text, it is None"),
        ({"pool": 1}, "pool must be text, it is 1"),
        ({"warm": 1}, "warm must be text, it is 1"),
        ({"count": "1"}, "count must be number, it is '1'"),
        ({"count": True}, "count must be number, it is True"),
        ({"count": None}, "count must be number, it is None"),
        ({"rows": None}, "rows must be records, it is None"),
        ({"rows": [{"job": "j"}]}, "a.lua, rows: epoch is missing"),
        ({"rows": [{"job": "j", "epoch": "1"}]}, "a.lua, rows: epoch must be number"),
        ({"rows": [{"job": "j", "epoch": 1, "model": "m"}]}, "no argument is named model"),
    ],
)
def test_a_call_with_other_arguments_is_refused(change: dict[str, Any], why: str) -> None:
    head = (
        "--   pool: text\n--   count: number\n--   warm: text or nil\n"
        "--   rows: records\n--     job: text\n--     epoch: number\n"
    )
    found = read(head, "return args.pool, args.count, args.rows, args.warm")
    for _ in range(2):  # the second time the types are known
        assert found.values(RIGHT) == ["p", 1, "", "j", 1, "k", 2]
        with pytest.raises(BadCall, match=why):
            found.values(RIGHT | change)
        with pytest.raises(BadCall, match="warm is missing"):
            found.values({name: value for name, value in RIGHT.items() if name != "warm"})


def test_a_list_holds_texts_only() -> None:
    found = read("--   names: texts\n", "return args.names")
    assert found.values({"names": ("a", "b")}) == ["a", "b"]
    for names, why in (
        ([1], "names must contain texts"),
        ("a", "names must be texts"),
        (None, "names must be texts"),
    ):
        with pytest.raises(BadCall, match=why):
            found.values({"names": names})


def test_lua_reads_in_the_order_in_which_python_writes(harness: LeaseHarness) -> None:
    head = (
        "--   pool: text\n--   count: number\n--   warm, rest: text or nil\n"
        "--   rows: records\n--     job: text\n--     epoch: number or nil\n"
    )
    code = "return cjson.encode({ args.pool, args.count + 1, args.warm or 0, args.rest or 0, args.rows })"
    found = read(head, code)
    rows = [{"job": "j", "epoch": None}, {"job": "k", "epoch": 2.5}]
    values = found.values({"pool": "p", "count": 1, "warm": None, "rest": "r", "rows": rows})
    answer = harness.client.eval(found.lua(1) + with_locals(code), 0, *values)
    assert json.loads(answer) == ["p", 2, 0, "r", [{"job": "j"}, {"job": "k", "epoch": 2.5}]]


def test_the_store_refuses_a_wrong_name_before_anything_is_sent(harness: LeaseHarness) -> None:
    harness.client.config_resetstat()
    with pytest.raises(BadCall, match="no argument is named attempt_id"):
        harness.leases._scripts.run("granted", worker="w", attempt_id="a")
    assert "cmdstat_fcall" not in harness.client.info("commandstats")
