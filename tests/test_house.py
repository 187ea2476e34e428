"""The house's plan, as its imports draw it: no circle of modules, also not of imports for type checkers.
What docstrings point to exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

from dispatcher_project.supervisor.data_folder import ROOT

PACKAGES = (
    "dispatcher_project",
    "benchmarks",
    "verification",
    "admin_ui",
    "workflows",
    "jobs",
    "gpu_host",
    "gpus",
    "artifacts",
    "foundation",
    "dispatcher_client",
)
_POINTER = re.compile(rf"`((?:{'|'.join((*PACKAGES, 'tests'))})(?:\.\w+)+)`")
_PERMISSIONS = {"gpus.change_server"}
"""Django's names of permissions look like modules."""


def in_circles(graph: grimp.ImportGraph) -> set[str]:
    """Modules that import themselves by way of others."""
    return {
        module
        for module in graph.modules
        if any(
            module in graph.find_upstream_modules(other)
            for other in graph.find_modules_directly_imported_by(module)
        )
    }


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, cache_dir=None)


def test_no_circle_of_modules(graph: grimp.ImportGraph) -> None:
    assert not in_circles(graph)


def test_a_planted_circle_is_found(graph: grimp.ImportGraph) -> None:
    graph.add_import(importer="foundation.texts", imported="jobs.submission.submit")
    assert {"foundation.texts", "jobs.submission.submit"} <= in_circles(graph)
    graph.remove_import(importer="foundation.texts", imported="jobs.submission.submit")


def pointers(source: str) -> Iterator[str]:
    """Full names of our modules, and of what they hold, in a file's docstrings."""
    if not _POINTER.search(source):
        return  # most files have none, and reading their trees takes three seconds
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield from _POINTER.findall(str(node.value.value))


def leads_somewhere(name: str) -> bool:
    """Whether there is such a module, with the rest of the name in its text."""
    at, rest = ROOT, name.split(".")
    while rest and (at / rest[0]).is_dir():
        at /= rest.pop(0)
    if rest and (at / f"{rest[0]}.py").is_file():
        at /= f"{rest.pop(0)}.py"
    text = (at / "__init__.py" if at.is_dir() else at).read_text() if rest else ""
    return all(re.search(rf"\b{part}\b", text) for part in rest)


def test_docstrings_name_modules_that_exist() -> None:
    files: list[Path] = [file for package in (*PACKAGES, "tests") for file in (ROOT / package).rglob("*.py")]
    named = {(str(file.relative_to(ROOT)), name) for file in files for name in pointers(file.read_text())}
    assert named
    assert [one for one in sorted(named) if one[1] not in _PERMISSIONS and not leads_somewhere(one[1])] == []


@pytest.mark.parametrize(
    "name", ["foundation.foreign_texts", "jobs.ports.NoSuchPort", "gpus.leasing.away.Leases"]
)
def test_a_docstring_that_points_nowhere_is_found(name: str) -> None:
    assert list(pointers(f'X = 1\n"""As in `{name}`."""\n')) == [name]
    assert not leads_somewhere(name)
