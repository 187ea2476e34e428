"""`pip install ./dispatcher_client`: the folder is a project of its own, and the whole one holds it too."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

import dispatcher_client
from dispatcher_client import __main__
from dispatcher_project.supervisor.data_folder import ROOT

FOLDER = Path(dispatcher_client.__file__).parent
PROJECT = tomllib.loads((FOLDER / "pyproject.toml").read_text())


def imported(path: Path) -> set[str]:
    """Names of the packages that a file imports, without the client's own."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(str(node.module).partition(".")[0])
    return found


def test_both_projects_have_one_version() -> None:
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert dispatcher_client.__version__ == whole["version"]
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "__init__.py"
    assert PROJECT["project"]["requires-python"] == whole["requires-python"]


def test_only_optional_modules_need_another_package() -> None:
    foreign = {path.name: imported(path) - sys.stdlib_module_names for path in FOLDER.glob("*.py")}
    assert {name: packages for name, packages in foreign.items() if packages} == {
        "httpx_transport.py": {"httpx"},
        "workflow_simulation.py": {"jmespath"},
    }
    assert PROJECT["project"]["dependencies"] == []
    (httpx,) = PROJECT["project"]["optional-dependencies"]["async"]
    assert httpx.startswith("httpx>=")


def test_the_wheel_takes_every_file() -> None:
    """The folder has no files besides those in hatch's configuration."""
    taken = PROJECT["tool"]["hatch"]["build"]["include"]
    files = {path.name for path in FOLDER.iterdir() if path.is_file()}
    assert {"*.py", "py.typed"} == set(taken)
    assert files - {path.name for kind in taken for path in FOLDER.glob(kind)} == {"pyproject.toml"}
    assert not [path for path in FOLDER.iterdir() if path.is_dir() and path.name != "__pycache__"]


def test_the_console_script_is_the_command_line() -> None:
    module, _, name = PROJECT["project"]["scripts"]["dispatcher-client"].partition(":")
    assert module == __main__.__name__
    assert getattr(__main__, name) is __main__.main
