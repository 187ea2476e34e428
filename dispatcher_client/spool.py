"""A file of requests without an answer: one JSON line each, sent later under the same idempotency keys.

A line is on disk before `append` returns. There are two lock files, so that writers never wait for the
network: ``<spool>.lock`` is held while the file is read or changed, ``<spool>.flushing`` while requests are
sent. Sent lines are removed after their answers, a hundred at a time; after a crash in between some are sent
again, which their keys make harmless. Requests that are rejected for good go to ``<spool>.refused`` with the
error.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO

from .errors import DispatcherError, NoAnswer, Problem, read_json

LINES_AT_ONCE = 100
_FINAL = frozenset({400, 409, 410, 413, 415, 422})
_STOPPING = frozenset({401, 403, 404, 408, 425, 429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Entry:
    """A POST under an idempotency key."""

    path: str
    idempotency_key: str
    body: Any

    def as_json(self) -> dict[str, Any]:
        return {"path": self.path, "idempotency_key": self.idempotency_key, "body": self.body}


Send = Callable[[Entry], Sequence[Problem]]
"""Sends an entry. Raises DispatcherError if it was not accepted; returns the errors of single items of a
batch."""


@dataclass(frozen=True, slots=True)
class Flushed:
    """Numbers of requests that were accepted, were refused (a batch with refused items is both), and are
    left.

    stopped_by: the error that ended the flush early."""

    sent: int
    refused: int
    left: int
    stopped_by: DispatcherError | None = None


class _Outcome(Enum):
    """The outcome of sending one line."""

    SENT = "was accepted"
    REFUSED = "will never be accepted"
    KEPT = "stays; other lines are tried"
    STOP = "stays, and no other line is tried"


class Spool:
    """The spool file. Safe between threads and processes of one machine. Needs a POSIX system."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def append(self, entry: Entry) -> None:
        """Add an entry; return once it is on disk. Raises OSError."""
        spooled = {"at": time.time(), **entry.as_json()}
        line = json.dumps(spooled, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        with self._locked(".lock"):
            _append(self.path, line)

    def flush(self, send: Send, answers: Callable[[], bool]) -> Flushed:
        """Send all entries in order; wait if another process is flushing.

        answers: returns whether the dispatcher is reachable; called after a line that got no answer."""
        with self._locked(".flushing"):
            flushing = _Flushing(self, send, answers)
            flushing.run()
            return Flushed(flushing.sent, flushing.refused, self._count(), flushing.stopped_by)

    def refuse(self, line: bytes, problem: dict[str, Any]) -> None:
        """Add a line and its error to the file of refused requests."""
        try:
            request = read_json(line)
        except ValueError:
            request = {"line": line.decode(errors="replace")}
        refused = json.dumps({"request": request, "problem": problem}, separators=(",", ":")).encode() + b"\n"
        with self._locked(".lock"):
            _append(self._sibling(".refused"), refused)

    def read_lines(self, start: int, count: int) -> list[bytes]:
        """Return up to `count` lines from byte `start` on."""
        with self._locked(".lock"), contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(start)
            return [line for line in (file.readline() for _ in range(count)) if line]
        return []

    def replace(self, start: int, length: int, kept: bytes) -> None:
        """Replace `length` bytes from `start` by `kept`; a crash leaves the old file or the new one."""
        fresh = self._sibling(".new")
        with self._locked(".lock"):
            content = self.path.read_bytes()
            content = content[:start] + kept + content[start + length :]
            if not content:
                self.path.unlink()
            else:
                with _opened(fresh, os.O_TRUNC) as file:
                    _write(file, content)
                fresh.replace(self.path)
            _sync_folder(self.path)

    def _count(self) -> int:
        with self._locked(".lock"), contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            return sum(1 for _ in file)
        return 0

    def _sibling(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    @contextlib.contextmanager
    def _locked(self, suffix: str) -> Iterator[None]:
        import fcntl  # POSIX only: imported only if a spool is used

        with _opened(self._sibling(suffix)) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class _Flushing:
    def __init__(self, spool: Spool, send: Send, answers: Callable[[], bool]) -> None:
        self._spool = spool
        self._send = send
        self._is_reachable = answers
        self.sent = self.refused = 0
        self.stopped_by: DispatcherError | None = None

    def run(self) -> None:
        start = 0  # bytes before it are lines that were kept
        while self.stopped_by is None and (lines := self._spool.read_lines(start, LINES_AT_ONCE)):
            done = 0
            kept = b""
            try:
                for line in lines:
                    outcome = self._try(line)
                    if outcome is _Outcome.STOP:
                        break
                    kept += line if outcome is _Outcome.KEPT else b""
                    done += len(line)
            finally:
                if done:
                    self._spool.replace(start, done, kept)
            start += len(kept)

    def _try(self, line: bytes) -> _Outcome:
        entry = _read_entry(line)
        if entry is None:
            self._refuse(line, {"code": "unreadable", "detail": "This line is not a request."})
            return _Outcome.REFUSED
        try:
            refused_items = self._send(entry)
        except DispatcherError as error:
            outcome = _outcome_of(error)
            if isinstance(error, NoAnswer) and self._is_reachable():
                outcome = _Outcome.KEPT  # the dispatcher is up: only this line gets no answer
            if outcome is _Outcome.STOP:
                self.stopped_by = error
            elif outcome is _Outcome.REFUSED and isinstance(error, Problem):
                self._refuse(line, error.as_json())
            return outcome
        self.sent += 1
        if refused_items:
            items = [problem.as_json() for problem in refused_items]
            self._refuse(line, {"code": "items_refused", "items": items})
        return _Outcome.SENT

    def _refuse(self, line: bytes, problem: dict[str, Any]) -> None:
        self._spool.refuse(line, problem)
        self.refused += 1


def _outcome_of(error: DispatcherError) -> _Outcome:
    """Return the outcome of an error.

    No line is dropped for a wrong key or address, which concerns every line, or for a proxy's answer."""
    if not isinstance(error, Problem) or error.status in _STOPPING:
        return _Outcome.STOP
    if error.status in _FINAL and error.is_documented and not error.retryable:
        return _Outcome.REFUSED
    return _Outcome.KEPT


def _read_entry(line: bytes) -> Entry | None:
    """Return the entry of a line; None for a line that was cut off by a crash or is not a request."""
    try:
        request = read_json(line)
        return Entry(str(request["path"]), str(request["idempotency_key"]), request["body"])
    except (ValueError, KeyError, TypeError):
        return None


def _append(path: Path, line: bytes) -> None:
    is_new = not path.exists()
    with _opened(path) as file:
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(end - 1)
            if file.read(1) != b"\n":  # a crash cut the last line off: don't append to it
                line = b"\n" + line
        _write(file, line)
    if is_new:
        _sync_folder(path)


def _opened(path: Path, flags: int = 0) -> BinaryIO:
    """Open a file that only its owner can read: payloads are private."""
    return open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, 0o600), "r+b")


def _write(file: BinaryIO, content: bytes) -> None:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Sync the folder, so that a new file name survives a power cut."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
