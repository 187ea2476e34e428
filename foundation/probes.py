"""Parallel probes with one deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any

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
