"""Waits for SQLite's write lock while another connection has it."""

from __future__ import annotations

import gc
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError
from django.db.utils import ConnectionHandler

from dispatcher_project.settings.base import database
from foundation.database.sqlite3 import base
from foundation.database.sqlite3.base import MAX_WAIT_SECONDS, RECENT_SECONDS, WaitingWriters
from tests.support.sqlite_writer import TIMEOUT, path, writer

__all__ = ["path", "writer"]


class VirtualClock:
    """Replaces `time` where writers let others go first."""

    def __init__(self) -> None:
        self.now, self.slept = 1000.0, 0.0
        self._events: list[tuple[float, Callable[[], None]]] = []

    def monotonic(self) -> float:
        return self.now

    def at(self, seconds: float, event: Callable[[], None]) -> None:
        """It happens during a sleep, `seconds` from now."""
        self._events.append((self.now + seconds - 1e-9, event))

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds
        due = [event for at, event in self._events if at <= self.now]
        self._events = [(at, event) for at, event in self._events if at > self.now]
        for event in due:
            event()


class CountedPauses:
    """Replaces `random`: counts failed attempts of this thread to get the write lock."""

    def __init__(self) -> None:
        self.count, self._thread = 0, threading.get_ident()

    def uniform(self, least: float, most: float) -> float:
        self.count += threading.get_ident() == self._thread
        return (least + most) / 2


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    clock = VirtualClock()
    monkeypatch.setattr(base, "time", clock)
    return clock


def holder_of(path: Path) -> sqlite3.Connection:
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    return other


def begin(writer: Any) -> None:
    writer.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)


def begin_and_commit(writer: Any) -> None:
    begin(writer)
    writer.commit()
    writer.set_autocommit(True)


def statements_of(writer: Any) -> dict[str, Callable[[], object]]:
    """What takes the write lock, by name."""
    add = "INSERT INTO numbers VALUES (1)"
    return {
        "a transaction": lambda: begin(writer),
        "a statement": lambda: writer.cursor().execute(add),
        "a statement of the driver": lambda: writer.driver_cursor().execute(add),
        "several": lambda: writer.cursor().executemany("INSERT INTO numbers VALUES (%s)", [(1,), (2,)]),
    }


