"""Invalid options are refused in one line, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from verification.proving.faults.registry import FAULTS
from verification.proving.main import main, shares
from verification.proving.options import Options, read_options

KNOWN = ("kill_worker", "flush")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--faults", "kill_worker,nonsense"], "unknown fault nonsense; known are kill_worker, flush"),
        (["--faults", ","], "unknown fault ','"),
        (["--url", "http://x"], "--url needs --api-key"),
        (["--url", "http://x", "--api-key", "k", "--up-json", "up.json"], "give either"),
        (["--up-json", "/nowhere/up.json"], "there is no /nowhere/up.json"),
        (["--database", "mysql://x"], "--database is a postgresql:// URL"),
        (["--url", "http://x", "--api-key", "k", "--database", "own"], "that the trial starts itself"),
        (["--url", "http://x", "--api-key", "k", "--redis", "sentinel"], "that the trial starts itself"),
        (["--url", "http://x", "--api-key", "k", "--store", "s3"], "that the trial starts itself"),
    ],
)
def test_invalid_options_are_refused_in_one_line(arguments, says, capsys, monkeypatch):
    monkeypatch.delenv("DISPATCHER_API_KEY", raising=False)
    with pytest.raises(SystemExit) as refused:
        read_options(arguments, KNOWN)
    assert refused.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


@pytest.mark.parametrize("jobs", ["0", "-1", "many"])
def test_jobs_is_a_positive_number(jobs, capsys):
    with pytest.raises(SystemExit) as refused:
        read_options(["--jobs", jobs], KNOWN)
    assert refused.value.code == 2
    assert "is not a positive number" in capsys.readouterr().err


def test_the_command_itself_lists_every_fault(capsys):
    with pytest.raises(SystemExit):
        main(["--faults", "nonsense"])
    assert capsys.readouterr().err.strip().endswith(", ".join(FAULTS))


def test_given_options_are_read(tmp_path: Path):
    up_json = tmp_path / "up.json"
    up_json.write_text("{}")
    options = read_options(
        ["--jobs", "5", "--seed", "3", "--faults", "none", "--up-json", str(up_json)], KNOWN
    )
    assert options == Options(jobs=5, seed=3, faults=(), up_json=up_json)
    assert not options.starts_its_own
    assert read_options(["--faults", "flush,kill_worker"], KNOWN).faults == ("flush", "kill_worker")
    assert read_options([], KNOWN).faults is None


def test_every_fault_has_a_description():
    for name, fault in FAULTS.items():
        assert fault.name == name
        assert fault.expected
        assert fault.bound_seconds > 0
        assert fault.runs_once in ("all", "polled", "none")


def test_jobs_are_divided_among_faults_and_a_flush_gets_a_long_queue():
    names = ("kill_worker", "kill_web", "flush")
    share = shares(50_000, names)
    assert share == {"kill_worker": 12_666, "kill_web": 12_666, "flush": 10_000}
    assert sum(shares(100, tuple(FAULTS)).values()) <= 100
