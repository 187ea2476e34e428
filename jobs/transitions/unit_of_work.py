"""Unit of work: the rows of a transaction that writes many attempts are read together, changed in memory, and
written together.

A transaction has as many statements as there are kinds of rows, however many attempts it writes. Its result
is the same as that of its writes one after the other. Where that is impossible (the unique index on live
slots refuses a row, or a slot's next attempt begins before the last one has ended) it fails, and the caller
writes one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Model

from foundation.database import statements
from foundation.database.row_codec import new_row
from foundation.database.statements import value
from jobs.callbacks.message import callback_for
from jobs.domain.failure_fingerprints import fingerprint_of
from jobs.domain.states import (
    LIVE_ATTEMPT_STATES,
    AttemptState,
    JobState,
    check_attempt_move,
    is_final,
    move_between,
)
from jobs.models import Attempt, Callback, EndNotice, Event, Job

_locked = statements.Read(
    lambda: Job.objects.select_for_update().defer("payload", "result").filter(id=value(Job, "id"))
)
_locked_among = statements.ReadAmong(
    (Job, "id"),
    rows=lambda ids: (
        Job.objects.select_for_update().defer("payload", "result").filter(id__in=ids).order_by("id")
    ),
)
_of_id = statements.Read(lambda: Attempt.objects.filter(id=value(Attempt, "id")))
_attempts_among = statements.ReadAmong(
    (Attempt, "id"), rows=lambda ids: Attempt.objects.filter(id__in=ids).order_by("id")
)


class NotBatchable(Exception):
    """These writes must be applied one after the other, each in its own transaction."""


class Touched(NamedTuple):
    """The rows that a write reads and changes."""

    job_id: str
    attempt_id: str


class UnitOfWork:
    """The rows of one transaction with their pending changes.

    jobs, attempts: by id, as changed so far; None: no such row. The jobs are locked.
    """

    def __init__(self, touched: Sequence[Touched]) -> None:
        job_ids = sorted({one.job_id for one in touched})
        attempt_ids = sorted({one.attempt_id for one in touched})
        self.jobs: dict[str, Job | None] = dict.fromkeys(job_ids)
        self.attempts: dict[str, Attempt | None] = dict.fromkeys(attempt_ids)
        self.jobs.update((job.id, job) for job in _locked_among(job_ids))
        self.attempts.update((attempt.id, attempt) for attempt in _attempts_among(attempt_ids))
        self._on_slot: dict[tuple[str, int], str] = {}
        self._new: dict[type[Model], dict[str, Model]] = {Attempt: {}, Event: {}, Callback: {}, EndNotice: {}}
        self._changed: dict[type[Model], dict[str, tuple[Model, set[str]]]] = {Attempt: {}, Job: {}}

    def insert(self, row: Attempt | Event | Callback | EndNotice) -> None:
        if isinstance(row, Attempt):
            self._occupy_slot(row)
            self.attempts[row.id] = row
        new = self._new[type(row)]
        new[str(row.pk or len(new))] = row

    def read_attempt(self, attempt_id: str) -> Attempt | None:
        """Return the attempt's row. One that begins in this transaction is written first, so that the unique
        index on live slots checks it however soon it ends."""
        if attempt_id in self._new[Attempt]:
            self._write_attempts()
        if attempt_id not in self.attempts:
            self.attempts[attempt_id] = _of_id.first(id=attempt_id)
        return self.attempts[attempt_id]

    def change(self, row: Job | Attempt, fields: Sequence[str]) -> None:
        """Write these fields of the row with the next `write`."""
        if isinstance(row, Attempt):
            self._occupy_slot(row)
        changed = self._changed[type(row)]
        if row.id in changed:
            changed[row.id][1].update(fields)
        else:
            changed[row.id] = row, set(fields)

    def write(self) -> None:
        """Write all pending changes, in few statements."""
        self._write_attempts()
        self._update(Job)
        self._insert(Event)
        self._insert(Callback)
        self._insert(EndNotice)

    def _occupy_slot(self, attempt: Attempt) -> None:
        """Raise NotBatchable for a second live attempt on a slot: the unique index would refuse it if the
        writes were applied one after the other."""
        slot = attempt.server, attempt.slot
        if self._on_slot.get(slot, attempt.id) != attempt.id:
            raise NotBatchable(f"{attempt.server}/{attempt.slot}")
        if attempt.state in LIVE_ATTEMPT_STATES:
            self._on_slot[slot] = attempt.id
        else:
            self._on_slot.pop(slot, None)

    def _write_attempts(self) -> None:
        """Write ends before starts, because of the unique index on live slots."""
        self._update(Attempt)
        self._insert(Attempt)

    def _insert(self, model: type[Model]) -> None:
        new, self._new[model] = self._new[model], {}
        statements.insert_all(list(new.values()))

    def _update(self, model: type[Model]) -> None:
        changed, self._changed[model] = self._changed[model], {}
        alike: dict[frozenset[str], list[Model]] = {}
        for row, fields in changed.values():
            alike.setdefault(frozenset(fields), []).append(row)
        for names, rows in alike.items():
            statements.update_all(rows, sorted(names))


_current: ContextVar[UnitOfWork | None] = ContextVar("current_unit_of_work", default=None)


@contextmanager
def unit_of_work(touched: Sequence[Touched]) -> Iterator[None]:
    """Collect the changes of a transaction, which ends with this block or is rolled back.

    Locks the jobs of all these writes in the order of their ids (against deadlocks of two workers), and reads
    their attempts. Changes are written at the end of the block, or by `flush_changes`.
    """
    if not touched:
        yield
        return
    rows = UnitOfWork(touched)
    token = _current.set(rows)
    try:
        yield
    finally:
        _current.reset(token)
    rows.write()


def flush_changes() -> None:
    """Write the transaction's pending changes; required before any query other than by primary key."""
    rows = _current.get()
    if rows is not None:
        rows.write()


