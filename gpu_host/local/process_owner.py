"""Owns one model process at a time: spawns it, exchanges frames with it, ends it, replaces it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpu_host.handlers.code import Declared
from gpu_host.local.confinement import DEFAULT, Confinement
from gpu_host.local.frames import ANSWERS, MAX_FRAME_BYTES, RUN_FRAMES, BadFrame, Frame, read_models, read_why
from gpu_host.local.process import ModelProcess

Notification = Callable[[], None] | None
SPAWN_SECONDS = 300.0
"""Importing the models' modules may load gigabytes of libraries from a slow disk."""


_SLICE_SECONDS = 0.5


def never() -> bool:
    return False


STUCK_SECONDS = 10.0


class ProcessGone(Exception):
    """The process ended. The message says why. ours: it was ended by `ProcessOwner.end`."""

    def __init__(self, why: str, *, ours: bool = False) -> None:
        super().__init__(why)
        self.ours = ours


class Overdue(Exception):
    """The process did not answer in time."""


class GivenUp(Exception):
    """The run that asked for this operation was stopped."""


class CannotStart(Exception):
    """The models' code can't be imported, or breaks the contract."""


class ProcessOwner:
    """lock: of all state here and of the classes that use it; notified at every change.

    hear: frames about runs (``ended``, ``heard``); gone: once per process, with why; both with the lock held.
    What they return is called without it: others who are told may be slow.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        lock: threading.Condition,
        on_frame: Callable[[Frame], Notification],
        on_exit: Callable[[str], Notification],
        output: Callable[[str], None],
        environment: Mapping[str, str],
        confinement: Confinement = DEFAULT,
        most_bytes: Callable[[], int] = lambda: MAX_FRAME_BYTES,
    ) -> None:
        self.process: ModelProcess | None = None
        self.models: dict[str, Declared] = {}
        self.spawned = 0
        self._paths, self._lock, self._environment = paths, lock, environment
        self._confinement, self._most_bytes = confinement, most_bytes
        self._on_run_frame, self._notify_exit, self._output = on_frame, on_exit, output
        self.give_up: Callable[[], bool] = never
        """Called with the lock held while an answer is awaited; True: stop waiting."""
        self._answers: dict[str, Frame] = {}
        self._broken = ""
        self._last_words = "it was never started"
        self._ended = 0
        self._end_by = math.inf

    @property
    def session(self) -> int | None:
        process = self.process  # asked without the lock
        return None if process is None else process.session

    @property
    def is_ending(self) -> bool:
        """Return True if the process was killed and has not exited yet: no run begins, no process is
        spawned."""
        return self.process is not None and self._ended == self.spawned

    @property
    def is_stuck(self) -> bool:
        """Return True if a killed process should have exited by now: one that hangs in the driver can't be
        killed."""
        return self.is_ending and time.monotonic() >= self._end_by

    def spawn(self) -> None:
        """Without the lock. Raises CannotStart, ProcessGone, Overdue, GivenUp."""
        with self._lock:
            self._answers.clear()
            self._broken = ""
            self.spawned += 1
            number = self.spawned
            self.process = ModelProcess(
                self._paths,
                on_frame=lambda frame: self._on_frame(number, frame),
                on_exit=lambda why: self._on_exit(number, why),
                output=self._output,
                environment=self._environment,
                confinement=self._confinement,
                most_bytes=self._most_bytes,
            )
        ready = self._await("ready", SPAWN_SECONDS)
        try:
            models = read_models(ready.get("models"))
        except BadFrame as error:
            self.end()
            raise CannotStart(f"its process does not say which they are: {error}") from error
        with self._lock:
            self.models = models

    def ask(self, frame: Frame, said: str, seconds: float) -> Frame:
        """Without the lock; one question at a time. Raises ProcessGone, Overdue, GivenUp."""
        with self._lock:
            process = self.process
            self._answers.pop(said, None)
        if process is None:
            raise ProcessGone("it was ended before", ours=True)
        process.send(frame)
        return self._await(said, seconds)

    def end(self, only: ModelProcess | None = None) -> None:
        """Kill the process and its children, without the lock; return once they have exited and `on_exit` was
        called, or after `STUCK_SECONDS` more: then it `is_stuck`. only: do nothing if the process is another
        one by now."""
        with self._lock:
            process = self.process
            if process is None or (only is not None and only is not process):
                return
            self._ended = self.spawned
            self._end_by = min(self._end_by, time.monotonic() + STUCK_SECONDS)
        process.kill()
        with self._lock:
            self._lock.wait_for(lambda: self.process is not process, timeout=STUCK_SECONDS)

    def raise_if_given_up(self) -> None:
        """Without the lock. Raises GivenUp."""
        with self._lock:
            if self.give_up():
                raise GivenUp

    def _await(self, said: str, seconds: float) -> Frame:
        until = time.monotonic() + seconds
        with self._lock:
            while said not in self._answers:
                if self.process is None:
                    if self._broken:
                        raise CannotStart(self._broken)
                    raise ProcessGone(self._last_words, ours=self._ended == self.spawned)
                if self.give_up():
                    raise GivenUp
                left = until - time.monotonic()
                if left <= 0:
                    raise Overdue(f"the model process did not say {said!r} in {seconds:.0f} s")
                self._lock.wait(min(left, _SLICE_SECONDS))
            return self._answers.pop(said)

    def _on_frame(self, number: int, frame: Frame) -> None:
        tell: Notification = None
        with self._lock:
            if number != self.spawned:
                return
            said: Any = frame.get("said")
            if isinstance(said, str) and said in RUN_FRAMES:
                tell = self._on_run_frame(frame)
            elif said == "broken":
                self._broken = read_why(frame.get("why"))
            elif isinstance(said, str) and said in ANSWERS:
                self._answers[said] = frame
            else:
                raise BadFrame("a frame of no kind")
            self._lock.notify_all()
        if tell is not None:
            tell()

    def _on_exit(self, number: int, why: str) -> None:
        with self._lock:
            if number != self.spawned:
                return
            self.process, self._end_by = None, math.inf
            self._last_words = why
            tell = self._notify_exit(why)
            self._lock.notify_all()
        if tell is not None:
            tell()
