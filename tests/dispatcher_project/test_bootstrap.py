from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dispatcher_project import bootstrap

PINS = {
    canonicalize_name(line.partition("==")[0]): line.partition("==")[2]
    for line in (bootstrap.ROOT / "constraints.txt").read_text().splitlines()
}

Installs = Callable[[], list[str]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project without dependencies, whose environment is the running one's kind and has a stamp."""
    (tmp_path / "pyproject.toml").write_text(
        '[project]\ndependencies = ["a>=1"]\n[project.optional-dependencies]\ndev = ["b"]\n'
    )
    (tmp_path / "constraints.txt").write_text("a==1.0\nb==2.0\n")
    venv.EnvBuilder(symlinks=True, with_pip=False).create(tmp_path / ".venv")
    stamp(tmp_path, [])
    return tmp_path


def stamp(project: Path, extras: list[str]) -> None:
    text = json.dumps({"fingerprint": bootstrap.fingerprint(project), "extras": extras})
    (project / ".venv" / "dispatcher-stamp.json").write_text(text)


@pytest.fixture
def installs(project: Path, monkeypatch: pytest.MonkeyPatch) -> Installs:
    """What a stand-in for uv is told to install; it fails while the file `broken` is there."""
    told = project / "told"
    tool = project / "bin" / "uv"
    tool.parent.mkdir()
    tool.write_text(
        f'#!/bin/sh\necho "$*" >> {told}\n'
        f"if [ -e {project}/broken ]; then echo 'no matching distribution a'; exit 1; fi\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")

    return lambda: told.read_text().splitlines() if told.exists() else []


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, {}),
        ({"PYTHONDONTWRITEBYTECODE": "1"}, {"PYTHONPYCACHEPREFIX": "{root}/.venv/bytecode"}),
        (
            {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "/elsewhere"},
            {"PYTHONPYCACHEPREFIX": "/elsewhere"},
        ),
    ],
)
def test_bytecode_that_is_forbidden_beside_the_sources_is_kept_in_the_environment(
    project: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], kept: dict[str, str]
) -> None:
    names = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
    for name in names:
        monkeypatch.setenv(name, given[name]) if name in given else monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", "PYTHONDONTWRITEBYTECODE" in given)
    monkeypatch.setattr(sys, "pycache_prefix", given.get("PYTHONPYCACHEPREFIX"))
    bootstrap.keep_bytecode(project)
    found = {name: os.environ[name] for name in names if name in os.environ}
    assert found == {name: value.format(root=project) for name, value in kept.items()}
    assert sys.pycache_prefix == found.get("PYTHONPYCACHEPREFIX")
    assert not sys.dont_write_bytecode


def test_a_current_environment_is_left_alone(project: Path, installs: Installs) -> None:
    assert bootstrap.environment_python(root=project) == project / ".venv" / "bin" / "python"
    assert len(installs()) == 0


@pytest.mark.parametrize(
    ("file", "old", "new"), [("constraints.txt", "a==1.0", "a==1.1"), ("pyproject.toml", "a>=1", "a>=2")]
)
def test_a_changed_pin_or_requirement_installs_again(
    project: Path, installs: Installs, file: str, old: str, new: str
) -> None:
    text = (project / file).read_text()
    (project / file).write_text(text.replace(old, new))
    bootstrap.environment_python(root=project)
    bootstrap.environment_python(root=project)
    assert len(installs()) == 1


def test_what_is_no_dependency_changes_nothing(project: Path, installs: Installs) -> None:
    with (project / "pyproject.toml").open("a") as file:
        file.write("[tool.ruff]\nline-length = 110\n")
    bootstrap.environment_python(root=project)
    assert len(installs()) == 0


def test_an_extra_is_installed_once_and_stays(project: Path, installs: Installs) -> None:
    bootstrap.environment_python(extras=("dev",), root=project)
    assert installs()[0].endswith(f" a>=1 b -c {project / 'constraints.txt'}")
    bootstrap.environment_python(root=project)
    bootstrap.environment_python(extras=("dev",), root=project)
    assert len(installs()) == 1
    (project / "constraints.txt").write_text("a==1.1\nb==2.0\n")
    bootstrap.environment_python(root=project)
    assert " b " in installs()[1]


def test_an_environment_of_another_python_is_made_anew(project: Path, installs: Installs) -> None:
    folder = project / ".venv"
    (folder / "pyvenv.cfg").write_text("version = 3.1.4\n")
    (folder / "old").touch()
    (folder / "dispatcher-stamp.json").unlink()
    bootstrap.environment_python(root=project)
    assert not (folder / "old").exists()
    assert (
        f"version = {sys.version_info.major}.{sys.version_info.minor}" in (folder / "pyvenv.cfg").read_text()
    )


