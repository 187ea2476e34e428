"""constraints.txt holds all that pyproject.toml needs, each with its hashes, and nothing else."""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dispatcher_project.supervisor.bootstrap import ROOT
from dispatcher_project.supply import lock
from dispatcher_project.supply.lock import (
    ENVIRONMENTS,
    PLATFORMS,
    Pin,
    dependencies,
    extras_of,
    read_lock,
    read_pins,
)

PINS = read_lock(ROOT / "constraints.txt")
REFRESH = "run `python3 manage.py supply lock`"


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
            for machine in ENVIRONMENTS
            for extra in requirement.extras or {""}
        )
        if wanted:
            needed(child, seen)


def names_of(*extras: str) -> set[str]:
    seen: set[tuple[str, frozenset[str]]] = set()
    for text in dependencies(ROOT, extras):
        needed(Requirement(text), seen)
    return {name for name, _ in seen}


def test_the_lock_pins_everything_that_any_supported_python_needs() -> None:
    names = names_of(*extras_of(ROOT))
    assert names - set(PINS) == set(), REFRESH
    assert set(PINS) - names == set(), f"pinned, but not needed any more: {REFRESH}"


def test_each_package_is_installed_with_those_extras_that_need_it() -> None:
    always = names_of()
    assert {name for name, pin in PINS.items() if not pin.extras} == always, REFRESH
    for extra in extras_of(ROOT):
        assert {name for name, pin in PINS.items() if extra in pin.extras} == names_of(extra) - always, (
            REFRESH
        )


def test_every_pin_has_hashes_and_no_index_is_named() -> None:
    text = (ROOT / "constraints.txt").read_text()
    entries = [line for line in text.splitlines() if not line.startswith(("#", " "))]
    assert [line for line in entries if " \\" not in line] == [], REFRESH
    assert len(entries) == len(PINS), "each entry is read"
    for pin in PINS.values():
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in pin.hashes), pin.name
        assert len(pin.hashes) >= 1, f"{pin.name}: {REFRESH}"
    assert "://" not in text
    assert "--index" not in text


def test_installed_versions_equal_the_pinned_versions() -> None:
    for name, pin in PINS.items():
        try:
            assert distribution(name).version == pin.version, name
        except PackageNotFoundError:
            continue  # needed by other Pythons or machines only


@pytest.mark.parametrize("pin", [
    Pin("a", "1.0", hashes=("sha256:aa", "sha256:ab")),
    Pin("a-b", "1!2.0.post1+x", marker="python_full_version < '3.11.3'", hashes=("sha256:aa",)),
    Pin("a", "1", extras=frozenset({"dev", "supply"}), hashes=("sha256:aa",)),
    Pin("a", "1", "os_name == 'a' or os_name == 'b'", frozenset({"dev"}), ("sha256:aa",)),
])  # fmt: skip
def test_a_written_lock_is_read_back(pin: Pin) -> None:
    assert list(read_pins("# head\n" + lock._entry(pin) + lock._entry(Pin("z", "2")))) == [pin, Pin("z", "2")]


STAND_IN = """\
import os, sys
words = sys.argv[1:]
if " ".join(words).find(os.environ.get("REFUSED", "nothing")) >= 0:
    sys.exit("a has no usable wheels")
output = [word[3:] for word in words if word.startswith("-o=")]
with open("calls", "a") as calls:
    print(*words, *(open(name).read() for name in output), file=calls)
names = ["a==1.1"]
if "--extra=dev" in words:
    names += ["b==2.0 ; os_name != 'nt'", "w==3 ; sys_platform == 'win32'"]
for name in output:
    with open(name, "w") as file:
        for one in names:
            hashed = " \\\\\\n    --hash=sha256:" + one[:1] if "--generate-hashes" in words else ""
            print(one + hashed, file=file)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose lock has a merge conflict, and a stand-in for uv that has a newer version."""
    (tmp_path / "pyproject.toml").write_text(
        '[project]\ndependencies = ["a"]\n[project.optional-dependencies]\ndev = ["b"]\n'
    )
    first, second = ("A==1.0 \\\n    --hash=sha256:00\n", "old==1 \\\n    --hash=sha256:00\n")
    (tmp_path / "constraints.txt").write_text(f"<<<<<<< one\n{first}=======\n{second}>>>>>>> other\n")
    tool = tmp_path / "uv"
    tool.write_text(f"#!{sys.executable}\n{STAND_IN}")
    tool.chmod(0o755)
    monkeypatch.setattr(lock, "_find_uv", lambda: str(tool))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_refresh_keeps_pins_drops_other_platforms_and_notes_extras(project: Path) -> None:
    assert lock.refresh(project) == ["a 1.0 -> 1.1", "b (new) -> 2.0", "old 1 -> (gone)"]
    assert read_lock(project / "constraints.txt") == {
        "a": Pin("a", "1.1", hashes=("sha256:a",)),
        "b": Pin("b", "2.0", extras=frozenset({"dev"}), hashes=("sha256:b",)),
    }
    calls = (project / "calls").read_text()
    assert "a==1.0\nold==1\n" in calls, "the pins before, for uv to keep"
    assert "--upgrade" not in calls
    lock.refresh(project, upgrade=["a"])
    assert "--upgrade-package=a" in (project / "calls").read_text()


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_lock_that_would_have_to_build_a_package_somewhere_is_not_written(
    project: Path, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    before = (project / "constraints.txt").read_text()
    monkeypatch.setenv("REFUSED", f"--python-platform={platform} --python-version=3.14")
    with pytest.raises(lock.LockError, match=rf"{platform}[\s\S]*no usable wheels"):
        lock.refresh(project)
    assert (project / "constraints.txt").read_text() == before
