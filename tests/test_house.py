"""The house's plan, as its imports draw it: no circle of modules, also not of imports for type checkers.
What docstrings point to exists. What a process keeps, an object keeps that has an owner."""

from __future__ import annotations

import ast
import re
import tomllib
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
_SIBLING = re.compile(r"(?<!`)`([a-z_]+)`(?!`)")
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


_NO_MODULES = {"doctor", "up", "url_prefix", "dispatcher_up", *PACKAGES}
"""Other names in docstrings of packages: commands, a setting, a metric, and top-level packages."""


def missing_siblings(docstring: str, folder: Path) -> set[str]:
    """Names of modules in a package's docstring that the package does not have."""
    named = set(_SIBLING.findall(docstring)) - _NO_MODULES
    return {name for name in named if not any((folder / one).exists() for one in (name, f"{name}.py"))}


def test_docstrings_of_packages_name_modules_that_they_have() -> None:
    files: list[Path] = [
        file for package in (*PACKAGES, "tests") for file in (ROOT / package).rglob("__init__.py")
    ]
    docstrings = {file: ast.get_docstring(ast.parse(file.read_text())) or "" for file in files}
    assert {
        file: missing for file, text in docstrings.items() if (missing := missing_siblings(text, file.parent))
    } == {}


def test_a_docstring_with_a_module_that_a_package_does_not_have_is_found() -> None:
    text = "`gpu` decides which run is next, and `cache` which models stay loaded."
    assert missing_siblings(text, ROOT / "gpu_host" / "local") == {"cache"}


@pytest.mark.parametrize(
    "name", ["foundation.foreign_texts", "jobs.ports.NoSuchPort", "gpus.leasing.away.Leases"]
)
def test_a_docstring_that_points_nowhere_is_found(name: str) -> None:
    assert list(pointers(f'X = 1\n"""As in `{name}`."""\n')) == [name]
    assert not leads_somewhere(name)


_GLOBALS = {
    "foundation/ids.py": "ids ascend within a process, whatever makes them",
    "verification/simulation/campaign.py": "the initializer of a process pool has no other place",
}
"""Files with a `global` statement, and why."""
_MADE_ONCE = {
    "jobs/ports.py production_ports": "the one way to a process's ports, which own its state",
    "dispatcher_project/web/protocol.py too_many_connections": "a constant",
    "dispatcher_project/documentation/api_routes.py document": "a constant of the code",
    "jobs/api/documents.py _generate": "a constant of the code",
    "jobs/callbacks/sending.py _tls": "the certificates of the machine",
    "foundation/fetch.py _tls": "the certificates of the machine",
    "gpu_host/handlers/files.py _opener": "without state: no cookies, no connections",
    "gpus/leasing/library.py script_names": "a constant of the code",
    "gpus/leasing/library.py library_code": "a constant of the code",
}
"""Cached functions without arguments, each of which makes one object for a process, and why."""
_MADE_ONCE_BY = re.compile(
    r"^@(?:functools\.)?(?:lru_)?cache\b.*\n(?:@.*\n)*(?:async )?def (\w+)\(\)", re.MULTILINE
)


def has_global_statement(source: str) -> bool:
    """Whether a function of this file replaces a value of its module."""
    if not re.search(r"^\s+global \w", source, re.MULTILINE):
        return False  # reading the trees of all files takes three seconds
    return any(isinstance(node, ast.Global) for node in ast.walk(ast.parse(source)))


def product_files() -> Iterator[tuple[str, str]]:
    """The names and the texts of all files but the benchmarks, which are programs of one run."""
    for package in PACKAGES:
        if package != "benchmarks":
            for file in sorted((ROOT / package).rglob("*.py")):
                yield str(file.relative_to(ROOT)), file.read_text()


