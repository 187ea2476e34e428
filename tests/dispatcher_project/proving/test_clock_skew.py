"""A worker with a wrong clock has to do its part, where there is one to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher_project.proving.faults.others import ClockSkew


@pytest.mark.parametrize(
    ("completed", "waiting", "wrong"),
    [(3, 10, False), (0, 10, True), (0, 0, False), (0, None, True)],
    ids=["it works", "it does nothing", "there is nothing to do", "the database does not say"],
)
def test_it_must_complete_something_while_jobs_wait(completed: int, waiting: int | None, wrong: bool) -> None:
    trial: Any = SimpleNamespace(
        start_worker=lambda *_, **__: SimpleNamespace(pid=7, stop=lambda seconds: None),
        state=SimpleNamespace(completed_by=lambda pid: completed, waiting=lambda: waiting),
    )
    fault = ClockSkew()
    fault.play(trial)
    fault.mend(trial)
    assert bool(fault.wrongs(trial, [])) is wrong
