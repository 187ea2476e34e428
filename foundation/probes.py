"""Parallel probes with one deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any

PROBE_SECONDS = 2.0


class Probes:
    """Runs health probes in parallel, so that a part that hangs does not hide the others.

    A probe that hangs keeps one thread: later calls wait for the result of that thread."""

    def __init__(self) -> None:
        self._running: dict[str, Future[Any]] = {}
        self._lock = threading.Lock()

    def run(
        self, parts: Mapping[str, Callable[[], Any]], seconds: float = PROBE_SECONDS
    ) -> dict[str, Any | Exception]:
        """Return the result of each probe, the error that it raised, or a TimeoutError after `seconds` in
        all."""
        futures = {name: self._future(name, probe) for name, probe in parts.items()}
        wait(futures.values(), timeout=seconds)
        return {name: _result(future, seconds) for name, future in futures.items()}

    def _future(self, name: str, probe: Callable[[], Any]) -> Future[Any]:
        with self._lock:
            future = self._running.get(name)
            if future is not None and not future.done():
                return future
            future = self._running[name] = Future()
        threading.Thread(
            target=self._set_result, args=(future, probe), name=f"probe-{name}", daemon=True
        ).start()
        return future

    @staticmethod
    def _set_result(future: Future[Any], probe: Callable[[], Any]) -> None:
        try:
            future.set_result(probe())
        except Exception as error:  # any error is the result of the probe
            future.set_exception(error)


def _result(future: Future[Any], seconds: float) -> Any | Exception:
    if not future.done():
        return TimeoutError(f"no answer in {seconds:g} s")
    error = future.exception()
    if error is None:
        return future.result()
    return error if isinstance(error, Exception) else RuntimeError(str(error))
