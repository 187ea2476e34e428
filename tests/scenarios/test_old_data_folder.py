"""A data folder of an older version, opened by this one.

`old_data_folder/db.sql` is the database that version 0.1 of 2026-11-25 (before rooms and names changed) left
behind when it was killed, with jobs in every state. It has no keys and no passwords: `up` makes new ones.
Its times are moved to now: a day later the deadlines of its jobs are over.
"""

from __future__ import annotations

import re
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dispatcher_project.supervisor.embedded import find_valkey
from tests.support.system.running import SHORT_WAITS
from tests.support.system.up import Up
from tests.support.waiting import wait_for

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.skipif(find_valkey() is None, reason="no Valkey or Redis server binary"),
]
LEFT_AT = datetime(2026, 11, 26, 10, 40, 42, tzinfo=UTC)
BEFORE = {
    "cancelled": 1, "completed": 17, "failed": 3, "queued": 1, "retrying": 1, "running": 5, "scheduled": 1,
}  # fmt: skip
AFTER = {"cancelled": 1, "completed": 23, "failed": 4, "scheduled": 1}
"""The job that was retrying fails in all its attempts."""


def test_the_jobs_of_an_older_version_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "var"
    folder.mkdir()
    dump = Path(__file__).parent / "old_data_folder" / "db.sql"
    with closing(sqlite3.connect(folder / "db.sqlite3")) as database:
        database.executescript(_as_of_now(dump.read_text()))
    assert _states(folder) == BEFORE
    up = Up(folder, environment={**SHORT_WAITS, "DISPATCHER_RECONCILE_SECONDS": "2"})
    try:
        new = up.ask("/api/v1/queue/submit", {"model": "zimg", "payload": {"seconds": 0.1}})
        finished = up.ask(f"/api/v1/queue/jobs/{new['job_id']}?wait=60")
        assert finished["status"] == "completed"
        wait_for(lambda: _states(folder) == {**AFTER, "completed": AFTER["completed"] + 1}, seconds=120)
    finally:
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(90) == 0, up.output.read_text()


def _as_of_now(dump: str) -> str:
    """By whole hours, of which sums are kept."""
    later = timedelta(hours=(datetime.now(UTC) - LEFT_AT) // timedelta(hours=1))

    def moved(time: re.Match[str]) -> str:
        return f"'{datetime.fromisoformat(time[1]) + later}"

    return re.sub(r"'(20\d\d-\d\d-\d\d \d\d:\d\d:\d\d)", moved, dump)


def _states(folder: Path) -> dict[str, int]:
    with closing(sqlite3.connect(folder / "db.sqlite3")) as database:
        return dict(Counter(state for (state,) in database.execute("SELECT state FROM jobs_job")))
