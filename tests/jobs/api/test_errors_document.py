"""docs/reference/api_errors.md lists every error code in the source."""

from __future__ import annotations

import re
from pathlib import Path

from jobs.api.errors import _CODES
from jobs.domain import errors

ROOT = Path(__file__).resolve().parents[3]
_RAISED = re.compile(r'(?:Problem\(\s*\d+,\s*|RegistryRefused\(\s*|code = |code=)"([a-z_]+)"')


def codes() -> set[str]:
    found = set(_CODES.values()) - {"throttled"}
    for folder in ("jobs/api", "foundation/http_api", "gpus/api", "gpus/registry", "gpus/health"):
        for file in (ROOT / folder).glob("*.py"):
            found |= set(_RAISED.findall(file.read_text()))
    return found | {
        kind.code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.Refused) and kind is not errors.Refused
    }


def test_every_code_is_documented() -> None:
    documented = set(re.findall(r"`([a-z_]+)`", (ROOT / "docs/reference/api_errors.md").read_text()))
    assert len(codes()) > 25
    assert codes() - documented == set()
