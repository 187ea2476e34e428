"""The database: locked, down, full."""

from __future__ import annotations

import contextlib
import resource
import sqlite3
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from verification.proving.faults.base import Fault, wait
from verification.proving.submit_answers import DATABASE

if TYPE_CHECKING:
    from verification.proving.postgresql import OwnPostgresql
    from verification.proving.recovery import Sign
    from verification.proving.trial import Trial

ROUTE = "postgresql"
LAG_SECONDS = 2.0


class DatabaseFault(Fault):
    """Running jobs are not affected, so that new ones must show that it is over."""

    submit_answers = DATABASE

    def signs(self, trial: Trial) -> Mapping[str, Sign]:
        return {"runs begin": trial.runs_begin_since}


class LockDatabase(DatabaseFault):
    name = "lock_database"
    expected = "another process holds SQLite's write lock for 10 s: writes wait, no job is lost"
    bound_seconds, hold_seconds, runs_once = 10.0, 10.0, "all"

    def __init__(self) -> None:
        self._holder: sqlite3.Connection | None = None

    def skip(self, trial: Trial) -> str:
        return super().skip(trial) or ("" if trial.sqlite_file else "its database is not SQLite")

    def play(self, trial: Trial) -> None:
        self._holder = sqlite3.connect(trial.sqlite_file, timeout=10, isolation_level=None)
        self._holder.execute("BEGIN EXCLUSIVE")

    def mend(self, trial: Trial) -> None:
        if self._holder is not None:
            self._holder.close()
            self._holder = None


class DatabaseDown(DatabaseFault):
    name = "database_down"
    expected = "PostgreSQL is unreachable for 10 s: submits get 503 and no 202, results wait in the workers"
    bound_seconds, hold_seconds, runs_once = 10.0, 10.0, "all"

    def skip(self, trial: Trial) -> str:
        behind = trial.proxies is not None and not trial.sqlite_file
        return super().skip(trial) or ("" if behind else "there is no PostgreSQL behind the trial's proxy")

    def play(self, trial: Trial) -> None:
        assert trial.proxies is not None
        trial.proxies.close(ROUTE)

    def mend(self, trial: Trial) -> None:
        assert trial.proxies is not None
        trial.proxies.heal(ROUTE)


class KillPostgresql(DatabaseFault):
    name = "kill_postgresql"
    expected = "PostgreSQL dies and recovers; results wait in the workers"
    bound_seconds, hold_seconds, runs_once = 10.0, 3.0, "all"

    def skip(self, trial: Trial) -> str:
        return super().skip(trial) or ("" if trial.postgresql else "its PostgreSQL is not the trial's own")

    def play(self, trial: Trial) -> None:
        assert trial.postgresql is not None
        trial.postgresql.kill()

    def mend(self, trial: Trial) -> None:
        assert trial.postgresql is not None
        if not trial.postgresql.is_running:
            trial.postgresql.start()


class FailoverPostgresql(DatabaseFault):
    """The last commits are lost: the judge leaves out jobs of that time (`Trial.forgotten`)."""

    name = "failover_postgresql"
    expected = (
        "PostgreSQL dies and a standby takes over that missed the last 2 s: running jobs' results are "
        "stored, nothing older is lost or doubled"
    )
    bound_seconds, hold_seconds = 10.0, 3.0
    settle_seconds = 120.0

    def __init__(self) -> None:
        self._standby: OwnPostgresql | None = None

    def skip(self, trial: Trial) -> str:
        return super().skip(trial) or ("" if trial.postgresql else "its PostgreSQL is not the trial's own")

    def play(self, trial: Trial) -> None:
        assert trial.postgresql is not None
        self._standby = trial.start_standby()
        trial.begin_losing_commits()  # before the cut, whose moment only the servers know
        self._standby.cut_off()
        wait(trial, LAG_SECONDS)
        trial.postgresql.kill()

    def mend(self, trial: Trial) -> None:
        assert self._standby is not None
        self._standby.promote()
        trial.follow(self._standby)
        trial.end_losing_commits()

    def is_over(self, trial: Trial) -> bool:
        """Attempts whose end was lost have no lease any more; the sweep `orphans` finds them."""
        assert trial.state is not None
        live = trial.state.live() or []
        views = trial.state.slot_views([gpu.name for gpu in trial.fleet.gpus]) or {}
        return all(one.slot in views and views[one.slot].attempt_id == one.attempt_id for one in live)


class DiskFull(DatabaseFault):
    """No process of the dispatcher can write to a file, as on a full disk (RLIMIT_FSIZE)."""

    name = "disk_full"
    expected = "submits get 503 and no 202; results wait in the workers until there is room again"
    bound_seconds, hold_seconds, runs_once = 10.0, 10.0, "all"

    def __init__(self) -> None:
        self._pids: list[int] = []

    def skip(self, trial: Trial) -> str:
        if not trial.sqlite_file:
            return super().skip(trial) or "the disk of its PostgreSQL is not the trial's own"
        here = sys.platform == "linux"
        return super().skip(trial) or ("" if here else "only Linux lets one process limit another's files")

    def play(self, trial: Trial) -> None:
        self._pids = [pid for name, pid in trial.django_pids().items() if name != "flower"]
        for pid in self._pids:
            self._limit(pid, 0)

    def mend(self, trial: Trial) -> None:
        for pid in self._pids:
            self._limit(pid, resource.RLIM_INFINITY)
        self._pids = []

    def _limit(self, pid: int, size: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
