"""Checks of every second during the trial, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from verification.proving.judge import Finding
from verification.proving.ledger import Tail
from verification.proving.memory import Samples
from verification.proving.records import Answer

if TYPE_CHECKING:
    from verification.proving.state import State

EVERY_SECONDS = 1.0
_RETRY_SECONDS = 0.1
_MAX_WRONGS = 200


class Watch:
    """Checks laws and memory every second. pids: returns the processes whose memory is measured."""

    def __init__(self, state: State | None, ledger: Path, pids: Callable[[], Mapping[str, int]]) -> None:
        self._state, self._pids = state, pids
        self._ledger = Tail(ledger)
        self.accepted: set[str] = set()
        self.answers: list[Answer] = []
        self.samples = Samples()
        self.failed_at: dict[str, float] = {}
        self.forgets = False
        """Whether the database lost commits: then there may be fewer rows than jobs were accepted."""
        self.wrongs: dict[str, Finding] = {}
        self.looks = self.blind = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(30)

    def read_ledger(self) -> int:
        """Return how many jobs are known as accepted to clients by now."""
        with self._lock:
            for line in self._ledger.read():
                if line["what"] == "accepted":
                    self.accepted.add(line["job"])
                elif line["what"] == "answer":
                    fields = ("status", "retry_after", "asked_at", "took")
                    self.answers.append(Answer(**{name: line[name] for name in fields}))
            return len(self.accepted)

    def _run(self) -> None:
        while not self._ended.wait(EVERY_SECONDS):
            self.samples.take(self._pids(), time.monotonic())
            accepted = self.read_ledger()
            if self._state is not None:
                self._look(self._state, accepted)
        if self._state is not None:
            self._state.close()

    def _look(self, state: State, accepted: int) -> None:
        """accepted was counted before the rows are read: there may be more rows, never fewer."""
        counts, broken = state.counts(), state.broken_laws()
        if counts is None or broken is None:
            self.blind += 1
            return
        self.looks += 1
        if sum(counts.values()) < accepted and not self.forgets:
            self._note("(8) conservation", f"{accepted} jobs were accepted, there are {counts}")
        if broken:  # several reads are no snapshot: a real violation is still there a moment later
            self._ended.wait(_RETRY_SECONDS)
            for text in set(broken) & set(state.broken_laws() or ()):
                self._note(f"law {text[:3]}", text)
        for job_id in state.failed_by_deadline():
            self.failed_at.setdefault(job_id, time.time())

    def _note(self, kind: str, text: str) -> None:
        if len(self.wrongs) < _MAX_WRONGS:
            at = time.strftime("%H:%M:%S")
            self.wrongs.setdefault(text, Finding(kind, f"{text} (seen at {at}, while it ran)"))