def test_objects_with_an_owner_keep_state_and_not_modules() -> None:
    files = list(product_files())
    assert {name for name, text in files if has_global_statement(text)} == set(_GLOBALS)
    made_once = {f"{name} {function}" for name, text in files for function in _MADE_ONCE_BY.findall(text)}
    assert made_once == set(_MADE_ONCE)


def test_planted_state_of_a_module_is_found() -> None:
    assert has_global_statement("x = 0\n\n\ndef f():\n    global x\n    x = 1\n")
    assert not has_global_statement('"""Of\n    global limits."""\n')
    assert _MADE_ONCE_BY.findall("@lru_cache(maxsize=1)\ndef found() -> int:\n    return 1\n") == ["found"]
    assert not _MADE_ONCE_BY.findall("@cache\ndef found(name: str) -> int:\n    return 1\n")


_WIRED = (
    "Announcer",
    "ArtifactBytes",
    "AsgiGateway",
    "CogUploads",
    "ConnectionPool",
    "DeliveryWorker",
    "DueRuns",
    "EventHub",
    "FairThreads",
    "GpuWorker",
    "LayoutOverlapSweeper",
    "PinnedWatch",
    "Presence",
    "ResponseDeadline",
    "SubmitBatcher",
    "SubmitHandler",
)
"""Parts of production that only `dispatcher_project.wiring` makes, and for the simulation `verification`."""
_MAKES_WIRED = re.compile(rf"(?<!class )(?<!\w)(?:{'|'.join(_WIRED)})\(")


def test_only_wiring_makes_the_parts_of_production() -> None:
    makers = {name for name, text in product_files() if _MAKES_WIRED.search(text)}
    assert {name for name in makers if not name.startswith("verification/")} == {
        "dispatcher_project/wiring.py"
    }


_VALUES = r"\w*(?:Bounds|Confinement|Limits|Options|Rules|Times)\b"
_OTHER_DEFAULT = re.compile(
    rf"\bor {_VALUES}\(\)|^(?!DEFAULT_|NO_)[A-Z_]+ = {_VALUES}\(\)$|\bdefault_factory={_VALUES}", re.MULTILINE
)


def test_frozen_limits_default_to_a_constant() -> None:
    """Of the form `limits: Limits = DEFAULT_LIMITS`; only objects with state are made in the body."""
    assert {name for name, text in product_files() if _OTHER_DEFAULT.search(text)} == set()


@pytest.mark.parametrize(
    "line",
    [
        "        self._limits = limits or PickLimits()",
        "LIMITS = FireLimits()",
        "    fire: FireLimits = field(default_factory=FireLimits)",
    ],
)
def test_another_default_of_limits_is_found(line: str) -> None:
    assert _OTHER_DEFAULT.search(f"\n{line}\n")


_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]+")


def replaced_constants(source: str) -> int:
    """Return how often a test file replaces a constant by `setattr`, also one of Django's settings."""
    if "setattr(" not in source:
        return 0
    found = 0
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "setattr"
        ):
            name = node.args[1] if len(node.args) == 3 else node.args[0]
            if isinstance(name, ast.Constant):
                found += bool(_CONSTANT.fullmatch(str(name.value).rpartition(".")[2]))
    return found


def test_tests_pass_limits_to_objects_and_replace_no_further_constants() -> None:
    """Constants are replaced where no object takes the value yet: a file's number may only fall, and the list
    with it."""
    allowed = tomllib.loads((ROOT / "tests" / "replaced_constants.toml").read_text())
    found = {
        str(file.relative_to(ROOT)): replaced_constants(file.read_text())
        for file in (ROOT / "tests").rglob("*.py")
    }
    assert {name: count for name, count in found.items() if count} == allowed


def test_a_replaced_constant_is_found() -> None:
    assert (
        replaced_constants('patch.setattr(module, "MAX_ROWS", 2)\npatch.setattr("jobs.x._LIMIT", 1)\n') == 2
    )
    assert replaced_constants('patch.setattr(module, "insert", crash)\n') == 0