def test_a_failed_installation_says_why_and_leaves_no_stamp(project: Path, installs: Installs) -> None:
    (project / "broken").touch()
    (project / "constraints.txt").write_text("a==9\n")
    with pytest.raises(bootstrap.BootstrapError, match=r"no matching distribution a[\s\S]*package index"):
        bootstrap.environment_python(root=project)
    assert not bootstrap.is_current(project / ".venv", extras=(), root=project)
    (project / "broken").unlink()
    bootstrap.environment_python(root=project)
    assert len(installs()) == 2


def test_a_second_one_waits_and_finds_it_done(project: Path, installs: Installs) -> None:
    (project / ".venv" / "dispatcher-stamp.json").unlink()
    code = (
        "import sys; from pathlib import Path; from dispatcher_project import bootstrap;"
        "bootstrap.environment_python(root=Path(sys.argv[1]))"
    )
    with (project / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = subprocess.Popen(
            [sys.executable, "-c", code, str(project)], cwd=bootstrap.ROOT, stderr=subprocess.PIPE, text=True
        )
        assert second.stderr is not None
        assert "waiting" in second.stderr.readline()
        stamp(project, [])
    assert second.wait(60) == 0
    second.stderr.close()
    assert len(installs()) == 0


def test_a_broken_pyproject_is_one_clear_line(project: Path) -> None:
    (project / "pyproject.toml").write_text("[project\n")
    with pytest.raises(bootstrap.BootstrapError, match=r"pyproject\.toml or constraints\.txt cannot be read"):
        bootstrap.environment_python(root=project)


def test_no_bootstrap_uses_the_running_python_from_any_folder(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, bootstrap.ROOT / "manage.py", "version"],
        cwd=tmp_path,
        env={**os.environ, "DISPATCHER_NO_BOOTSTRAP": "1", "DJANGO_SETTINGS_MODULE": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("5.2.")


@pytest.mark.parametrize("settings", ["", "dispatcher_project.settings.production"])
@pytest.mark.parametrize("command", ["top --help", "create_key -h", "migrate --data-dir nowhere --help"])
def test_help_needs_no_dispatcher(tmp_path: Path, command: str, settings: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SECRET_KEY"}
    own = {
        "DISPATCHER_NO_BOOTSTRAP": "1",
        "DJANGO_SETTINGS_MODULE": settings,
        "DISPATCHER_DATA_DIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, bootstrap.ROOT / "manage.py", *command.split()],
        cwd=tmp_path,
        env=environment | own,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: manage.py {command.split(maxsplit=1)[0]}")


def test_the_lean_commands_load_no_framework() -> None:
    """`up` and `test` run for long beside everything else; the bootstrap runs before there is anything."""
    code = (
        "import dispatcher_project.bootstrap, dispatcher_project.gate, dispatcher_project.supervisor.up, sys;"
        "print([name for name in ('django', 'celery', 'redis', 'requests') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=bootstrap.ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


SUPPORTED = [
    {
        "python_version": version.rpartition(".")[0],
        "python_full_version": version,
        "sys_platform": platform,
        "platform_system": platform.capitalize(),
        "platform_machine": machine,
    }
    for version in ("3.11.0", "3.12.0", "3.13.0", "3.14.0")
    for platform, machine in (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"))
]


def needed(requirement: Requirement, seen: set[tuple[str, frozenset[str]]]) -> None:
    """Adds the packages that the requirement may bring on any supported Python and machine."""
    name = canonicalize_name(requirement.name)
    if (name, frozenset(requirement.extras)) in seen:
        return
    seen.add((name, frozenset(requirement.extras)))
    try:
        texts = distribution(name).requires or []
    except PackageNotFoundError:  # only other Pythons or machines want it
        return
    for child in map(Requirement, texts):
        wanted = any(
            child.marker is None or child.marker.evaluate({**machine, "extra": extra})
            for machine in SUPPORTED
            for extra in requirement.extras or {""}
        )
        if wanted:
            needed(child, seen)


def test_constraints_pin_everything_that_any_supported_python_needs() -> None:
    seen: set[tuple[str, frozenset[str]]] = set()
    for text in bootstrap.requirements(bootstrap.ROOT, ("dev",)):
        needed(Requirement(text), seen)
    names = {name for name, _ in seen}
    assert names - set(PINS) == set()
    assert set(PINS) - names == set(), "pinned, but nobody needs it any more"


def test_what_is_installed_is_what_is_pinned() -> None:
    for name, version in PINS.items():
        try:
            assert distribution(name).version == version, name
        except PackageNotFoundError:
            continue  # needed by other Pythons or machines only
