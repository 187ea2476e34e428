"""Arguments have names on both sides, and a wrong one is found before or at the call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpus.leasing.arguments import BadCall, BadScript, Parameter, Record, read_parameters
from gpus.leasing.scripts import FOLDER, parameters_of, script_names

from .rig import POOL, Rig

HEAD = "-- Why: w\n-- Keys: none\n-- Args:\n{args}-- Returns: r\n{code}"


def read(args: str, code: str) -> Any:
    return read_parameters("a", HEAD.format(args=args, code=code))


@pytest.mark.parametrize("name", script_names())
def test_every_head_names_what_its_code_uses(name: str) -> None:
    parameters_of(name)
    assert "ARGV" not in (FOLDER / f"{name}.lua").read_text()


def test_a_head_is_read() -> None:
    rows = (
        "--   rows: records, in order\n--     job, model: text\n--     epoch: number or nil, of the lease\n"
    )
    found = read(f"--   pool: text\n{rows}--   names: texts\n", "return args.pool, args.rows, args.names")
    assert list(found.parameters) == ["pool", "rows", "names"]
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
        ("--   pool: text\n", "return args.pool .. ARGV[2]", "ARGV is not used"),
        ("--   pool: text\n", "return args.pool .. KEYS[1]", "KEYS is not used"),
        ("--   pool: words\n", "return args.pool", "cannot read the argument"),
        ("--   pool: text\n--   pool: text\n", "return args.pool", "named twice"),
        (
            "--   rows: records\n--     job: text\n",
            "for _, row in ipairs(args.rows) do f(row.jobs) end",
            "names no row.jobs",
        ),
        ("--     job: text\n", "return 1", "cannot read the argument"),
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
    "names": ["a"],
    "rows": [{"job": "j", "epoch": 1}],
    "warm": None,
}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"pol": "p"}, "no argument is named pol"),
        ({"pool": None}, "a.lua: .*must be a string, not None"),
        ({"pool": 1}, "a.lua: .*must be a string, not int"),
        ({"warm": 1}, "a.lua: .*must be a string, not int"),
        ({"count": "1"}, "a number is expected, not '1'"),
        ({"count": True}, "a number is expected, not True"),
        ({"count": None}, "a number is expected, not None"),
        ({"names": [1]}, "must be a string, not int"),
        ({"names": "a"}, "a list of texts is expected, not 'a'"),
        ({"rows": [{"job": "j"}]}, "a.lua, rows: epoch is missing"),
        ({"rows": [{"job": "j", "epoch": "1"}]}, "a.lua, rows: a number is expected"),
        ({"rows": [{"job": "j", "epoch": 1, "model": "m"}]}, "no argument is named model"),
    ],
)
def test_a_call_with_other_arguments_is_refused(change: dict[str, Any], why: str) -> None:
    head = (
        "--   pool: text\n--   count: number\n--   names: texts\n--   warm: text or nil\n"
        "--   rows: records\n--     job: text\n--     epoch: number\n"
    )
    code = "return args.pool, args.count, args.names, args.rows, args.warm"
    found = read(head, code)
    assert json.loads(found.to_json(RIGHT)) == {name: one for name, one in RIGHT.items() if one is not None}
    with pytest.raises(BadCall, match=why):
        found.to_json(RIGHT | change)
    with pytest.raises(BadCall, match="warm is missing"):
        found.to_json({name: value for name, value in RIGHT.items() if name != "warm"})


def test_the_store_refuses_a_wrong_name_before_anything_is_sent(rig: Rig) -> None:
    rig.client.config_resetstat()
    with pytest.raises(BadCall, match="no argument is named attempt_id"):
        rig.leases._scripts.run("granted", worker="w", attempt_id="a")
    assert "cmdstat_fcall" not in rig.client.info("commandstats")


def sent(kind: str, value: Any) -> str:
    return Record("a", {kind: Parameter(kind, False)}).to_json({kind: value})


@pytest.mark.parametrize("text", ["", "plain", 'quo"te\\', "naïve ☕ 🚀", "nul\0line\n", "',a,b,'"])
def test_a_text_arrives_as_it_was_given(rig: Rig, text: str) -> None:
    said = {"text": text}
    rig.leases.beat("s1", said)
    assert rig.leases.beats(["s1"])["s1"].said == said
    assert rig.client.eval("return cjson.decode(ARGV[1]).text", 0, sent("text", text)) == text


@pytest.mark.parametrize("number", [0, -1, 1_700_000_000_123_456, 0.1, 1e-9, 123456.789012345, 1e300])
def test_a_number_arrives_to_the_last_digit(rig: Rig, number: float) -> None:
    script = "return string.format('%.17g', cjson.decode(ARGV[1]).number)"
    assert float(rig.client.eval(script, 0, sent("number", number))) == number


def test_a_slow_call_says_in_redis_log_what_it_was_asked(rig: Rig) -> None:
    rig.client.config_set("slowlog-log-slower-than", 0)
    rig.client.slowlog_reset()
    rig.leases.depth(POOL)
    rig.client.config_set("slowlog-log-slower-than", 10_000)
    assert any(b'"pool":"pool"' in entry["command"] for entry in rig.client.slowlog_get())
