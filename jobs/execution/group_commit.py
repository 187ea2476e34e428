"""Group commit: one writer thread per process, one transaction for all that its slots have to write.

A write is queued and the slot goes on; what may only follow a commit (settle the lease, tell the client)
is called after it, in order. Measured in docs/adr/0005-group-commit.md: an inline commit per start and finish
eats both cores.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog
from django.db import (
    DatabaseError,
    InterfaceError,
    OperationalError,
    close_old_connections,
    connection,
    transaction,
)

from foundation.database.connections import one_round_trip
from foundation.json_text import TURN, JsonText
from jobs.transitions import Touched, unit_of_work, write_out

log = structlog.get_logger()

MAX_BATCH = 64
"""Writes of one transaction, for which every other writer waits with SQLite: 200 took 0.2 s."""
MAX_BYTES = 2_000_000
"""Of one transaction's results: with SQLite every other writer waits for it, 20 to 40 ms for each MB."""
GATHER_SECONDS = 0.005
"""From a batch's first write to its begin. While one is written the next gathers by itself."""
MAX_REFUSALS = 5
_UNWRITTEN = object()
_TROUBLE_STATES = ("08", "25", "53", "57", "58")
"""SQLSTATE classes: connection, read-only transaction, resources (disk full), intervention, system error."""
_TROUBLE_TEXTS = (
    "disk i/o error",
    "disk is full",
    "readonly database",
    "database is locked",
    "unable to open",
)
"""Of SQLite, which has no codes for Django to tell."""
_RETRY_SECONDS = (0.05, 0.2, 0.5, 1.0)
KEPT_SECONDS = 10.0
"""Before the last commit that was confirmed. Standbys are seldom further behind."""
KEPT_BYTES = 8_000_000
"""Of all kept ends."""
LARGE_BYTES = 16_000
"""A result over this is not kept: its run is found by its age, and repeated."""
OWN_BYTES = 2_000
"""Of an end without its result, roughly."""


@dataclass(slots=True)
class Write:
    """apply: runs inside the transaction, may be repeated, returns its outcome. touched: what it is about,
    to be read together with those of others. size: bytes that it stores, where they are many. done: the
    outcome, set after the commit; an exception if this write alone can never be stored."""

    apply: Callable[[], Any]
    touched: Touched | None = None
    size: int = 0
    done: Future[Any] = field(default_factory=Future)
    alone: Any = _UNWRITTEN
    """Its outcome or exception once it was written in a transaction of its own."""
    refusals: int = 0


class Writer(Protocol):
    """Takes writes; `after_commit` gets each batch's outcomes, in order, once they are durable. gather:
    False if nothing is known that could be written together with it, so that waiting for more is no use.
    size: bytes of what is stored, roughly. done: gets the write's outcome, in place of a new future."""

    def start(self) -> None: ...

    def submit(
        self,
        apply: Callable[[], Any],
        touched: Touched | None = None,
        *,
        gather: bool = True,
        size: int = 0,
        done: Future[Any] | None = None,
    ) -> Future[Any]: ...

    def stop(self, timeout_seconds: float = 10.0) -> bool: ...

    @property
    def backlog(self) -> int: ...

    @property
    def failing(self) -> bool: ...


AfterCommit = Callable[[Sequence[Any]], None]
Again = Callable[[], list[Write]]
"""What was confirmed lately, to be written again first after the database failed."""
MakeWriter = Callable[[AfterCommit, Again], Writer]


