"""Which build of Python the environment gets. Stand-ins on PATH answer as builds of any speed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from dispatcher_project.supervisor import bootstrap, faster_python

BASE = str(getattr(sys, "_base_executable", sys.executable))
THIS: list[Any] = [sys.implementation.name, *sys.version_info[:2], True]
RUNNING = faster_python.Build(BASE, 1.0)


class Stand:
    """A PATH with stand-ins for Python alone."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = folder, monkeypatch
        monkeypatch.setenv("PATH", "/nowhere")

    def build(self, **answer: Any) -> Path:
        """Add a build with this answer to the probe; other calls go to the running Python."""
        text = json.dumps({"build": THIS, "path": "fast", "seconds": 0.5} | answer)
        return self.script(f'if [ "$2" = -c ]; then echo \'{text}\'; exit 0; fi\nexec {BASE} "$@"\n')

    def script(self, text: str) -> Path:
        folder = self._folder / f"bin{len(list(self._folder.iterdir()))}"
        folder.mkdir()
        path = folder / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        path.write_text(f"#!/bin/sh\n{text}")
        path.chmod(0o755)
        self._monkeypatch.setenv("PATH", os.pathsep.join([os.environ["PATH"], str(folder)]))
        return path


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    return Stand(tmp_path, monkeypatch)


def test_the_fastest_build_of_this_version_is_found(stand: Stand) -> None:
    stand.build(path="fast", seconds=0.5)
    stand.build(path="fastest", seconds=0.4)
    stand.build(path="also fast", seconds=0.6)
    assert faster_python.faster_than(RUNNING) == ("fastest", 0.4)


@pytest.mark.parametrize(
    "answer",
    [
        {"build": [*THIS[:2], sys.version_info[1] + 1, True]},
        {"build": ["pypy", *THIS[1:]]},
        {"build": [*THIS[:3], False]},  # the interpreter of a virtual environment
        {"seconds": 2.0},
        {"seconds": 0.9},
        {"seconds": None},
        {"build": None},
    ],
)
def test_other_versions_environments_and_hardly_faster_builds_are_not_chosen(
    stand: Stand, answer: dict[str, Any]
) -> None:
    stand.build(**answer)
    assert faster_python.faster_than(RUNNING) is None


@pytest.mark.parametrize("text", ["exit 1", "echo no Python", 'echo "[]"', "echo '{}'"])
def test_a_broken_interpreter_is_passed_over(stand: Stand, text: str) -> None:
    stand.script(text)
    assert faster_python.faster_than(RUNNING) is None
    stand.build()
    assert faster_python.faster_than(RUNNING) == ("fast", 0.5)


def test_a_relative_folder_of_path_is_not_searched(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(stand.build().parent)
    monkeypatch.setenv("PATH", os.pathsep.join([".", ""]))
    assert faster_python.faster_than(RUNNING) is None


def test_the_running_build_itself_is_measured(stand: Stand) -> None:
    stand.build(seconds=1e-9)
    assert faster_python.faster_python() == ("fast", 1e-9)
    assert faster_python.faster_than(RUNNING._replace(seconds=1e-9)) is None


@pytest.mark.parametrize("works", [True, False])
def test_a_new_environment_is_made_by_the_faster_build_or_else_by_the_running_one(
    stand: Stand, tmp_path: Path, works: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    path, calls = stand.build(path="faster/python", seconds=1e-9), tmp_path / "calls"
    faster = stand.script(f'echo "$@" > {calls}\n' + (f'exec {BASE} "$@"\n' if works else "exit 1\n"))
    path.write_text(path.read_text().replace("faster/python", str(faster)))

    bootstrap._create(tmp_path / "environment")

    assert (tmp_path / "environment" / "bin" / "python").exists()
    assert "-m venv" in calls.read_text()
    assert f"it uses {faster}" in capsys.readouterr().err
