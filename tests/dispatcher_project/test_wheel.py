"""The contents of wheel and sdist, by the build backend's own listing (`uv build --list`, half a second)."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher_project.supervisor.data_folder import ROOT
from dispatcher_project.supply.lock import read_lock
from tests.support.ports import free_port
from tests.support.waiting import wait_for

UV = Path(sys.executable).with_name("uv")
NOT_IN_WHEEL = {"benchmarks/explain_causes.py", "dispatcher_client/pyproject.toml"}
pytestmark = pytest.mark.skipif(not UV.exists(), reason="uv comes with the extra `supply`")


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def listed() -> tuple[set[str], set[str]]:
    """The files of the sdist and of the wheel."""
    done = subprocess.run(
        [UV, "build", "--list", "--offline"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    sdist, wheel = done.stdout.split("Building gpu_dispatcher-", 3)[-2:] if done.stdout else ("", "")
    names = [set(re.findall(r"^(\S+) \(", part, re.MULTILINE)) for part in (sdist, wheel)]
    return {name.partition("/")[2] for name in names[0]}, names[1]


@pytest.fixture(scope="module")
def sources() -> set[str]:
    """Every file of the packages."""
    packages = project()["tool"]["uv"]["build-backend"]["module-name"]
    return {
        str(path.relative_to(ROOT))
        for package in packages
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_every_file_of_every_package(
    listed: tuple[set[str], set[str]], sources: set[str]
) -> None:
    wheel = {name for name in listed[1] if ".dist-info/" not in name}
    assert wheel == sources - NOT_IN_WHEEL
    for kind in (
        "jobs/migrations/0001_initial.py",
        "gpus/leasing/lua/claim.lua",
        "gpus/leasing/lua/includes/shares.lua",
        "admin_ui/templates/admin_ui/job/page.html",
        "admin_ui/static/admin_ui/admin.css",
        "admin_ui/vendored/unfold/js/alpine/alpine.js",
    ):
        assert kind in wheel


def test_every_package_of_the_checkout_is_in_it(sources: set[str]) -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages - {name.partition("/")[0] for name in sources} == {"tests"}


def test_the_sdist_is_a_checkout_that_works(listed: tuple[set[str], set[str]], sources: set[str]) -> None:
    sdist, _ = listed
    assert sources <= sdist
    assert {"manage.py", "constraints.txt", "pyproject.toml", "README.md", "CHANGELOG.md"} <= sdist
    assert {"tests/conftest.py", "docs/index.md", "deploy/Dockerfile", ".ci/run"} <= sdist
    assert not {name for name in sdist if name.endswith(".env") or "__pycache__" in name}


def test_nothing_in_the_wheel_imports_the_tests(sources: set[str]) -> None:
    wrong = []
    for name in sorted(sources - NOT_IN_WHEEL):
        if name.endswith(".py") and "tests" in (text := (ROOT / name).read_text()):
            for node in ast.walk(ast.parse(text)):
                module = node.module if isinstance(node, ast.ImportFrom) else ""
                names = [one.name for one in node.names] if isinstance(node, ast.Import) else [module or ""]
                wrong += [name for one in names if one.partition(".")[0] == "tests"]
    assert wrong == []


def test_the_image_and_the_backend_build_with_the_locked_uv() -> None:
    (asked,) = project()["build-system"]["requires"]
    locked = read_lock(ROOT / "constraints.txt")["uv"].version
    lowest, below = re.fullmatch(r"uv_build>=([\d.]+),<([\d.]+)", asked).groups()  # type: ignore[union-attr]
    numbers = [tuple(map(int, version.split("."))) for version in (lowest, locked, below)]
    assert numbers == sorted(numbers), "else a build downloads uv_build"


PYTHONS = [sys.executable, *filter(None, os.environ.get("WHEEL_PYTHONS", "").split(os.pathsep))]
"""Of the full trial: this one, and those that WHEEL_PYTHONS names."""


@pytest.fixture(scope="module", params=PYTHONS)
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An environment that holds the locked packages and a wheel that was built from the sdist."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([UV, "build", "--offline", "--quiet", "--out-dir", folder, ROOT], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([UV, "venv", "--quiet", "--python", request.param, folder / "venv"], check=True)
    install = [UV, "pip", "install", "--quiet", "--python", folder / "venv/bin/python", "--no-deps"]
    locked = ["--require-hashes", "--only-binary", ":all:", "-r", ROOT / "constraints.txt"]
    for what in (locked, [wheel]):
        subprocess.run([*install, *what], check=True)
    yield folder / "venv"
    shutil.rmtree(folder)


@pytest.mark.by_hand
@pytest.mark.timeout(900)
def test_an_empty_environment_runs_a_job(environment: Path, tmp_path: Path) -> None:
    """The installed wheel: `up` in an empty folder, a job through it, an ordered end. 30 s of CPU."""
    program, clean = environment / "bin/gpu-dispatcher", {"PATH": os.defpath, "HOME": str(tmp_path)}

    def said(*words: str) -> str:
        done = subprocess.run(
            [program, *words], cwd=tmp_path, env=clean, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    assert said("--version") == f"gpu-dispatcher {project()['project']['version']}\n"
    for shell in ("bash", "zsh", "fish"):
        assert "if-busy" in said("completion", shell)
    port = free_port()
    with (tmp_path / "log").open("w") as log:
        up = subprocess.Popen([program, "up", "--port", str(port)], cwd=tmp_path, env=clean, stdout=log)
    try:
        wait_for((tmp_path / "var/up.json").exists, what="up to be ready", seconds=120)
        job = json.loads(said("submit", "zimg", '{"prompt": "a fox"}', "--wait", "60", "--json"))
        assert job["status"] == "completed"
        assert "0 errors" in said("doctor")
        assert "zimg" in said("top", "--once")
        assert json.loads(said("workers", "--json"))
    finally:
        up.send_signal(signal.SIGINT)
        assert up.wait(60) == 0, (tmp_path / "log").read_text()
    assert not (tmp_path / "var/up.json").exists()
    assert "no law broken" in said("simulate", "--seeds", "1", "--processes", "1")
