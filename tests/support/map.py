"""Which tests cover a module: by its name in the folder of its name, else by its importers.

`.venv/bin/python -m tests.support.map` writes tests/MAP.md.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "tests" / "MAP.md"
PACKAGES = (
    "dispatcher_client",
    "dispatcher_project",
    "admin_ui",
    "workflows",
    "jobs",
    "gpu_host",
    "gpus",
    "artifacts",
    "foundation",
    "verification",
)
MOST = 3
"""Test files named for a module without one of its name: those that import fewest others."""
_SIMULATED = "tests/verification/simulation"
_COMMANDS = "dispatcher_project.management.commands"
COVERED = {
    f"{_COMMANDS}.pause": "tests/dispatcher_project/cli/test_switching.py",
    f"{_COMMANDS}.resume": "tests/dispatcher_project/cli/test_switching.py",
    "admin_ui.formats.en.formats": "tests/admin_ui/test_formats.py",
    "foundation.database.index_operations": "tests/dispatcher_project/test_migrations.py",
    "foundation.database.postgresql.base": "tests/foundation/database/test_postgresql.py",
    "dispatcher_project.cli.paging": "tests/dispatcher_project/cli/test_jobs_and_servers.py",
    "verification.hostile.slow_names.sitecustomize": "tests/verification/hostile/test_slow_names.py",
    "verification.simulation.artifact_faults": f"{_SIMULATED}/test_files.py",
    "verification.simulation.callback_faults": f"{_SIMULATED}/test_callbacks.py",
    "verification.simulation.store_faults": f"{_SIMULATED}/test_files.py",
    "verification.simulation.workflow_definitions": f"{_SIMULATED}/test_mechanisms.py",
    "workflows.apps": "tests/dispatcher_project/test_migrations.py",
    "workflows.schedules.apps": "tests/dispatcher_project/test_migrations.py",
}
"""Test files of modules that no test imports: they are loaded by name, or run in another process."""
_HEAD = """# Which tests cover a module

Written by `.venv/bin/python -m tests.support.map`; a test fails while it is older than the code. A test file
of the module's name stands alone (**bold**), as does one that `COVERED` in tests/support/map.py names; else
those that import it and little else. *By way of* names a module that uses it, *in front of* one that it uses,
whose tests cover it.
"""


def product_modules() -> list[str]:
    """Those with code of their own."""
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if "migrations" not in parts and parts[-1] != "__init__":
                found.append(".".join(parts))
    return found


def test_files() -> list[Path]:
    return sorted((ROOT / "tests").rglob("test_*.py"))


def imported_by(path: Path, modules: frozenset[str]) -> set[str]:
    """The product modules that the file imports, also by name out of their package."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    found = set()
    for node in _imports(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *([node.module] if node.module else [])))
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return {module for name in found if (module := exported().get(name, name)) in modules}


def _imports(block: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """All in a block and the blocks in it. Expressions, which are nine of ten nodes, hold none."""
    for field in _BLOCKS:
        for node in getattr(block, field, ()):
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield node
            else:
                yield from _imports(node)


_BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")
"""Fields of a node that hold statements, or parts of one that hold them."""


@cache
def exported() -> dict[str, str]:
    """Names that a package's `__init__` has from its modules, and whose they are."""
    found = dict[str, str]()
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("__init__.py"))):
        package = ".".join(path.relative_to(ROOT).parts[:-1])
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom):
                base = f"{package}.{node.module}" if node.level else str(node.module)
                found |= {f"{package}.{alias.asname or alias.name}": base for alias in node.names}
    return found


def covers(
    modules: Iterable[str], tests: Mapping[str, set[str]], uses: Mapping[str, set[str]]
) -> Iterator[tuple[str, str]]:
    """(module, its cell on the page). tests, uses: by test file and by module, what it imports."""
    users = defaultdict[str, set[str]](set)
    for user, used in uses.items():
        for module in used:
            users[module].add(user)
    importers = defaultdict[str, list[str]](list)
    for file in sorted(tests, key=lambda file: (len(tests[file]), file)):
        for module in tests[file]:
            importers[module].append(file)

    def own(module: str) -> list[str]:
        *folders, name = module.split(".")
        named = f"tests/{'/'.join(folders)}/test_{name}.py"
        if named in tests:
            return [f"**{named}**"]
        if module in COVERED:
            return [COVERED[module]]
        return importers[module][:MOST]

    for module in modules:
        if found := own(module):
            yield module, ", ".join(found)
            continue
        for how, others in (("by way of", users[module]), ("in front of", uses.get(module, set()))):
            near = sorted((len(users[other]), other) for other in others if own(other))
            if near:
                yield module, f"*{how}* {near[0][1]}: {', '.join(own(near[0][1]))}"
                break
        else:
            yield module, "—"


@cache
def page() -> str:
    modules = product_modules()
    known = frozenset(modules)
    tests = {str(path.relative_to(ROOT)): imported_by(path, known) for path in test_files()}
    uses = {
        module: imported_by(ROOT / f"{module.replace('.', '/')}.py", known) - {module} for module in modules
    }
    lines = [_HEAD]
    folder = ""
    for module, cell in covers(modules, tests, uses):
        if (here := module.rpartition(".")[0]) != folder:
            folder = here
            lines.append(f"\n## {folder.replace('.', '/')}\n\n| Module | Tests |\n| --- | --- |")
        lines.append(f"| `{module.rpartition('.')[2]}` | {cell.replace('tests/', '')} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
