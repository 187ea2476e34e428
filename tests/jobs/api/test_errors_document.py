"""docs/reference/api_errors.md lists every error code in the source."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import artifacts.errors
import jobs.domain.errors
import workflows.domain.errors
from jobs.api.errors import _CODES

ROOT = Path(__file__).resolve().parents[3]
_RAISED = re.compile(r'(?:Problem\(\s*\d+,\s*|RegistryRefused\(\s*|code = |code=)"([a-z_]+)"')

_FOLDERS = ("jobs/api", "workflows/api", "foundation/http_api", "gpus/api", "gpus/registry", "gpus/health")
_MODULES = (jobs.domain.errors, workflows.domain.errors, artifacts.errors)


def codes() -> set[str]:
    found = set(_CODES.values()) - {"throttled"}
    for folder in _FOLDERS:
        for file in (ROOT / folder).glob("*.py"):
            found |= set(_RAISED.findall(file.read_text()))
    return found | {code for module in _MODULES for code in codes_of(module)}


def codes_of(module: ModuleType) -> set[str]:
    """Return the codes of the error classes that a module defines."""
    classes = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, Exception)]
    return {
        one.code
        for one in classes
        if one.__module__ == module.__name__ and one is not jobs.domain.errors.Refused
    }


def test_every_code_is_documented() -> None:
    documented = set(re.findall(r"`([a-z_]+)`", (ROOT / "docs/reference/api_errors.md").read_text()))
    assert len(codes()) > 25
    assert all(codes_of(module) for module in _MODULES)
    assert codes() - documented == set()
