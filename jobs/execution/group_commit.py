"""Group commit: one writer thread per process, one transaction for all that its slots have to write.

A write is queued, and its slot goes on at once. What may only follow a commit (settle the lease, announce the
job) is called after it, in order. With a commit for each start and each end, commits take both cores
(docs/adr/0005-group-commit.md).
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
from foundation.json_text import PARSE_LOCK, JsonText
from jobs.transitions import Touched, flush_changes, unit_of_work

log = structlog.get_logger()

MAX_BATCH = 64
"""Writes of one transaction. With SQLite all other writers wait for it: 200 writes took 0.2 s."""
MAX_BYTES = 2_000_000
"""Results of one transaction. With SQLite all other writers wait for it, 20 to 40 ms for each MB."""
GATHER_SECONDS = 0.005
"""Debounce: from the first write to the transaction. While one commits, the next batch gathers without it."""
MAX_REFUSALS = 5
"""So many tries of one write alone, on a database that answers; then it is refused."""
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
"""SQLite's messages for the same; Django passes on no code of it."""
RETRY_SECONDS = (0.05, 0.2, 0.5, 1.0)
KEPT_SECONDS = 10.0
"""`LatestEnds` keeps ends of this time before the last confirmed commit: standbys are seldom further
behind."""
KEPT_BYTES = 8_000_000
"""Size of all ends that `LatestEnds` keeps."""
LARGE_BYTES = 16_000
"""An end with a larger result is not kept: after a failover a sweep finds its run by its age, and it is
repeated."""
OWN_BYTES = 2_000
"""Rough size of an end without its result."""


@dataclass(slots=True)
class Write:
    """A queued write.

    apply: called inside the transaction, perhaps more than once; returns the write's outcome.
    touched: the rows that it reads, to be read together with those of other writes; None: unknown.
    size: bytes that it stores, roughly; 0: few.
    done: gets the outcome after the commit, or an exception if the database refuses this write.
    """

    apply: Callable[[], Any]
    touched: Touched | None = None
    size: int = 0
    done: Future[Any] = field(default_factory=Future)
    own_outcome: Any = _UNWRITTEN
    """Its outcome or exception, after a transaction of its own."""
    refusals: int = 0


class Writer(Protocol):
    """Commits writes. Its `AfterCommit` gets each batch's outcomes, in order, once they are durable.

    gather: wait a few milliseconds for more writes; False if none is expected that belongs with this one.
    size: bytes that the write stores, roughly. done: gets the write's outcome, in place of a new future.
    """

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
LatestWrites = Callable[[], list[Write]]
"""Returns writes that were confirmed lately: repeated first after the database failed, which may have lost
them."""
MakeWriter = Callable[[AfterCommit, LatestWrites], Writer]


