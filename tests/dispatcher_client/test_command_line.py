"""`python3 -m dispatcher_client` in an empty environment."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import dispatcher_client
from dispatcher_client.submit_options import add_submit_options
from tests.dispatcher_client.scripted import Scripted, problem, streams

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(server: Scripted, tmp_path: Path) -> Run:
    """The package alone, in a Python without third-party packages."""
    shutil.copytree(Path(dispatcher_client.__file__).parent, tmp_path / "alone" / "dispatcher_client")

    def run(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DISPATCHER_")}
        return subprocess.run(
            [sys.executable, "-S", "-m", "dispatcher_client", *arguments],
            cwd=tmp_path / "alone",
            env={**kept, "DISPATCHER_URL": server.url, "DISPATCHER_API_KEY": "k", **environment},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def test_submit_wait_stream_cancel(server: Scripted, run: Run) -> None:
    done = run(
        "submit", "flux", '{"n": 1}', "--tag", "a", "--tag", "b", "--priority", "1", "--metadata", '{"x": 2}'
    )
    assert (done.returncode, json.loads(done.stdout)["job_id"]) == (0, "JOB0"), done.stderr
    body = {"model": "flux", "payload": {"n": 1}, "tags": ["a", "b"], "priority": 1, "metadata": {"x": 2}}
    assert server.asked[0].body == body
    assert run("submit", "flux", "-", "--idempotency-key", "k7", stdin='{"n": 2}').returncode == 0
    assert (server.asked[1].key, server.asked[1].body["payload"]) == ("k7", {"n": 2})

    server.status = "completed"
    assert json.loads(run("wait", "J", "--timeout", "5").stdout)["status"] == "completed"
    server.status = "failed"
    assert run("wait", "J").returncode == 1
    server.status = "running"
    late = run("wait", "J", "--timeout", "0")
    assert (late.returncode, json.loads(late.stderr)["code"]) == (5, "not_over")

    server.will(streams(b"id: 1\nevent: queued\ndata: {}\n\nevent: done\ndata: {}\n\n"))
    events = [json.loads(line) for line in run("stream", "J").stdout.splitlines()]
    assert [event["type"] for event in events] == ["queued", "done"]
    assert json.loads(run("cancel", "J").stdout) == {"job_id": "J", "outcome": "cancelled"}


def test_each_kind_of_error_has_its_exit_status(
    server: Scripted, run: Run, nowhere: str, spool: Path
) -> None:
    server.will(problem(422, "unknown_model", pointer="/model"))
    refused = run("submit", "nix", "{}")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert json.loads(refused.stderr)["errors"][0]["pointer"] == "/model"

    assert run("--retry-seconds", "0", "wait", "J", DISPATCHER_URL=nowhere).returncode == 3
    unanswered = run("--retry-seconds", "0", "submit", "flux", "{}", DISPATCHER_URL=nowhere)
    assert unanswered.returncode == 3
    assert json.loads(unanswered.stderr)["idempotency_key"]

    for wrong in (["submit", "flux", "{no json"], ["submit"], []):
        assert run(*wrong).returncode == 2
    assert run("cancel", "J", DISPATCHER_API_KEY="").returncode == 2


def test_flush(server: Scripted, run: Run, nowhere: str, spool: Path) -> None:
    kept = run(
        "--retry-seconds", "0", "submit", "flux", "{}", DISPATCHER_URL=nowhere, DISPATCHER_SPOOL=str(spool)
    )
    assert (kept.returncode, json.loads(kept.stderr)["code"]) == (4, "spooled")
    options = ("--spool", str(spool), "--retry-seconds", "0")
    away = run(*options, "flush", DISPATCHER_URL=nowhere)
    assert (away.returncode, json.loads(away.stdout)["left"]) == (3, 1)
    sent = run(*options, "flush")
    assert (sent.returncode, json.loads(sent.stdout)) == (0, {"sent": 1, "refused": 0, "left": 0})
    assert list(server.jobs) == [json.loads(kept.stderr)["idempotency_key"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--priority", "true"], "argument --priority: must be a whole number, not 'true'"),
        (["--max-retries", "1.5"], "argument --max-retries: must be a whole number, not '1.5'"),
        (["--deadline-seconds", "soon"], "argument --deadline-seconds: must be a number, not 'soon'"),
    ],
)
def test_an_option_that_is_no_number_is_refused_by_its_name(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_submit_options(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(words)
    assert capsys.readouterr().err.rstrip().endswith(said)
    assert "true" not in parser.format_help()


def test_a_file_that_cannot_be_read_or_written_is_named(run: Run, tmp_path: Path) -> None:
    missing = run("upload", str(tmp_path / "film.mp4"))
    assert missing.returncode == 2
    assert json.loads(missing.stderr) == {
        "code": "file_error",
        "detail": f"{tmp_path / 'film.mp4'}: No such file or directory",
    }
    folder = run("upload", str(tmp_path))
    assert (folder.returncode, "Is a directory" in json.loads(folder.stderr)["detail"]) == (2, True)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("localhost:8000", "must be http(s)://host[:port], not 'localhost:8000'"),
        ("http://h/api/v1", "the client adds /api/v1 itself"),
    ],
)
def test_a_wrong_url_is_wrong_usage(run: Run, url: str, why: str) -> None:
    refused = run("cancel", "J", DISPATCHER_URL=url)
    assert refused.returncode == 2
    assert why in refused.stderr
