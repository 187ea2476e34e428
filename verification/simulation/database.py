"""The real SQLite behind Django, in memory, with points where a process can die or lose its database.

A transaction is one step: with one connection no other process can act in between, as on a server with
serialisable transactions. Statements outside a transaction are steps of their own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.core.management import call_command
from django.db import OperationalError, connections

from verification.simulation.active_faults import ActiveFaults
from verification.simulation.scheduler import START, Scheduler

connection: Any = connections["default"]  # not Django's proxy: its methods are replaced
_templates: dict[str, sqlite3.Connection] = {}
_EMPTY = ""


def fresh_database(register: Callable[[], None], registry: str) -> None:
    """Create the tables with only the registry; migrations and `register` run once per process
    and registry.

    register: fills the tables. registry: the name under which its result is kept."""
    if connection.vendor != "sqlite" or not connection.is_in_memory_db():
        raise RuntimeError("the simulator wipes its database: it needs one in memory")
    connection.ensure_connection()
    if _EMPTY not in _templates:
        call_command("migrate", verbosity=0, run_syncdb=True)
        _templates[_EMPTY] = copy_database()
    if registry not in _templates:
        _templates[_EMPTY].backup(connection.connection)
        register()
        _templates[registry] = copy_database()
    _templates[registry].backup(connection.connection)


def copy_database() -> sqlite3.Connection:
    """Return a snapshot in memory, for `restore_database`."""
    copy = sqlite3.connect(":memory:", check_same_thread=False)
    connection.connection.backup(copy)
    return copy


def restore_database(copy: sqlite3.Connection) -> set[str]:
    """Drop every commit since the copy, as after the promotion of an asynchronous standby.

    Returns the attempts whose start, acceptance or end was lost."""
    before, since = _attempt_states(copy), _attempt_states(connection.connection)
    copy.backup(connection.connection)
    copy.close()
    return {attempt_id for attempt_id, state in since.items() if before.get(attempt_id) != state}


def has_attempt(attempt_id: str) -> bool:
    """Read without Django, whose statements are steps of the history."""
    found = connection.connection.execute("SELECT 1 FROM jobs_attempt WHERE id = ?", (attempt_id,))
    return found.fetchone() is not None


def _attempt_states(database: sqlite3.Connection) -> dict[str, str]:
    """Read without Django, whose statements are steps of the history."""
    return dict(database.execute("SELECT id, state FROM jobs_attempt"))


@dataclass(slots=True)
class Forgotten:
    """Commits that the database lost. spans: (begin, end) of each loss. attempts: whose start, acceptance or
    end was lost."""

    spans: list[tuple[float, float]] = field(default_factory=list)
    attempts: set[str] = field(default_factory=set)

    def covers(self, at: float) -> bool:
        """Return True if a commit at this virtual time was lost in a failover."""
        return any(begin <= at <= end for begin, end in self.spans)

    def since(self, at: float) -> bool:
        """Return True if commits after this moment were lost: an answer of then may be about one of them."""
        return any(end >= at for _, end in self.spans)


class _Severed(Exception):
    """The error of PostgreSQL's driver for a broken connection: it has no code."""

    sqlstate = None


class DatabaseLink:
    """Intercepts Django's connection to SQLite while a world runs."""

    def __init__(self, scheduler: Scheduler, active_faults: ActiveFaults) -> None:
        self._scheduler, self._faults = scheduler, active_faults
        self._commit: Callable[[], None] = connection._commit
        self.offset_seconds = 0.0
        """Of its wall clock."""
        self._severed: set[tuple[str, bool]] = set()
        """Processes, and whether it is the connection that they write over."""

    def open(self) -> None:
        connection.execute_wrappers.append(self._execute)
        connection.connection.create_function("strftime", 2, self._now)  # called by Django's Now()
        vars(connection)["_commit"] = self._commit_or_lose

    def close(self) -> None:
        connection.execute_wrappers.remove(self._execute)
        vars(connection).pop("_commit", None)

    def sever(self, processes: Iterable[str]) -> None:
        """Break the connections of these processes; each has one for writes and one for reads: the
        next statement on each fails."""
        self._severed.update((name, writes) for name in processes for writes in (False, True))

    def time(self) -> float:
        """Return its wall clock, as PostgreSQL does. Raises OperationalError."""
        process = self._scheduler.current()
        self._scheduler.point("database time")
        if process is not None and self._faults.is_database_down(process.name):
            raise OperationalError("the database is down")
        return START.timestamp() + self._scheduler.now + self.offset_seconds

    def _now(self, form: str, moment: str) -> str:
        """SQLite's function, for the only argument that is used."""
        if (form, moment) != ("%Y-%m-%d %H:%M:%f", "NOW"):
            raise ValueError(f"no strftime({form!r}, {moment!r}) in the simulator")
        now = START + timedelta(seconds=self._scheduler.now + self.offset_seconds)
        return now.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]

    def _execute(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        process = self._scheduler.current()
        if process is None:
            return execute(sql, params, many, context)
        if not connection.in_atomic_block:
            self._scheduler.point(f"database {' '.join(sql[:40].split())}")  # a step is a line of the history
        if (over := (process.name, connection.in_atomic_block)) in self._severed:
            self._severed.discard(over)
            raise OperationalError("server closed the connection unexpectedly") from _Severed()
        if self._faults.is_database_down(process.name):
            raise OperationalError("the database is down")
        return execute(sql, params, many, context)

    def _commit_or_lose(self) -> None:
        """Not a step of its own: a crash comes right before it or right after."""
        process = self._scheduler.current()
        if process is not None and self._faults.is_database_down(process.name):
            raise OperationalError("the database is down")
        if process is not None and not process.alive:
            raise OperationalError("its process is dead")
        if process is not None and self._faults.happens(self._faults.commit_fails):
            self._scheduler.note(process.name, "COMMIT failed")
            raise OperationalError("disk I/O error" if self._faults.happens(0.5) else "COMMIT failed")
        self._commit()
        if process is not None and self._faults.happens(self._faults.commit_reply_lost):
            self._scheduler.note(process.name, "COMMIT's reply lost")
            raise OperationalError("the connection broke in COMMIT") from _Severed()
