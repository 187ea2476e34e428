from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from dispatcher_project.supervisor import bootstrap

LOCK = """\
a==1.0 \\
    --hash=sha256:aa
b==2.0 ; extra == 'dev' \\
    --hash=sha256:bb
c==3.0 ; (python_version < '3.12') and (extra == 'dev' or extra == 'supply') \\
    --hash=sha256:cc
"""
Installs = Callable[[], list[str]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project without dependencies, whose environment is the running one's kind and has a stamp."""
    (tmp_path / "pyproject.toml").write_text(
        '[project]\ndependencies = ["a>=1"]\n[project.optional-dependencies]\ndev = ["b"]\n'
    )
    (tmp_path / "constraints.txt").write_text(LOCK)
    venv.EnvBuilder(symlinks=True, with_pip=False).create(tmp_path / ".venv")
    stamp(tmp_path, [])
    return tmp_path


def stamp(project: Path, extras: list[str]) -> None:
    text = json.dumps({"fingerprint": bootstrap.fingerprint(project), "extras": extras})
    (project / ".venv" / "dispatcher-stamp.json").write_text(text)


@pytest.fixture
def installs(project: Path, monkeypatch: pytest.MonkeyPatch) -> Installs:
    """The arguments of each call of a stand-in for uv, which fails while the file `broken` is there."""
    log = project / "log"
    tool = project / "bin" / "uv"
    tool.parent.mkdir()
    tool.write_text(
        f'#!/bin/sh\necho "$*" >> {log}\n'
        f"if [ -e {project}/broken ]; then echo 'no matching distribution a'; exit 1; fi\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")

    return lambda: log.read_text().splitlines() if log.exists() else []


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
def test_forbidden_bytecode_is_kept_in_the_environment(
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


def test_a_current_environment_is_not_changed(project: Path, installs: Installs) -> None:
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


def test_other_changes_of_pyproject_change_nothing(project: Path, installs: Installs) -> None:
    with (project / "pyproject.toml").open("a") as file:
        file.write("[tool.ruff]\nline-length = 110\n")
    bootstrap.environment_python(root=project)
    assert len(installs()) == 0


def test_an_extra_is_installed_once_and_stays(project: Path, installs: Installs) -> None:
    bootstrap.environment_python(extras=("dev",), root=project)
    wanted = project / ".venv" / "locked.txt"
    assert installs()[0].endswith(f" --require-hashes --no-deps --only-binary :all: -r {wanted}")
    assert "b==2.0 ; python_version >= '3'" in wanted.read_text()
    bootstrap.environment_python(root=project)
    bootstrap.environment_python(extras=("dev",), root=project)
    assert len(installs()) == 1
    (project / "constraints.txt").write_text(LOCK.replace("2.0", "2.1"))
    bootstrap.environment_python(root=project)
    assert "b==2.1 ; python_version >= '3'" in wanted.read_text()


def test_an_environment_of_another_python_is_recreated(project: Path, installs: Installs) -> None:
    folder = project / ".venv"
    (folder / "pyvenv.cfg").write_text("version = 3.1.4\n")
    (folder / "old").touch()
    (folder / "dispatcher-stamp.json").unlink()
    bootstrap.environment_python(root=project)
    assert not (folder / "old").exists()
    assert (
        f"version = {sys.version_info.major}.{sys.version_info.minor}" in (folder / "pyvenv.cfg").read_text()
    )


def test_a_failed_installation_reports_the_error_and_leaves_no_stamp(
    project: Path, installs: Installs
) -> None:
    (project / "broken").touch()
    (project / "constraints.txt").write_text("a==9\n")
    with pytest.raises(bootstrap.BootstrapError, match=r"no matching distribution a[\s\S]*package index"):
        bootstrap.environment_python(root=project)
    assert not bootstrap.is_current(project / ".venv", extras=(), root=project)
    (project / "broken").unlink()
    bootstrap.environment_python(root=project)
    assert len(installs()) == 2


def test_only_the_chosen_extras_packages_are_installed() -> None:
    def taken(*extras: str) -> list[str]:
        lines = bootstrap.locked(LOCK, extras).replace("\\\n", "").splitlines()
        wanted = [Requirement(line.partition(" --hash")[0]) for line in lines]
        python = {"python_version": "3.11", "extra": ""}
        return [one.name for one in wanted if one.marker is None or one.marker.evaluate(python)]

    assert taken() == ["a"]
    assert taken("dev") == ["a", "b", "c"]
    assert taken("supply") == ["a", "c"]
    assert taken("dev", "supply") == ["a", "b", "c"]


@pytest.mark.parametrize("are_in_each_others_way", [False, True])
def test_one_pip_per_core_installs_its_part_and_one_installs_all_where_that_fails(
    project: Path, monkeypatch: pytest.MonkeyPatch, are_in_each_others_way: bool
) -> None:
    log, pip = project / "log", project / "pip"
    fails = f"[ $(wc -l < {log}) -lt 3 ] && exit 1" if are_in_each_others_way else ""
    pip.write_text(f"#!/bin/sh\necho $(grep -o '^[a-z]==' $6) >> {log}\n{fails}\nexit 0\n")
    pip.chmod(0o755)
    monkeypatch.setattr(bootstrap, "_installer", lambda python: [str(pip)])
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    (project / ".venv" / "dispatcher-stamp.json").unlink()
    bootstrap.environment_python(root=project)
    parts = log.read_text().splitlines()
    assert sorted(parts[:2]) == ["a== c==", "b=="]
    assert parts[2:] == (["a== b== c=="] if are_in_each_others_way else [])


UV_PIN = "uv==9.0 ; extra == 'supply' \\\n    --hash=sha256:dd\n"
PIP_CONFIG = """\
:env:.index-url='https://mirror.example/simple'
global.index-url='https://other.example/simple'
global.extra-index-url='file:///one file:///two'
global.timeout='9'
"""


@pytest.mark.parametrize("uv_works", [True, False])
def test_where_the_lock_has_uv_pip_installs_only_that_unless_uv_fails(
    project: Path, monkeypatch: pytest.MonkeyPatch, uv_works: bool
) -> None:
    log, pip, uv = project / "log", project / "pip", project / ".venv" / "bin" / "uv"
    (project / "pip.conf").write_text(PIP_CONFIG)
    pip.write_text(
        f"""#!/bin/sh
        if [ "$1" = config ]; then cat {project}/pip.conf; exit 0; fi
        echo pip $(grep -o '^[a-z]*==' $7) >> {log}
        printf '#!/bin/sh\necho uv "$*" >> {log}\nexit {0 if uv_works else 1}\n' > {uv}
        chmod +x {uv}
        """
    )
    pip.chmod(0o755)
    monkeypatch.setattr(bootstrap, "_installer", lambda python: [str(pip), "install"])
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    (project / "constraints.txt").write_text(LOCK + UV_PIN)
    bootstrap.environment_python(root=project)
    assert log.read_text() == "pip a== b== c== uv==\n", "the extra was not asked for"
    log.unlink()

    bootstrap.environment_python(extras=("supply",), root=project)
    wanted = project / ".venv" / "locked.txt"
    first, second, *others = log.read_text().splitlines()
    assert first == "pip uv=="
    assert second.startswith(f"uv pip install --quiet --python {project}/.venv/bin/python ")
    assert " --default-index=https://mirror.example/simple --index=file:///one --index=file:///two " in second
    assert second.endswith(f" --require-hashes --no-deps --only-binary :all: -r {wanted}")
    assert "a==1.0" in wanted.read_text()
    assert others == ([] if uv_works else ["pip a== b== c== uv=="])


PIP_SAYS = """\
ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated the package
versions, please update the hashes. Otherwise, examine the package contents carefully; someone may have
tampered with them.
    a==1.0 from https://index.example/a-1.0-py3-none-any.whl (from -r locked.txt (line 1)):
        Expected sha256 aa
             Got        ab
"""
UV_SAYS = "error: Failed to download `a==1.0`\n  cause: Hash mismatch for `a==1.0`\n\n Expected:\n sha256:aa"


@pytest.mark.parametrize("said", [PIP_SAYS, UV_SAYS], ids=["pip", "uv"])
def test_a_wrong_hash_is_a_one_line_error_with_a_remedy(project: Path, installs: Installs, said: str) -> None:
    (project / "broken").touch()
    (project / "said").write_text(said)
    tool = project / "bin" / "uv"
    tool.write_text(tool.read_text().replace("echo 'no matching distribution a'", f"cat {project}/said"))
    (project / "constraints.txt").write_text("a==9\n")
    with pytest.raises(bootstrap.BootstrapError) as raised:
        bootstrap.environment_python(root=project)
    line = str(raised.value)
    assert line.startswith("a==1.0 is not the file that constraints.txt names")
    assert "supply lock" in line
    assert "\n" not in line


def wheel(folder: Path, name: str) -> str:
    """Makes one in the folder; returns its sha256."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        info = f"{name}-1.0.dist-info"
        archive.writestr(f"{name}.py", "")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_the_real_installer_accepts_only_the_locked_file(
    project: Path, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    """No index is asked: a folder of wheels stands in for it."""
    found = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if tool == "uv" and not found:
        pytest.skip("uv is not installed")
    monkeypatch.setattr(shutil, "which", lambda _: found if tool == "uv" else None)
    right = wheel(project, "a")
    for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
        monkeypatch.setenv(name, str(project))
    for name in ("PIP_NO_INDEX", "UV_NO_INDEX", "UV_NO_CACHE", "PIP_NO_CACHE_DIR"):
        monkeypatch.setenv(name, "1")
    for digest in ("0" * 64, right):
        (project / "constraints.txt").write_text(f"a==1.0 \\\n    --hash=sha256:{digest}\n")
        if digest != right:
            with pytest.raises(bootstrap.BootstrapError, match=r"a==1\.0 is not the file") as raised:
                bootstrap.environment_python(root=project)
            assert "\n" not in str(raised.value)
            assert not list((project / ".venv").rglob("a.py"))
    bootstrap.environment_python(root=project)
    assert len(list((project / ".venv").rglob("a.py"))) == 1


def test_a_second_process_waits_for_the_first(project: Path, installs: Installs) -> None:
    (project / ".venv" / "dispatcher-stamp.json").unlink()
    code = (
        "import sys; from pathlib import Path; from dispatcher_project.supervisor import bootstrap;"
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


def test_a_broken_pyproject_is_a_one_line_error(project: Path) -> None:
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


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        ("create_key --data-dir nowhere -h", "dispatcher_project.settings.production"),
        ("migrate --data-dir nowhere --help", ""),
    ],
)
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
        "import sys, dispatcher_project.checks;"
        "import dispatcher_project.supervisor.bootstrap, dispatcher_project.supervisor.up;"
        "print([name for name in ('django', 'celery', 'redis', 'requests') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=bootstrap.ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
