"""Installs a package of examples/ for one test, without pip: its metadata on a path of `sys.path`."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpus.registry.queries import rows_changed
from gpus.runners.registry import RUNNERS

EXAMPLES = Path(__file__).parents[2] / "examples"


@contextmanager
def installed(package: str, folder: Path) -> Iterator[None]:
    """Simulate `pip install ./examples/PACKAGE`: a dist-info, here in `folder`."""
    source = EXAMPLES / package
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    facts = {"Metadata-Version": "2.1", "Name": project["name"], "Version": project["version"]}
    (info / "METADATA").write_text("".join(f"{name}: {value}\n" for name, value in facts.items()))
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    sys.path[:0] = paths = [str(folder), str(source)]
    _look_again()
    try:
        yield
    finally:
        for path in paths:
            sys.path.remove(path)
        _look_again()


def _look_again() -> None:
    """A process reads the installed packages only once."""
    RUNNERS.reload()
    rows_changed.send(None)
