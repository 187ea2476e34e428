"""A supervisor of small fake children, run as a process of its own so that it can be killed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.supervised import Run


@pytest.fixture
def supervise(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Run]]:
    """Starts a supervisor over `stages` of children; `stop` defaults to the reversed order of the start."""
    runs: list[Run] = []

    def start(*stages: list[dict[str, Any]], stop: list[list[str]] | None = None) -> Run:
        folder = tmp_path_factory.mktemp("s")
        names = [[one["name"] for one in stage if not one.get("step")] for stage in stages]
        plan = {"start": stages, "stop": stop or [stage for stage in names[::-1] if stage]}
        (folder / "plan.json").write_text(json.dumps(plan))
        runs.append(Run(folder))
        return runs[-1]

    yield start
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()
