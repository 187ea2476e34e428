"""`gpu-dispatcher`, the command that a wheel installs: help, names of commands, errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

from dispatcher_project.cli import main
from dispatcher_project.cli.commands import CHECKOUT_ONLY, ENTRIES, GROUPS, entry_of
from dispatcher_project.supervisor.data_folder import ROOT
from foundation import program

OURS = {path.stem for path in ROOT.glob("*/management/commands/*.py") if path.stem != "__init__"}
DJANGOS = {"migrate", "createsuperuser", "changepassword"}
PARTS = {"web", "beat", "flower"}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the console script starts."""
    monkeypatch.setattr("sys.argv", ["/opt/venv/bin/gpu-dispatcher"])


def ended(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    try:
        main.gpu_dispatcher(["gpu-dispatcher", *words])
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    said = capsys.readouterr()
    return status, said.out, said.err


def test_every_command_of_the_product_is_in_a_group() -> None:
    assert set(ENTRIES) == (OURS - CHECKOUT_ONLY - {"seed_up"}) | DJANGOS | PARTS
    assert set(get_commands()) >= set(ENTRIES) - PARTS


def test_help_shows_each_command_once_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ((), ("--help",), ("help",)):
        status, said, _ = ended(capsys, *words)
        assert (status, said) == (0, main.help_text())
    lines = said.splitlines()
    assert max(map(len, lines)) <= 100
    shown = [line.split()[0] for line in lines if line.startswith("  ")]
    assert shown == [entry.shown for group in GROUPS.values() for entry in group] + ["completion"]
    assert all(entry.summary[0].isupper() and not entry.summary.endswith(".") for entry in ENTRIES.values())


def test_the_help_of_manage_py_shows_ours_in_groups_and_names_djangos() -> None:
    said = main.manage_help_text(get_commands())
    blocks = {block.splitlines()[0]: block.splitlines()[1:] for block in said.split("\n\n")[1:-1]}
    assert list(blocks) == [f"{heading}:" for heading in (*GROUPS, "Source code", "Django's")]
    shown = [row.split()[0] for heading in GROUPS for row in blocks[f"{heading}:"]]
    assert sorted(shown) == sorted(ENTRIES.keys() - PARTS)
    assert set(" ".join(blocks["Source code:"]).split()) == CHECKOUT_ONLY
    djangos = " ".join(blocks["Django's:"]).split()
    assert {"shell", "dumpdata"} <= set(djangos)
    assert not set(djangos) & (OURS | set(shown) | CHECKOUT_ONLY)


def test_a_command_has_one_shown_name_and_manage_pys(installed: None) -> None:
    assert entry_of("worker") is entry_of("gpu_worker") is ENTRIES["gpu_worker"]
    assert entry_of("create-key") is entry_of("create_key")
    assert entry_of("gpu-worker") is None
    usage = load_command_class("dispatcher_project", "gpu_worker").create_parser("gpu-dispatcher", "worker")
    assert usage.prog == "gpu-dispatcher worker"
    assert "--settings" not in usage.format_help()


def test_texts_name_the_command_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert program.command_line("create_key --tenant a") == "python3 manage.py create_key --tenant a"
    monkeypatch.setattr(program, "IN_CHECKOUT", False)
    assert program.command_line("create_key --tenant a") == "gpu-dispatcher create-key --tenant a"
    assert program.command_line("gpu_worker") == "gpu-dispatcher worker"
    assert program.usage_name("up") == "gpu-dispatcher up"


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("sbmit", "there is no command 'sbmit' (did you mean submit?); `gpu-dispatcher --help` lists all"),
        (
            "write-docs",
            "write-docs works on the source code: run `python3 manage.py write_docs` in",
        ),
        ("shell", "there is no command 'shell'"),
    ],
)
def test_an_unknown_command_is_one_line(capsys: pytest.CaptureFixture[str], word: str, says: str) -> None:
    status, said, error = ended(capsys, word)
    assert (status, said) == (2, "")
    (line,) = error.splitlines()
    assert line.startswith(f"gpu-dispatcher: {says}")


def test_the_version_is_pyprojects(capsys: pytest.CaptureFixture[str]) -> None:
    assert f'version = "{main.version()}"' in (ROOT / "pyproject.toml").read_text()
    assert ended(capsys, "--version") == (0, f"gpu-dispatcher {main.version()}\n", "")


def test_a_package_that_hides_ours_ends_it_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "__init__.py").touch()
    code = "from dispatcher_project.cli.main import gpu_dispatcher as go; go(['gpu-dispatcher', 'top'])"
    path = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; "
    done = subprocess.run(
        [sys.executable, "-P", "-c", path + code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"gpu-dispatcher: {tmp_path}/jobs hides this program's package 'jobs'")


def test_a_dispatcher_that_does_not_run_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, installed: None
) -> None:
    for command in ("beat", "web"):
        status, _, error = ended(capsys, command, "--data-dir", str(tmp_path))
        assert (status, len(error.splitlines())) == (2, 1)
        assert f"start it with `gpu-dispatcher up --data-dir {tmp_path}`" in error