class GroupCommitWriter:
    """Writes in the order they came: a slot's finish always stands before its next start.

    A batch never fails as a whole: what the database refuses is written row by row, and only the
    offender gets its exception. While the database is away the batch is kept and tried again.
    turn: no large answer is read while a transaction is open.
    """

    def __init__(
        self,
        after_commit: AfterCommit,
        again: Again = list,
        *,
        gather_seconds: float = GATHER_SECONDS,
        turn: AbstractContextManager[None] = TURN,
    ) -> None:
        self._turn = turn
        self._again = again
        self._after_commit = after_commit
        self._gather_seconds = gather_seconds
        self._queue: deque[Write] = deque()
        self._some = threading.Condition()
        self._stopping = False
        self._idle = False
        self._hurried = False  # a write waits that nothing will come with
        self._ended = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)

    @property
    def backlog(self) -> int:
        return len(self._queue)

    @property
    def failing(self) -> bool:
        """Whether the last try to commit failed: claims should pause."""
        return self._failing

    def start(self) -> None:
        self._thread.start()

    def submit(
        self,
        apply: Callable[[], Any],
        touched: Touched | None = None,
        *,
        gather: bool = True,
        size: int = 0,
        done: Future[Any] | None = None,
    ) -> Future[Any]:
        write = Write(apply, touched, size, done or Future())
        with self._some:
            if self._ended:
                write.done.set_exception(RuntimeError("the writer has ended"))
                return write.done
            self._queue.append(write)
            self._hurried |= not gather
            if self._idle or not gather:  # waking one that gathers for each write would end its pause
                self._some.notify()
        return write.done

    def stop(self, timeout_seconds: float = 10.0) -> bool:
        """Writes what is queued, then ends. False: the database did not take it in time."""
        with self._some:
            self._stopping = True
            self._some.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while self._commit_next():
            pass
        connection.close()

    def _commit_next(self) -> bool:
        """Waits for a batch, which is let go of when it is written. False: there is no more."""
        with self._some:
            self._idle = True
            while not self._queue and not self._stopping:
                self._some.wait()
            self._idle = False
            if not self._queue:
                self._ended = True
                return False
            if not self._stopping and not self._hurried and len(self._queue) < MAX_BATCH:
                self._some.wait(self._gather_seconds)
            batch = self._next_batch()
            self._hurried = bool(self._queue)  # what is left gathered with it
        self._commit(batch)
        return True

    def _next_batch(self) -> list[Write]:
        batch = [self._queue.popleft()]
        size = batch[0].size
        while self._queue and len(batch) < MAX_BATCH and size + self._queue[0].size <= MAX_BYTES:
            batch.append(self._queue.popleft())
            size += batch[-1].size
        return batch

    def _pause(self, seconds: float) -> None:
        with self._some:
            self._some.wait(seconds)

    def _commit(self, batch: list[Write]) -> None:
        tries = 0
        while True:
            try:
                with self._turn:
                    outcomes = write_batch(batch)
                break
            except (OperationalError, InterfaceError) as error:
                self._failing = True
                log.warning("commit_failed", writes=len(batch), error=str(error).strip())
                close_old_connections()
                connection.close()
                if not tries:
                    batch[:0] = self._again()  # who answers next may be a standby that lacks it
                self._pause(_RETRY_SECONDS[min(tries, len(_RETRY_SECONDS) - 1)])
                tries += 1
        self._failing = False
        try:
            self._after_commit([outcome for outcome in outcomes if not isinstance(outcome, BaseException)])
        except Exception:
            log.exception("after_commit_failed")
        for write, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                write.done.set_exception(outcome)
            else:
                write.done.set_result(outcome)


def write_batch(batch: Sequence[Write]) -> list[Any]:
    """One transaction for all; if the database refuses it, one for each. Returns an outcome or the
    exception per write. Raises OperationalError or InterfaceError when the database is not there: what was
    written alone by then keeps its outcome."""
    if all(write.alone is _UNWRITTEN for write in batch):
        try:
            with ExitStack() as trip, transaction.atomic():
                with unit_of_work([w.touched for w in batch if w.touched is not None]):
                    outcomes = [_apply(write) for write in batch]
                    trip.enter_context(one_round_trip())  # what is written at the end, and COMMIT
                return outcomes
        except (OperationalError, InterfaceError) as error:
            if not is_about_the_write(error):
                raise
        except Exception as error:
            log.info("batch_refused", writes=len(batch), error=str(error).strip())
    gone: BaseException | None = None
    for write in batch:
        if write.alone is _UNWRITTEN:
            gone = _write_alone(write) or gone
    if gone is not None:
        raise gone
    return [write.alone for write in batch]


