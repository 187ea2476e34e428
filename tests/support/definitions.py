"""Definitions of workflows, and their errors."""

from __future__ import annotations

from typing import Any

import pytest

from foundation.http_api.problems import Problem
from workflows.definition.read import read_definition


def errors_of(value: Any, **more: Any) -> list[tuple[str, str]]:
    with pytest.raises(Problem) as refused:
        read_definition(value, **more)
    assert refused.value.status == 422
    return [(error.pointer, error.code) for error in refused.value.errors]


def nodes(**found: Any) -> dict[str, Any]:
    return {"nodes": found}
