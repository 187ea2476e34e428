"""Hostile model code in a real model process under a real warden: as the worker's user, and as another
one."""

from __future__ import annotations

import atexit
import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.gpu_host.local.hostile import ESCAPES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what a process may not do is Linux' matter")
ROOT = Path(__file__).resolve().parents[3]
SYSTEM_PYTHON = "/usr/bin/python3"
SECRET = "postgresql://dispatcher:hunter2@db"
OTHER_USER = "nobody"


def _system_python_will_do() -> bool:
    ask = [SYSTEM_PYTHON, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    return Path(SYSTEM_PYTHON).exists() and subprocess.run(ask, check=False).returncode == 0


IS_ROOT = os.geteuid() == 0
OTHERS = pytest.mark.skipif(
    not (IS_ROOT and _system_python_will_do()),
    reason="needs root, and a Python 3.11 that all users may start",
)


@cache
def readable_code() -> Path:
    """A copy that every user may read, with its bytecode; the checkout may be in a private home."""
    folder = Path(tempfile.mkdtemp(prefix="hostile-code-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for package in ("gpu_host", "gpus", "foundation"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    files = ("__init__.py", "gpu_host/__init__.py", *(f"gpu_host/local/{name}.py" for name in _OF_TESTS))
    for name in files:
        target = folder / "tests" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "tests" / name, target)
    # else each of the model processes, of which every test starts some, would compile all that it imports
    subprocess.run([SYSTEM_PYTHON, "-m", "compileall", "-q", folder], check=True, env=_beside_the_sources())
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    return folder


def _beside_the_sources() -> dict[str, str]:
    """An environment in which Python looks for bytecode where a copy has it."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPYCACHEPREFIX"}


_OF_TESTS = ("__init__", "hostile", "hostile_box")


class Box:
    """A worker and its model process. who: see `WHO`."""

    def __init__(self, who: str, **limits: Any) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hostile-"))
        self.secrets = self.folder / "secrets.json"
        self.secrets.write_text(SECRET)
        self.secrets.chmod(0o600)
        is_plain = who == "plain user"
        if is_plain:
            for path in (self.folder, self.secrets):
                shutil.chown(path, OTHER_USER)
        self.folder.chmod(0o711)
        python = SYSTEM_PYTHON if who != "same user" else sys.executable
        user = OTHER_USER if who == "another user" else ""
        given = {"environment": ["HF_TOKEN"], **limits}
        self._process = subprocess.Popen(
            [python, "-m", "tests.gpu_host.local.hostile_box", str(self.folder), user, json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT if who == "same user" else readable_code(),
            user=OTHER_USER if is_plain else None,
            group=pwd.getpwnam(OTHER_USER).pw_gid if is_plain else None,
            extra_groups=[] if is_plain else None,
            env={
                **(os.environ if who == "same user" else _beside_the_sources()),
                "DATABASE_URL": SECRET,
                "REDIS_URL": SECRET,
                "DISPATCHER_SECRET_KEY": SECRET,
                "HF_TOKEN": "given",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, do: str, **payload: Any) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"do": do, **payload}) + "\n")
        stdin.flush()
        line = stdout.readline()
        assert line, "the worker ended"
        return json.loads(line)

    def is_healthy(self) -> bool:
        """Return True if a run ends normally."""
        return self.run("is_healthy")["error"] is None

    def close(self) -> None:
        self._process.communicate('{"end": true}\n', timeout=60)
        shutil.rmtree(self.folder, ignore_errors=True)


WHO = [
    "same user",
    pytest.param("plain user", marks=OTHERS),
    pytest.param("another user", marks=OTHERS),
]
OF_ONE_USER = pytest.mark.parametrize(
    "box",
    [
        "same user",
        pytest.param("plain user", marks=[OTHERS, pytest.mark.by_hand]),
        pytest.param("another user", marks=[OTHERS, pytest.mark.by_hand]),
    ],
    indirect=True,
    scope="module",
)
"""For frames that the worker reads from the pipe: the reader is the same for all users."""


@pytest.fixture(scope="module", params=WHO)
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    """plain user: the worker is not root, and models have its user. another user: the worker is root, and
    models have another user."""
    box = Box(request.param)
    box.who = request.param  # type: ignore[attr-defined]
    yield box
    box.close()


@pytest.fixture(scope="module")
def around(box: Box) -> Any:
    """What the model finds around it."""
    found = box.run("surroundings", kill=True)
    assert found["error"] is None, found
    return found["result"]


def test_no_secret_is_in_its_environment(around: Any) -> None:
    assert SECRET not in str(around["environment"])
    assert around["environment"]["HF_TOKEN"] == "given"
    assert around["environment"]["PATH"]


def test_it_inherits_its_pipe_and_nothing_else(around: Any) -> None:
    kinds = sorted(target.partition(":")[0] for target in around["descriptors"].values())
    assert set(kinds) <= {"/dev/null", "pipe", "socket", "gone"} | {
        target for target in around["descriptors"].values() if target.startswith("/proc/")
    }
    assert kinds.count("socket") == 1
    assert sorted(kinds)[:1] == ["/dev/null"] or kinds.count("/dev/null") == 1
    assert kinds.count("pipe") == 2  # standard output and error


def test_worker_and_warden_can_be_neither_read_nor_traced(box: Box, around: Any) -> None:
    """Root as the same user may all; where models run as root nothing helps but another user."""
    if box.who == "same user" and IS_ROOT:  # type: ignore[attr-defined]
        pytest.skip("root reads everything")
    assert {what: said for what, said in around["of"].items() if said != "PermissionError"} == {}
    assert set(around["trace"].values()) == {"Operation not permitted"}


def test_another_user_can_not_end_worker_and_warden(box: Box, around: Any) -> None:
    if box.who != "another user":  # type: ignore[attr-defined]
        pytest.skip("the same user ends its processes")
    assert around["kill"] == {"worker": "PermissionError", "warden": "PermissionError"}


def test_it_gains_no_rights_and_leaves_no_core(around: Any) -> None:
    assert around["status"]["NoNewPrivs"].strip() == "1"
    assert around["limits"]["CORE"] == [0, 0]
    assert around["limits"]["NOFILE"][1] <= 65_536
    assert int(around["oom"]) >= 500


def test_another_user_reads_no_secrets(box: Box) -> None:
    said = box.run("reads", paths=[str(box.secrets), str(box.folder)])["result"]
    if box.who == "another user":  # type: ignore[attr-defined]
        assert set(said.values()) == {"PermissionError"}
    else:
        assert said[str(box.secrets)] == SECRET  # as docs/reference/model_code.md says


def test_another_user_has_its_groups_its_home_and_no_way_back(box: Box, around: Any) -> None:
    if box.who != "another user":  # type: ignore[attr-defined]
        pytest.skip("it is no other user")
    entry = pwd.getpwnam(OTHER_USER)
    assert box.run("is_healthy")["result"] == {"uid": entry.pw_uid, "home": entry.pw_dir}
    assert around["groups"] == sorted(os.getgrouplist(OTHER_USER, entry.pw_gid))
    assert box.run("setuid")["result"] == "PermissionError"


def test_its_files_go_where_it_may_write(box: Box) -> None:
    written = Path(box.run("writes")["result"])
    assert (written / "mine.txt").read_text() == "x"
    assert not stat.S_IMODE(written.parent.stat().st_mode) & 0o077


# -- frames -------------------------------------------------------------------------------------------


@OF_ONE_USER
@pytest.mark.parametrize("what", ["pickle", "text", "list", "deep", "utf8"])
def test_bytes_that_are_no_frame_end_its_process(box: Box, what: str) -> None:
    said = box.run("sends_bytes", what=what)
    assert said["error"] == "server_lost"
    assert "protocol" in said["message"]
    assert not (box.folder / "pwned").exists()
    assert box.is_healthy()


@pytest.mark.parametrize("claims", [2**32 - 1, 200 * 1024 * 1024])
@OF_ONE_USER
def test_a_frame_larger_than_a_result_may_be_is_not_read(box: Box, claims: int) -> None:
    before = box.run("is_healthy")["peak"]
    said = box.run("huge", claims=claims, mib=150)
    assert said["error"] == "server_lost"
    assert "bytes" in said["message"]
    assert said["peak"] - before < 20_000  # KiB, of 150 MiB that were sent
    assert box.is_healthy()


@pytest.mark.parametrize(
    "frame",
    [
        {"said": "ready", "models": "x"},
        {"said": "never {}"},
        {"said": ["x"]},
        {},
        {"said": "ended", "failure": "text", "result": 1},
        {"said": "ended", "failure": {"code": ["x"], "text": {}, "trace": 5}},
        {"said": "heard", "kind": "progress", "value": "much"},
        {"said": "heard", "kind": "log", "value": "text"},
        {"said": "heard", "kind": ["x"], "value": 1},
    ],
)
@OF_ONE_USER
def test_frames_of_a_wrong_shape_harm_no_worker(box: Box, frame: Any) -> None:
    said = box.run("sends_for_itself", frames=[frame], limit=1.0)
    assert said["error"] in ("server_lost", "timeout", "run_failed")
    assert said["heard"] == []
    assert box.is_healthy()


@OF_ONE_USER
def test_a_failure_is_cut_and_storable(box: Box) -> None:
    failure = {"code": "bad_input", "text": "x\0\ud800" * 100_000, "trace": "y" * 10_000}
    said = box.run("sends_for_itself", frames=[{"said": "ended", "failure": failure}])
    assert said["error"] == "bad_input"
    assert len(said["message"]) <= 500
    assert said["message"].startswith("x\\x00\\ud800x")


@OF_ONE_USER
def test_unsolicited_answers_are_not_kept(box: Box) -> None:
    said = box.run("floods", said="name-{}")
    assert said["error"] == "server_lost"
    before = said["peak"]
    said = box.run("floods", said="ended", limit=2.0)  # of a run that is none
    assert said["error"] == "timeout"
    assert said["peak"] - before < 20_000
    assert box.is_healthy()


def log_texts(said: Any) -> list[str]:
    parts = [value[0] for _, kind, value in said["heard"] if kind == "log"]
    return [text for lines in parts for _, text, *_ in lines]


@OF_ONE_USER
def test_log_lines_are_limited_in_the_worker_too(box: Box) -> None:
    """The process may send frames without the limits of its own side."""
    line = ["stdout", "x\x1b[2J" * 20, "", None, 0]
    frame = {"said": "heard", "kind": "log", "value": [line] * 200}
    said = box.run("sends_for_itself", frames=[frame] * 50, limit=2.0)
    texts = log_texts(said)
    assert 500 <= len(texts) < 3000, "of 10,000"
    assert all(text.isprintable() and len(text) <= 4096 for text in texts)
    assert box.is_healthy()


@pytest.mark.parametrize(
    "value", [[["stdout"]], [[1, 2, 3, 4, "x"]], [{"text": 5}], [None], ["stdout", []], 7, {}]
)
@OF_ONE_USER
def test_log_frames_of_a_wrong_shape_are_no_lines(box: Box, value: Any) -> None:
    said = box.run("sends_for_itself", frames=[{"said": "heard", "kind": "log", "value": value}], limit=1.0)
    assert log_texts(said) in ([], ["stdout"])
    assert box.is_healthy()


@OF_ONE_USER
def test_output_of_a_run_is_limited_in_the_worker_too(box: Box) -> None:
    said = box.run("chatters", times=5000)
    assert said["result"] == "said"
    assert len([one for one in said["heard"] if one[1] == "partial"]) <= 200 * 20


@OF_ONE_USER
def test_no_result_of_another_workers_run_is_taken(box: Box) -> None:
    forged = {"said": "ended", "attempt": "of-another-worker", "failure": None, "result": "forged"}
    said = box.run("sends", frames=[forged])
    assert said["result"] == "its own"


def test_a_child_of_a_model_holds_no_end_of_the_frames(box: Box) -> None:
    """It could read the next run's order, which the model would never get."""
    assert box.run("forks_once")["result"] == [True, False]


@OF_ONE_USER
def test_half_a_frame_blocks_no_other_run(box: Box) -> None:
    said = box.run("half", limit=1.0)
    assert said["error"] == "timeout"
    assert box.is_healthy()


def test_a_process_that_stops_itself_is_ended(box: Box) -> None:
    said = box.run("deaf", limit=1.0)
    assert said["error"] == "timeout"
    assert box.is_healthy()


@OF_ONE_USER
def test_no_command_for_a_terminal_reaches_the_log(box: Box) -> None:
    said = box.run("escapes", prints=True)
    assert said["error"] == "bad_input"
    texts = log_texts(said) + said["lines"]
    assert len(texts) >= 2, "standard output, and ctx.log"
    assert all(text.isprintable() for text in texts)
    assert ESCAPES not in "".join(texts)


@OF_ONE_USER
def test_endless_output_is_read_at_a_limited_rate(box: Box) -> None:
    said = box.run("prints", seconds=2.0)
    assert said["result"] < 40_000_000  # bytes; a pipe takes gigabytes a second
    assert len(log_texts(said) + said["lines"]) < 500


# -- resources ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=WHO)
def narrow(request: pytest.FixtureRequest) -> Iterator[Box]:
    box = Box(request.param, open_files=64, file_bytes=100_000, memory_mb=2000)
    yield box
    box.close()


def test_its_limits_are_those_of_the_operator(narrow: Box) -> None:
    assert narrow.run("opens", most=1000)["result"] < 64
    assert narrow.run("allocates", mib=10)["result"] == 10 << 20
    assert narrow.run("allocates", mib=4000)["error"] == "out_of_memory"
    said = narrow.run("fills", bytes=1_000_000)
    assert said["error"] in ("run_failed", "server_lost")
    assert narrow.is_healthy()


@OTHERS
def test_another_user_starts_no_more_processes_than_it_may() -> None:
    """As root no such limit holds; and the user may have others."""
    box = Box("another user", processes=40)
    try:
        assert box.run("forks", most=200)["result"] <= 40
        assert box.is_healthy()
    finally:
        box.close()
