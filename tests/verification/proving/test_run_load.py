"""The clients of runs do what the kind of a run demands, and write it to the ledger."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher_client import NotFound
from tests.support.waiting import wait_for
from verification.proving.ledger import Ledger, read_lines
from verification.proving.run_kinds import ASKS, ERASED, FAILS, FILM, INLINE, PERSON, RunKind
from verification.proving.run_load import RunLoad
from verification.proving.run_mix import PlannedRun


class Workflows:
    """Of a tenant's client. loses: how many definitions the database loses after they were stored. waits:
    what the run waits for, one answer each."""

    def __init__(self, *, loses: int = 0, waits: tuple[str, ...] = (), ends: str = "completed") -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._loses, self._waits, self._ends = loses, list(waits), ends

    def put(self, name: str, spec: Any) -> None:
        self.calls.append(("put", name))

    def start(self, workflow: Any, inputs: Any, **options: Any) -> Any:
        self.calls.append(("start", workflow if isinstance(workflow, str) else "definition"))
        if self._loses:
            self._loses -= 1
            raise NotFound(404, "not_found", "There is no such workflow.", retryable=False)
        return SimpleNamespace(run_id="r")

    def get_run(self, run_id: str) -> Any:
        waiting = tuple(self._waits[:1])
        return SimpleNamespace(is_over=not waiting, waiting_for=waiting)

    def wait(self, run_id: str, seconds: float) -> Any:
        return SimpleNamespace(status=self._ends)

    def answer(self, run_id: str, key: str, answer: Any) -> None:
        self.calls.append(("answer", self._waits.pop(0)))

    def signal(self, name: str, body: Any, *, run_id: str) -> None:
        self.calls.append(("signal", self._waits.pop(0)))

    def restart(self, run_id: str, nodes: Any) -> None:
        self.calls.append(("restart", nodes))

    def erase(self, run_id: str) -> None:
        self.calls.append(("erase", run_id))


@pytest.mark.parametrize(
    ("kind", "workflows", "restarted", "calls"),
    [
        (FILM, Workflows(), False, [("put", "film"), ("start", "film")]),
        (
            FILM,
            Workflows(loses=1),
            False,
            [("put", "film"), ("start", "film"), ("put", "film"), ("start", "film")],
        ),
        (FILM, Workflows(), True, [("put", "film"), ("start", "film"), ("restart", ["last"])]),
        (FAILS, Workflows(ends="failed"), True, [("put", "fails"), ("start", "fails"), ("restart", None)]),
        (FAILS, Workflows(ends="cancelled"), True, [("put", "fails"), ("start", "fails")]),
        (
            ASKS,
            Workflows(waits=(PERSON, "signal")),
            False,
            [("put", "asks"), ("start", "asks"), ("answer", PERSON), ("signal", "signal")],
        ),
        (INLINE, Workflows(), False, [("start", "definition")]),
        (ERASED, Workflows(), False, [("put", "erased"), ("start", "erased"), ("erase", "r")]),
    ],
)
def test_a_run_gets_what_its_kind_demands(
    kind: RunKind, workflows: Workflows, restarted: bool, calls: list[Any], tmp_path: Path
) -> None:
    clients: Any = {"ada": SimpleNamespace(workflows=workflows)}
    load = RunLoad(clients, Ledger(tmp_path / "ledger.jsonl"), "prove", "http://receiver")
    load.release(PlannedRun("k", 1, "ada", {}, restarted=restarted, kind=kind.name))
    wait_for(lambda: load.counts()["runs_over"] == load.counts()["runs_released"] > 0)
    assert workflows.calls == calls
    asked, accepted, *_ = read_lines(tmp_path / "ledger.jsonl")
    assert (asked["kind"], accepted["run"]) == (kind.name, "r")