def _apply(write: Write) -> Any:
    if write.touched is None:
        write_out()  # nobody knows what it will ask the database for
    return write.apply()


def _write_alone(write: Write) -> BaseException | None:
    """None: it has an outcome now. An error that may pass (a lock, a deadlock, an outage) is returned, but a
    write that meets it time and again on a database that answers is refused: the others must not wait."""
    try:
        with transaction.atomic():
            outcome = write.apply()
        write.alone = outcome  # only now: COMMIT itself may fail
    except (OperationalError, InterfaceError) as error:
        if not is_about_the_write(error):
            return error
        write.refusals += 1
        if write.refusals < MAX_REFUSALS:
            return error
        write.alone = error
    except Exception as error:
        write.alone = error
    if isinstance(write.alone, BaseException):
        log.error("write_refused", error=str(write.alone).strip(), kind=type(write.alone).__name__)
    return None


def is_about_the_write(error: Exception) -> bool:
    """False: the database itself is in trouble (away, full, read-only, locked), whatever it still answers."""
    if _is_severed(error.__cause__):
        return False
    state = getattr(error.__cause__, "sqlstate", None) or ""
    if state[:2] in _TROUBLE_STATES or any(text in str(error).lower() for text in _TROUBLE_TEXTS):
        return False
    return _is_there()


def _is_severed(cause: BaseException | None) -> bool:
    """The connection broke, at COMMIT perhaps: PostgreSQL's driver has an answer's code for all that the
    database itself refused."""
    is_coded = getattr(cause, "sqlstate", "none of PostgreSQL") is not None
    return not is_coded and type(cause).__name__ != "PipelineAborted"  # a statement before it was refused


def _is_there() -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        return True
    except DatabaseError:
        return False


class LatestEnds:
    """Ends that the database confirmed lately, to be written again where it may have forgotten them: a
    standby that is promoted lacks the primary's last commits, unless it is synchronous. To its rows such a
    run goes on for ever, on a slot that is free; it would be found by its age and repeated.

    monotonic: in seconds. For one thread: the writer's."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._kept: deque[tuple[float, int, Any]] = deque()
        """When it was confirmed, its bytes, the end. Few objects: garbage collection walks through all."""
        self._bytes = 0

    def add(self, result_bytes: int, end: Any) -> None:
        """An end that was just confirmed: all that writes it again. result_bytes: of its run's result."""
        if result_bytes > LARGE_BYTES:
            return
        size = OWN_BYTES + result_bytes
        self._kept.append((self._monotonic(), size, end))
        self._bytes += size

    def drop_old(self) -> None:
        """Call it when a commit was confirmed, after its ends were added."""
        since = self._monotonic() - KEPT_SECONDS
        while self._kept and (self._bytes > KEPT_BYTES or self._kept[0][0] < since):
            self._bytes -= self._kept.popleft()[1]

    def all(self) -> list[Any]:
        """In their order. They stay: a connection may break and come back before the database fails over."""
        return [end for _, _, end in self._kept]


def rough_bytes(value: Any, limit: int) -> int:
    """Of a JSON value; counting ends over the limit."""
    found, rest = 0, [value]
    while rest and found <= limit:
        one = rest.pop()
        found += 16
        if isinstance(one, str):
            found += len(one)
        elif isinstance(one, JsonText):
            found += len(one.text)
        elif isinstance(one, dict):
            found += sum(map(len, one))
            rest.extend(one.values())
        elif isinstance(one, (list, tuple)):
            rest.extend(one)
    return found
