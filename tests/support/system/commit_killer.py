"""Kills a process of a running system inside a COMMIT, by `tests/scenarios/dying/sitecustomize.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from django.db import connection

from dispatcher_project.supervisor.data_folder import ROOT
from tests.support.system.judges import Judge
from tests.support.system.running import System
from tests.support.waiting import wait_for


class CommitKiller:
    """folder: where its order is put, a file with a process id and a query."""

    def __init__(self, folder: Path) -> None:
        self._order = folder / "order"

    @property
    def environment(self) -> Mapping[str, str]:
        """For the processes that can be killed."""
        return {"DIES_AT": str(self._order), "PYTHONPATH": str(ROOT / "tests" / "scenarios" / "dying")}

    @contextmanager
    def kills(self, system: System, judge: Judge, child: str, query: str) -> Iterator[None]:
        """In the block something makes the child write a row that the query finds. Leaving the block waits
        until the child is killed in the COMMIT of this row, and until it has a successor."""
        pid = system.pid(child)
        fresh = self._order.with_suffix(".new")
        fresh.write_text(f"{pid}\n{query}")
        fresh.rename(self._order)
        try:
            yield
            wait_for(lambda: not _lives(pid), what=f"the death of {child}")
            assert not self._order.exists(), f"{child} died of something else"
        finally:
            self._order.unlink(missing_ok=True)
        with judge.rows():
            wait_for(lambda: _finds_a_row(query), seconds=3, what="the row in the database")
        system.wait_for_successor(child, pid)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _finds_a_row(query: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone() is not None