class GroupCommitWriter:
    """Commits writes in the order in which they were submitted: a slot's end before its next start.

    A batch never fails as a whole: if the database refuses it, each write gets a transaction of its own, and
    only those that are refused again get an exception. While the database is away the batch is kept and
    retried.

    gather_seconds: debounce of a batch. retry_seconds: pauses while the database is away, of which the last
    one repeats. turn: a lock, so that no large answer is read while a transaction is open.
    """

    def __init__(
        self,
        after_commit: AfterCommit,
        latest_writes: LatestWrites = list,
        *,
        gather_seconds: float = GATHER_SECONDS,
        retry_seconds: Sequence[float] = RETRY_SECONDS,
        turn: AbstractContextManager[None] = PARSE_LOCK,
    ) -> None:
        self._turn = turn
        self._latest_writes = latest_writes
        self._after_commit = after_commit
        self._gather_seconds, self._retry_seconds = gather_seconds, retry_seconds
        self._queue: deque[Write] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._idle = False
        self._flush_now = False  # a queued write expects no other to be written with it
        self._ended = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)

    @property
    def backlog(self) -> int:
        """Number of queued writes."""
        return len(self._queue)

    @property
    def failing(self) -> bool:
        """True if the last commit failed: claims should pause."""
        return self._failing

    def start(self) -> None:
        """Start the writer's thread."""
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
        """Queue a write, as `Writer` says. Return the future of its outcome."""
        write = Write(apply, touched, size, done or Future())
        with self._changed:
            if self._ended:
                write.done.set_exception(RuntimeError("the writer has ended"))
                return write.done
            self._queue.append(write)
            self._flush_now |= not gather
            if self._idle or not gather:  # a notification ends the pause in which a batch gathers
                self._changed.notify()
        return write.done

    def stop(self, timeout_seconds: float = 10.0) -> bool:
        """Write the queued rows, then end the thread. Return False if the database did not commit it in
        time."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while self._commit_next():
            pass
        connection.close()

    def _commit_next(self) -> bool:
        """Wait for a batch and commit it; return False at the end. A function of its own, so that the thread
        keeps no reference to a written batch while it waits."""
        with self._changed:
            self._idle = True
            while not self._queue and not self._stopping:
                self._changed.wait()
            self._idle = False
            if not self._queue:
                self._ended = True
                return False
            if not self._stopping and not self._flush_now and len(self._queue) < MAX_BATCH:
                self._changed.wait(self._gather_seconds)
            batch = self._next_batch()
            self._flush_now = bool(self._queue)  # the rest has waited already
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
        with self._changed:
            self._changed.wait(seconds)

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
                    batch[:0] = self._latest_writes()  # the next server may be a standby without them
                self._pause(self._retry_seconds[min(tries, len(self._retry_seconds) - 1)])
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
    """Apply all writes in one transaction; if the database refuses it, in one each.

    Returns each write's outcome, or its exception. Raises OperationalError or InterfaceError if the database
    is away; a write that committed alone before keeps its outcome.
    """
    if all(write.own_outcome is _UNWRITTEN for write in batch):
        try:
            with ExitStack() as trip, transaction.atomic():
                with unit_of_work([w.touched for w in batch if w.touched is not None]):
                    outcomes = [_apply(write) for write in batch]
                    trip.enter_context(one_round_trip())  # the unit of work's statements and COMMIT
                return outcomes
        except (OperationalError, InterfaceError) as error:
            if not is_caused_by_write(error):
                raise
        except Exception as error:
            log.info("batch_refused", writes=len(batch), error=str(error).strip())
    gone: BaseException | None = None
    for write in batch:
        if write.own_outcome is _UNWRITTEN:
            gone = _write_alone(write) or gone
    if gone is not None:
        raise gone
    return [write.own_outcome for write in batch]


def _apply(write: Write) -> Any:
    if write.touched is None:
        flush_changes()  # its queries must see the changes of the writes before it
    return write.apply()


def _write_alone(write: Write) -> BaseException | None:
    """Apply a write in its own transaction, and note its outcome or exception.

    Returns None, or an error that may pass (a lock, a deadlock, an outage). A write that fails `MAX_REFUSALS`
    times with such an error on a database that answers is refused, because others wait for it.
    """
    try:
        with transaction.atomic():
            outcome = write.apply()
        write.own_outcome = outcome  # after the block: COMMIT may fail
    except (OperationalError, InterfaceError) as error:
        if not is_caused_by_write(error):
            return error
        write.refusals += 1
        if write.refusals < MAX_REFUSALS:
            return error
        write.own_outcome = error
    except Exception as error:
        write.own_outcome = error
    if isinstance(write.own_outcome, BaseException):
        log.error(
            "write_refused", error=str(write.own_outcome).strip(), kind=type(write.own_outcome).__name__
        )
    return None


def is_caused_by_write(error: Exception) -> bool:
    """Return False if the database is in trouble (away, full, read-only, locked), even if it still
    answers."""
    if _is_connection_lost(error.__cause__):
        return False
    state = getattr(error.__cause__, "sqlstate", None) or ""
    if state[:2] in _TROUBLE_STATES or any(text in str(error).lower() for text in _TROUBLE_TEXTS):
        return False
    return _database_answers()


def _is_connection_lost(cause: BaseException | None) -> bool:
    """Return True if the connection broke, perhaps at COMMIT: an error that PostgreSQL itself sent has a
    code."""
    is_coded = getattr(cause, "sqlstate", "none of PostgreSQL") is not None
    return not is_coded and type(cause).__name__ != "PipelineAborted"  # a statement before it was refused


def _database_answers() -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        return True
    except DatabaseError:
        return False


class LatestEnds:
    """Ends that the database confirmed lately, to be repeated after a failover.

    A promoted standby lacks the primary's last commits, unless replication is synchronous. In its rows such a
    run goes on, on a slot that is free, until a sweep finds it by its age and its job is repeated.

    monotonic: returns seconds. Not thread-safe: only the writer's thread uses it.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._kept: deque[tuple[float, int, Any]] = deque()
        """Time of the commit, size, end. A tuple each: the garbage collector visits all objects."""
        self._bytes = 0

    def add(self, result_bytes: int, end: Any) -> None:
        """Keep an end that was just confirmed. result_bytes: of its run's result. end: all that repeats
        it."""
        if result_bytes > LARGE_BYTES:
            return
        size = OWN_BYTES + result_bytes
        self._kept.append((self._monotonic(), size, end))
        self._bytes += size

    def drop_old(self) -> None:
        """Drop ends beyond `KEPT_SECONDS` and `KEPT_BYTES`; call it after a commit's ends were added."""
        since = self._monotonic() - KEPT_SECONDS
        while self._kept and (self._bytes > KEPT_BYTES or self._kept[0][0] < since):
            self._bytes -= self._kept.popleft()[1]

    def all(self) -> list[Any]:
        """Return the kept ends in their order. They stay: a connection may break before the database fails
        over."""
        return [end for _, _, end in self._kept]


def estimate_bytes(value: Any, limit: int) -> int:
    """Return the rough size of a JSON value in bytes; counting ends above `limit`."""
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
