"""What threads of a process share: a fair lock, and parallel probes with one deadline."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from types import TracebackType
from typing import Any


class Turn:
    """A lock that is taken in the order in which it was asked for. Not reentrant."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_taken = False
        self._waiting: deque[threading.Event] = deque()

    def __enter__(self) -> None:
        with self._lock:
            if not self._is_taken:
                self._is_taken = True
                return
            mine = threading.Event()
            self._waiting.append(mine)
        mine.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._is_taken = False


TURN = Turn()
"""Of this process: taken to read a large answer or to write a transaction. Parsing a large answer holds the
interpreter for up to a second, and no transaction may be open meanwhile."""


PROBE_SECONDS = 2.0


class Probes:
    """For readiness: a part that hangs must not hide the others. It keeps one thread: later probes of it
    share that thread's answer."""

    def __init__(self) -> None:
        self._asked: dict[str, Future[Any]] = {}
        self._lock = threading.Lock()

    def ask(
        self, parts: Mapping[str, Callable[[], Any]], seconds: float = PROBE_SECONDS
    ) -> dict[str, Any | Exception]:
        """Return each part's answer, the error that it raised, or a TimeoutError after `seconds` in all."""
        asked = {name: self._future(name, question) for name, question in parts.items()}
        wait(asked.values(), timeout=seconds)
        return {name: _answer(future, seconds) for name, future in asked.items()}

    def _future(self, name: str, question: Callable[[], Any]) -> Future[Any]:
        with self._lock:
            future = self._asked.get(name)
            if future is not None and not future.done():
                return future
            future = self._asked[name] = Future()
        threading.Thread(
            target=self._put_answer, args=(future, question), name=f"probe-{name}", daemon=True
        ).start()
        return future

    @staticmethod
    def _put_answer(future: Future[Any], question: Callable[[], Any]) -> None:
        try:
            future.set_result(question())
        except Exception as error:  # whatever ails the part is the answer
            future.set_exception(error)


def _answer(future: Future[Any], seconds: float) -> Any | Exception:
    if not future.done():
        return TimeoutError(f"no answer in {seconds:g} s")
    error = future.exception()
    if error is None:
        return future.result()
    return error if isinstance(error, Exception) else RuntimeError(str(error))
