from __future__ import annotations

import os
import stat
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

import pytest

from dispatcher_project.supervisor import backup, data_folder, up
from dispatcher_project.supervisor.data_folder import (
    ROOT,
    AlreadyRunning,
    DataFolder,
    NotRunning,
    adopt_running_environment,
    without_data_dir,
)
from foundation.program import command_line


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    made = DataFolder(tmp_path / "var")
    made.create()
    return made


def test_only_one_up_per_folder(folder: DataFolder) -> None:
    code = (
        "import sys; from pathlib import Path; from dispatcher_project.supervisor.data_folder import *\n"
        "with DataFolder(Path(sys.argv[1])).locked(): pass"
    )
    command = [sys.executable, "-c", code, str(folder.path)]
    with folder.locked():
        done = subprocess.run(command, cwd=data_folder.ROOT, capture_output=True, text=True, check=False)
    assert f"runs on {folder.path} already (process {os.getpid()})" in done.stderr
    assert subprocess.run(command, cwd=data_folder.ROOT, check=False).returncode == 0


def test_a_folder_with_a_held_lock_is_running(folder: DataFolder) -> None:
    assert not folder.is_running()
    with folder.locked():
        assert folder.is_running()
        with pytest.raises(AlreadyRunning), folder.locked():
            pass
    assert not folder.is_running()


def test_secrets_are_for_the_owner_only(folder: DataFolder) -> None:
    folder.write("secrets.json", {"a": 1})
    folder.write("secrets.json", {"a": 2})
    assert folder.read("secrets.json") == {"a": 2}
    assert stat.S_IMODE((folder.path / "secrets.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    folder.path.chmod(0o755)
    folder.create()
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700, "also of one that was open to all"
    assert folder.read("none.json") == {}


def test_sockets_get_a_short_path(tmp_path: Path) -> None:
    deep = DataFolder(tmp_path / ("d" * 90))
    deep.create()
    assert len(str(deep.sockets / "callbacks.notify")) < 104
    assert deep.sockets == DataFolder(tmp_path / ("d" * 90)).sockets
    assert deep.sockets != DataFolder(tmp_path / ("e" * 90)).sockets
    deep.sockets.rmdir()


def test_commands_beside_a_running_up_get_its_settings(
    folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("environment.json", {"DJANGO_SETTINGS_MODULE": "x", "REDIS_URL": "y"})
    monkeypatch.setenv("DISPATCHER_DATA_DIR", str(folder.path))
    for name in ("DJANGO_SETTINGS_MODULE", "REDIS_URL"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    adopt_running_environment()
    assert "REDIS_URL" not in os.environ, "nothing runs: the file is left over"
    with folder.locked():
        adopt_running_environment()
    assert (os.environ["DJANGO_SETTINGS_MODULE"], os.environ["REDIS_URL"]) == ("x", "y")


def test_given_settings_are_kept(folder: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("environment.json", {"REDIS_URL": "y"})
    monkeypatch.setenv("DISPATCHER_DATA_DIR", str(folder.path))
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "mine")
    monkeypatch.setenv("REDIS_URL", "kept")
    with folder.locked():
        adopt_running_environment()
    assert os.environ["REDIS_URL"] == "kept"


@pytest.mark.parametrize("spelled", [("--data-dir", "{}"), ("--data-dir={}",)])
def test_a_named_folder_overrides_given_settings(
    folder: DataFolder, monkeypatch: pytest.MonkeyPatch, spelled: tuple[str, ...]
) -> None:
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "mine")
    monkeypatch.setenv("REDIS_URL", "mine")
    folder.write("environment.json", {"DJANGO_SETTINGS_MODULE": "x", "REDIS_URL": "y"})
    arguments = ["top", *(word.format(folder.path) for word in spelled)]
    with pytest.raises(NotRunning, match="no `up` runs on"):
        adopt_running_environment(arguments)
    with folder.locked():
        adopt_running_environment(arguments)
    assert (os.environ["DJANGO_SETTINGS_MODULE"], os.environ["REDIS_URL"]) == ("x", "y")
    with folder.locked():
        folder.remove("environment.json")
        with pytest.raises(NotRunning, match="not ready yet"):
            adopt_running_environment(arguments)


@pytest.mark.parametrize("parser", [up.parser, backup.parser])
def test_an_empty_name_is_not_the_current_directory(
    parser: Callable[[], ArgumentParser], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--data-dir", ""])
    assert "--data-dir: it names no folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (["--data-dir", "x", "-c", "1"], ["-c", "1"]),
        (["-c", "1", "--data-dir=x"], ["-c", "1"]),
        (["--data-dir"], []),
        (["-c", "1"], ["-c", "1"]),
    ],
)
def test_the_data_dir_option_is_removed_for_a_commands_parser(given: list[str], left: list[str]) -> None:
    assert without_data_dir(given) == left


def test_a_command_of_django_takes_the_data_folder_option(folder: DataFolder) -> None:
    environment = {
        "DJANGO_SETTINGS_MODULE": "dispatcher_project.settings.test",
        "DATABASE_URL": "sqlite://:memory:",
        "DISPATCHER_TEST_DATABASE_URL": "sqlite://:memory:",
    }
    folder.write("environment.json", environment)
    with folder.locked():
        done = subprocess.run(
            [sys.executable, "manage.py", "shell", "-c", "pass", "--data-dir", str(folder.path)],
            cwd=ROOT, env={**os.environ, "DISPATCHER_NO_BOOTSTRAP": "1"},
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_an_installed_wheel_keeps_its_data_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPATCHER_DATA_DIR", raising=False)
    assert data_folder.default_folder() == data_folder.ROOT / "var"
    monkeypatch.setattr(data_folder, "IN_CHECKOUT", False)
    monkeypatch.chdir(tmp_path)
    assert data_folder.default_folder() == tmp_path / "var"
    monkeypatch.setenv("DISPATCHER_DATA_DIR", "/srv/dispatcher")
    assert data_folder.default_folder() == Path("/srv/dispatcher")


def test_a_command_without_an_up_says_which_folder_it_looked_at(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("D")}
    for arguments, given in (
        ([], {"DISPATCHER_DATA_DIR": str(tmp_path / "x")}),
        (["--data-dir", str(tmp_path / "x")], {}),
    ):
        done = subprocess.run(
            [sys.executable, "manage.py", "workflow", "run", "film", *arguments],
            cwd=ROOT, env=environment | given, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 1
        assert done.stderr.startswith(f"manage.py: no `up` runs on {tmp_path / 'x'}: start it with")
        assert "--data-dir" in done.stderr


def test_hints_of_a_command_name_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["manage.py", "doctor", "--data-dir", "/srv/my data"])
    assert command_line("migrate") == "python3 manage.py migrate --data-dir '/srv/my data'"
    monkeypatch.setattr(sys, "argv", ["manage.py", "doctor"])
    assert command_line("migrate") == "python3 manage.py migrate"


def test_up_names_a_data_folder_that_it_cannot_make(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # `up` changes it
    (tmp_path / "file").touch()
    for name, reason in (("file", "there is a file of this name"), ("file/in_it", "Not a directory")):
        assert up.main(["--data-dir", str(tmp_path / name)]) == 1
        said = capsys.readouterr().out
        assert (
            said
            == f"up: cannot use {tmp_path / name} as data folder: {reason}; choose another with --data-dir\n"
        )
