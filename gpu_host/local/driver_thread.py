"""The one thread that asks the driver: a driver that hangs holds it, and nobody else.

A call into a driver that hangs can't be ended. Whoever waits for its answer gives up after a bound; until the
driver answers again everybody else gives up at once, so that a lock that is held while asking is held for one
bound in all.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Unanswered(Exception):
    def __init__(self) -> None:
        super().__init__("the driver does not answer")


class DriverThread:
    def __init__(self, name: str) -> None:
        self._asked: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._silent = False
        threading.Thread(target=self._answer, name=name, daemon=True).start()

    def ask(self, question: Callable[[], T], seconds: float) -> T:
        """Its answer, or what it raises. Raises Unanswered after so many seconds."""
        with self._lock:
            if self._silent:
                raise Unanswered
        future: Future[T] = Future()
        self._asked.put((future, question))
        try:
            return future.result(seconds)
        except TimeoutError:
            with self._lock:
                if future.done():
                    return future.result()
                self._silent = True
                future.cancel()  # one that waits behind another is not asked any more
            raise Unanswered from None

    def _answer(self) -> None:
        while True:
            future, question = self._asked.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(question())
                except BaseException as error:
                    future.set_exception(error)
            with self._lock:
                self._silent = False
            del future, question  # what was answered is not kept until the next question