@pytest.mark.parametrize("kind", ["a transaction", "a statement", "a statement of the driver", "several"])
def test_a_writer_polls_for_the_lock(
    writer: Any, path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    writer.cursor().execute("CREATE TABLE numbers (n)")
    looked, holder, other = [], holder_of(path), WaitingWriters(str(path))

    def pause(seconds: float) -> None:
        looked.append((seconds, other._is_empty()))
        if len(looked) == 3:
            holder.execute("COMMIT")

    monkeypatch.setattr(base.time, "sleep", pause)
    statements_of(writer)[kind]()
    assert [is_empty for _, is_empty in looked] == [False] * 3, "the others see that it waits"
    assert all(seconds <= 0.004 for seconds, _ in looked)
    assert other._is_empty()
    other.close()
    holder.close()


def test_several_rows_are_written_together_or_not_at_all(writer: Any) -> None:
    writer.cursor().execute("CREATE TABLE numbers (n UNIQUE)")
    with pytest.raises(IntegrityError):
        writer.cursor().executemany("INSERT INTO numbers VALUES (%s)", [(1,), (2,), (1,)])
    assert writer.cursor().execute("SELECT count(*) FROM numbers").fetchone() == (0,)
    assert not writer.connection.in_transaction


def test_a_thread_with_the_lock_collects_an_old_cursor_of_a_connection_that_waits_for_it(
    writer: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's own wait would keep a mutex that the collection needs: both would stop until it gives up."""
    writer.cursor().execute("CREATE TABLE numbers AS SELECT 1 AS n UNION SELECT 2")
    old: list[Any] = [writer.connection.execute("SELECT n FROM numbers")]
    old.append(old)  # only the garbage collector finds it
    holder, waits = holder_of(path), threading.Event()

    def pause(seconds: float) -> None:
        waits.set()
        threading.Event().wait(seconds)

    monkeypatch.setattr(base.time, "sleep", pause)
    insert = statements_of(writer)["a statement"]
    thread = threading.Thread(target=insert, daemon=True)
    thread.start()
    assert waits.wait(30), "it polls"
    del old
    gc.collect()
    assert thread.is_alive(), "it waits still"
    holder.execute("COMMIT")
    thread.join(30)
    assert not thread.is_alive()
    holder.close()


def test_a_transaction_gives_up_after_the_time_out(writer: Any, path: Path) -> None:
    writer.settings_dict["OPTIONS"]["timeout"] = 0.05
    holder = holder_of(path)
    with pytest.raises(OperationalError, match="locked"):
        begin(writer)
    holder.close()


def test_another_error_is_not_retried(writer: Any, path: Path) -> None:
    writer.connection.execute("BEGIN")  # a transaction in a transaction
    raised: list[Exception] = []

    def again() -> None:
        with pytest.raises(OperationalError, match="within a transaction") as error:
            writer._start_transaction_under_autocommit()
        raised.append(error.value)

    thread = threading.Thread(target=again, daemon=True)
    thread.start()
    thread.join(30)
    assert raised


def test_a_connection_is_kept_between_requests(writer: Any) -> None:
    kept = writer.connection
    writer.cursor().execute("SELECT 1")
    writer.close_if_unusable_or_obsolete()
    assert writer.connection is kept


def test_a_connection_whose_file_failed_is_reopened(writer: Any, path: Path) -> None:
    """As when the disk is full, or the file was replaced."""
    with pytest.raises(OperationalError):
        writer.cursor().execute("SELECT * FROM nowhere")
    writer.close_if_unusable_or_obsolete()
    assert writer.connection is None


def test_a_transaction_over_an_older_state_is_refused_at_once(
    writer: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection has read, and another one has written since: it would wait for its whole time-out."""
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("CREATE TABLE numbers AS SELECT 1 AS n UNION SELECT 2")
    reader = writer.connection.execute("SELECT n FROM numbers")
    assert reader.fetchone() == (1,)
    holder.execute("INSERT INTO numbers VALUES (3)")
    pauses = CountedPauses()
    monkeypatch.setattr(base, "random", pauses)
    with pytest.raises(OperationalError, match="locked"):
        writer.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)
    assert pauses.count == 0
    assert [n for (n,) in reader] == [2]
    holder.close()


@pytest.mark.parametrize("replaced", [True, False], ids=["replaced", "moved away"])
def test_a_persistent_connection_to_a_replaced_file_is_closed(
    writer: Any, path: Path, tmp_path: Path, *, replaced: bool
) -> None:
    writer.close_if_unusable_or_obsolete()
    assert writer.connection is not None
    path.rename(tmp_path / "away.sqlite3")
    if replaced:
        sqlite3.connect(path).close()
    writer.close_if_unusable_or_obsolete()
    assert writer.connection is None


def test_a_connection_that_has_just_written_lets_a_waiting_writer_begin(
    writer: Any, path: Path, clock: VirtualClock
) -> None:
    other = WaitingWriters(str(path))
    other.join()
    begin_and_commit(writer)
    assert clock.slept == 0
    clock.at(0.02, other.leave)
    begin_and_commit(writer)
    assert clock.slept == pytest.approx(0.02)
    begin_and_commit(writer)
    assert clock.slept == pytest.approx(0.02)
    other.close()


def test_a_writer_is_seen_by_the_others_from_its_first_pause_until_it_begins(
    writer: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, other = holder_of(path), WaitingWriters(str(path))
    is_empty = []

    def pause(_: float) -> None:
        is_empty.append(other._is_empty())
        if len(is_empty) == 2:
            holder.execute("COMMIT")

    monkeypatch.setattr(base.time, "sleep", pause)
    writer.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)
    is_empty.append(other._is_empty())
    assert is_empty == [False, False, True]
    other.close()
    holder.close()


def test_the_wait_for_a_suspended_writer_is_limited(writer: Any, path: Path, clock: VirtualClock) -> None:
    other = WaitingWriters(str(path))
    other.join()
    begin_and_commit(writer)
    begin_and_commit(writer)
    assert clock.slept == pytest.approx(MAX_WAIT_SECONDS, abs=0.002)
    other.close()


def test_a_connection_that_wrote_long_ago_begins_at_once(
    writer: Any, path: Path, clock: VirtualClock
) -> None:
    other = WaitingWriters(str(path))
    other.join()
    begin_and_commit(writer)
    clock.now += 2 * RECENT_SECONDS
    begin_and_commit(writer)
    assert clock.slept == 0
    other.close()


def test_a_slow_writer_gets_the_lock_beside_one_that_commits_back_to_back(
    writer: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The greedy writer holds the lock for 10 ms, and is without it for less than one; the other one polls
    every 30 ms, as in a process whose threads compute. By luck alone, it would begin once in some 30 polls. A
    slow machine polls later still, so the greedy one waits for longer than in production."""
    monkeypatch.setattr(base, "PAUSE_SECONDS", (0.03, 0.03))
    monkeypatch.setattr(base, "MAX_WAIT_SECONDS", 5.0)
    looks = CountedPauses()
    monkeypatch.setattr(base, "random", looks)
    began, stop = threading.Event(), threading.Event()

    def write_back_to_back() -> None:
        greedy: Any = ConnectionHandler({"default": database(f"sqlite:///{path}?timeout={TIMEOUT}")})[
            "default"
        ]
        while not stop.is_set():
            begin(greedy)
            began.set()
            time.sleep(0.01)
            greedy.commit()
            greedy.set_autocommit(True)
        greedy.close()

    thread = threading.Thread(target=write_back_to_back, daemon=True)
    thread.start()
    assert began.wait(30)
    for _ in range(10):
        begin_and_commit(writer)
    stop.set()
    thread.join(30)
    assert looks.count < 60
