"""Reads the dependencies of pyproject.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def dependencies(root: Path, extras: Iterable[str] = ()) -> list[str]:
    """As requirements, with those of the extras."""
    project = _project(root)
    optional = project.get("optional-dependencies", {})
    return [*project["dependencies"], *(text for extra in extras for text in optional[extra])]


def extras(root: Path) -> tuple[str, ...]:
    """The names of all, sorted."""
    return tuple(sorted(_project(root).get("optional-dependencies", {})))


def _project(root: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return project