def lock_job(job_id: str) -> Job | None:
    """Lock and return the job's row, for the rest of the transaction (SQLite's are exclusive by
    themselves)."""
    rows = _current.get()
    if rows is not None and job_id in rows.jobs:
        return rows.jobs[job_id]
    job: Job | None = _locked.first(id=job_id)
    if rows is not None:
        rows.jobs[job_id] = job
    return job


def read_attempt(attempt_id: str) -> Attempt | None:
    """Return the attempt's row; its job must be locked."""
    rows = _current.get()
    if rows is not None:
        return rows.read_attempt(attempt_id)
    attempt: Attempt | None = _of_id.first(id=attempt_id)
    return attempt


def insert_attempt(attempt: Attempt) -> bool:
    """Insert an attempt. Return False if it exists, or if the unique index on live slots, the safety net
    behind the lease, has another one on its slot."""
    rows = _current.get()
    if rows is None:
        return statements.insert(attempt, ignore_conflicts=True)
    if rows.attempts.get(attempt.id) is not None:
        return False
    rows.insert(attempt)
    return True


def insert(row: Event | Callback | EndNotice) -> None:
    """Insert an event, a callback or a notice of an end."""
    rows = _current.get()
    if rows is None:
        statements.insert(row)
    else:
        rows.insert(row)


def change(row: Job | Attempt, *fields: str) -> None:
    """Write these fields of a row that was read; its job must be locked."""
    rows = _current.get()
    if rows is None:
        statements.update(row, fields)
    else:
        rows.change(row, fields)


def move_job(job: Job, target: JobState, at: datetime, data: dict[str, Any], *fields: str) -> None:
    """Write the new state, with these fields, which the caller has set, and the event of the move.

    The follower of the job gets a notice of its end, and of a new round. data: of the event. Raises
    IllegalMove.
    """
    move = move_between(job.state, target)
    has_ended = is_final(target)
    notifies_follower = job.followed_by is not None and (has_ended or is_final(job.state))
    state = job.state = target.value
    if notifies_follower:
        notice = new_row(
            EndNotice, followed_by=job.followed_by, ended_id=job.id, round=job.round, state=state, at=at
        )
        insert(notice)
    if has_ended:
        job.finished_at = at
        fields = (*fields, "finished_at")
    if target is JobState.FAILED:
        job.error_fingerprint = fingerprint_of(job.error_code, job.error_message)
        fields = (*fields, "error_fingerprint")
    log_event(job, move.event, at, {**data, "status": state, **_error(job)}, "state", *fields)


def move_attempt(attempt: Attempt, target: AttemptState, *fields: str) -> None:
    """Write the new state with these fields, which the caller has set. Raises IllegalMove."""
    check_attempt_move(attempt.state, target)
    attempt.state = target.value
    change(attempt, "state", *fields)


def log_event(job: Job, kind: str, at: datetime, data: dict[str, Any], *fields: str) -> None:
    """Insert the job's next event, and write these fields of the job."""
    job.event_seq += 1
    change(job, *fields, "event_seq")
    insert(new_row(Event, job_id=job.id, seq=job.event_seq, type=kind, at=at, data=data))


def insert_callback(job: Job, at: datetime) -> str | None:
    """Insert the callback of a job in a final state, and return its id; None if no callback was requested."""
    if not is_final(job.state):
        return None
    callback = callback_for(job, now=at)
    if callback is None:
        return None
    insert(callback)
    return callback.id


def _error(job: Job) -> dict[str, Any]:
    return {"error": {"code": job.error_code, "message": job.error_message}} if job.error_code else {}
