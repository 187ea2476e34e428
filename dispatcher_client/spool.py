"""A file of requests that nobody answered: one JSON line each, sent later under the same idempotency keys.

A line is on disk before `submit` says so. Two lock files, so that nobody who writes waits for the network:
``<spool>.lock`` is held while the file is read or changed, ``<spool>.flushing`` by the one who sends. What
was sent is taken out after the answer, a hundred lines at a time; a crash in between sends some again, which
their keys make harmless. What the dispatcher refuses for good goes to ``<spool>.refused`` with the problem.
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
_CONCERNS_ALL = frozenset({401, 403, 404, 408, 425, 429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Entry:
    """A POST under a key."""

    path: str
    idempotency_key: str
    body: Any

    def as_json(self) -> dict[str, Any]:
        return {"path": self.path, "idempotency_key": self.idempotency_key, "body": self.body}


Send = Callable[[Entry], Sequence[Problem]]
"""Raises DispatcherError if it was not accepted; returns the problems of single items of a batch that was."""


@dataclass(frozen=True, slots=True)
class Flushed:
    """How many were accepted, were refused (a batch of which single items were is both), are left.
    stopped_by: why it did not go on."""

    sent: int
    refused: int
    left: int
    stopped_by: DispatcherError | None = None


class _Verdict(Enum):
    SENT = "was accepted"
    REFUSED = "will never be accepted"
    KEPT = "stays; the others are tried"
    STOP = "stays, and so do the others"


class Spool:
    """Safe between threads and processes of one machine. Needs a POSIX system."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def append(self, entry: Entry) -> None:
        """Returns once it is on disk. Raises OSError."""
        told = {"at": time.time(), **entry.as_json()}
        line = json.dumps(told, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        with self._locked(".lock"):
            _append(self.path, line)

    def flush(self, send: Send, answers: Callable[[], bool]) -> Flushed:
        """In order; another one who flushes is waited for. answers: whether the dispatcher answers anything;
        asked after a line that got no answer."""
        with self._locked(".flushing"):
            flushing = _Flushing(self, send, answers)
            flushing.run()
            return Flushed(flushing.sent, flushing.refused, self._count(), flushing.stopped_by)

    def refuse(self, line: bytes, problem: dict[str, Any]) -> None:
        try:
            told = read_json(line)
        except ValueError:
            told = {"line": line.decode(errors="replace")}
        refused = json.dumps({"request": told, "problem": problem}, separators=(",", ":")).encode() + b"\n"
        with self._locked(".lock"):
            _append(self._beside(".refused"), refused)

    def read_lines(self, start: int, count: int) -> list[bytes]:
        """Up to `count` lines from byte `start` on."""
        with self._locked(".lock"), contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(start)
            return [line for line in (file.readline() for _ in range(count)) if line]
        return []

    def replace(self, start: int, length: int, kept: bytes) -> None:
        """Puts `kept` in the place of so many bytes; a crash leaves the old file or the new one."""
        fresh = self._beside(".new")
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

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    @contextlib.contextmanager
    def _locked(self, suffix: str) -> Iterator[None]:
        import fcntl  # POSIX only, and so is only the spool

        with _opened(self._beside(suffix)) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class _Flushing:
    def __init__(self, spool: Spool, send: Send, answers: Callable[[], bool]) -> None:
        self._spool = spool
        self._send = send
        self._answers = answers
        self.sent = self.refused = 0
        self.stopped_by: DispatcherError | None = None

    def run(self) -> None:
        start = 0  # before it lies what was kept
        while self.stopped_by is None and (lines := self._spool.read_lines(start, LINES_AT_ONCE)):
            done = 0
            kept = b""
            try:
                for line in lines:
                    verdict = self._try(line)
                    if verdict is _Verdict.STOP:
                        break
                    kept += line if verdict is _Verdict.KEPT else b""
                    done += len(line)
            finally:
                if done:
                    self._spool.replace(start, done, kept)
            start += len(kept)

    def _try(self, line: bytes) -> _Verdict:
        entry = _read_entry(line)
        if entry is None:
            self._refuse(line, {"code": "unreadable", "detail": "This line is no request."})
            return _Verdict.REFUSED
        try:
            refused_items = self._send(entry)
        except DispatcherError as error:
            verdict = _verdict(error)
            if isinstance(error, NoAnswer) and self._answers():
                verdict = _Verdict.KEPT  # the dispatcher lives: only this line gets no answer
            if verdict is _Verdict.STOP:
                self.stopped_by = error
            elif verdict is _Verdict.REFUSED and isinstance(error, Problem):
                self._refuse(line, error.as_json())
            return verdict
        self.sent += 1
        if refused_items:
            items = [problem.as_json() for problem in refused_items]
            self._refuse(line, {"code": "items_refused", "items": items})
        return _Verdict.SENT

    def _refuse(self, line: bytes, problem: dict[str, Any]) -> None:
        self._spool.refuse(line, problem)
        self.refused += 1


def _verdict(error: DispatcherError) -> _Verdict:
    """Nothing is given up for a wrong key or address, which concerns every line, or for a proxy's word."""
    if not isinstance(error, Problem) or error.status in _CONCERNS_ALL:
        return _Verdict.STOP
    if error.status in _FINAL and error.is_documented and not error.retryable:
        return _Verdict.REFUSED
    return _Verdict.KEPT


def _read_entry(line: bytes) -> Entry | None:
    """None for a line that a crash cut off, or that is something else."""
    try:
        told = read_json(line)
        return Entry(str(told["path"]), str(told["idempotency_key"]), told["body"])
    except (ValueError, KeyError, TypeError):
        return None


def _append(path: Path, line: bytes) -> None:
    is_new = not path.exists()
    with _opened(path) as file:
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(end - 1)
            if file.read(1) != b"\n":  # a crash cut the last line off: don't lengthen it
                line = b"\n" + line
        _write(file, line)
    if is_new:
        _sync_folder(path)


def _opened(path: Path, flags: int = 0) -> BinaryIO:
    """For its owner only: payloads are private."""
    return open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, 0o600), "r+b")


def _write(file: BinaryIO, content: bytes) -> None:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """So that a new name survives a power cut, too."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
