"""Invalid options are refused in one line, before anything is started."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.suite.main import benchmark, main
from benchmarks.suite.options import BENCHMARKS, read_options
from benchmarks.suite.peers import PEERS, STARLETTE, available_peers, pinned
from dispatcher_project.supervisor.data_folder import ROOT


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["speed"], "unknown benchmark speed; known are utilisation, submit"),
        (["--against", "celery,nobody"], "unknown peer nobody; known are celery, rq"),
        (["--against", ","], "--against names no peer"),
        (["--setup", "nobody"], "unknown peer nobody"),
        (["--rounds", "0"], "--rounds is a whole number above 0, at most 100"),
        (["--rounds", "1.5"], "--rounds is a whole number, not '1.5'"),
        (["--jobs", "-4"], "--jobs is a whole number above 0"),
        (["--seconds", "nan"], "--seconds is a number above 0"),
        (["--seconds", "long"], "--seconds is a number, not 'long'"),
        (["--database", "mysql://x"], "--database is a postgresql:// URL, `own` or `sqlite`"),
    ],
)
def test_invalid_options_are_refused_in_one_line(arguments, says, capsys):
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"bench: {says}")


def test_a_page_without_results_names_the_command_to_run(tmp_path: Path, capsys):
    assert main(["--page", "--report", str(tmp_path / "none")]) == 2
    assert "run `manage.py bench` first" in capsys.readouterr().err


def test_names_are_taken_once_and_in_order():
    found = read_options(["polling", "fleet", "polling", "--against", "huey, rq", "--setup"])
    assert (found.benchmarks, found.against) == (("polling", "fleet"), ("huey", "rq"))
    assert found.setup == tuple(available_peers())
    assert read_options(["--against", "none"]).against == ()
    assert read_options([]).against is None


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_named_on_the_command_line_is_there(name):
    assert callable(benchmark(name))


def test_every_peer_has_a_script_and_pinned_versions():
    assert set(pinned()) == {*PEERS, STARLETTE.name}
    for name, peer in available_peers().items():
        script = ROOT / "benchmarks" / "peers" / f"{name}.{'js' if peer.node else 'py'}"
        assert script.is_file()
        assert all("==" in one or "@" in one for one in pinned()[name])


def test_a_peer_that_is_not_set_up_names_the_command(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("DISPATCHER_DATA_DIR", str(tmp_path))
    assert PEERS["celery"].why_not() == "not set up: python3 manage.py bench --setup celery"
    folder = PEERS["celery"].folder
    folder.mkdir(parents=True)
    (folder / "set-up.json").write_text('["celery==1.0"]')
    assert PEERS["celery"].why_not().startswith("set up with other versions")


def test_a_peer_that_needs_node_reports_that_it_is_missing(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    peers = import_module("benchmarks.suite.peers")
    for why in (PEERS["bullmq"].why_not(), peers.set_up(PEERS["bullmq"])):
        assert why == "needs Node.js (node and npm), which this machine does not have"


@pytest.mark.parametrize("given", [["huey,rq"], ["huey, rq"], ["huey", "rq"], ["huey,", "rq"]])
def test_every_list_takes_commas_and_spaces(given: list[str]) -> None:
    assert read_options(["submit", "--against", *given]).against == ("huey", "rq")
    assert read_options(["--setup", *given]).setup == ("huey", "rq")


@pytest.mark.parametrize(
    "given", [["submit,fleet"], ["submit", "fleet"], ["--against", "huey", "submit", "fleet"]]
)
def test_benchmarks_too_and_behind_a_list_of_peers(given: list[str]) -> None:
    assert read_options(given).benchmarks == ("submit", "fleet")
