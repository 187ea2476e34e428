"""What every attack is: who can do it, what it does, and what must hold."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from verification.hostile.wire import Answer, ask

if TYPE_CHECKING:
    from verification.hostile.ground import Ground

ANYBODY, TENANT, GPU_SERVER, MODEL_AUTHOR, OPERATOR, LOCAL_USER, RECEIVER = (
    "anybody",
    "a tenant's key",
    "a GPU server",
    "a model's author",
    "an operator's key",
    "a local user",
    "a callback receiver",
)
_EXPECTED_FAILURES = (503,)
"""Of the server errors, where they say when to come back."""


class Attack:
    """seconds: how long it is played. recovery_seconds: bound until the neighbour is quiet again.
    ends_within: seconds in which each job of the neighbour ends, and each callback arrives."""

    id: ClassVar[str]
    title: ClassVar[str]
    who: ClassVar[str] = TENANT
    seconds: ClassVar[float] = 8.0
    recovery_seconds: ClassVar[float] = 5.0
    ends_within: ClassVar[float] = 10.0
    neighbour_feels: ClassVar[bool] = True
    """Whether the neighbour's p99 and jobs are judged; not where Redis is emptied as part of it."""
    needs_inside: ClassVar[bool] = False
    """Whether it needs a look into the processes, logs or database of the dispatcher."""
    server_errors: ClassVar[tuple[int, ...]] = _EXPECTED_FAILURES
    web_mb: ClassVar[int] = 400
    worker_mb: ClassVar[int] = 600

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()
        self.figures: dict[str, Any] = {}
        self.slowest = 0.0
        self._wrongs: list[str] = []
        self._lock = threading.Lock()

    def skip(self, ground: Ground) -> str:
        """Why it can't be played here; empty if it can."""
        return "it needs a look inside: give --up-json" if self.needs_inside and not ground.inside else ""

    def prepare(self, ground: Ground) -> None:
        """What it needs, before the quiet time is measured."""

    def play(self, ground: Ground, until: float) -> None:
        """until: monotonic. May end earlier."""
        raise NotImplementedError

    def end(self, ground: Ground) -> None:
        """Release all resources; called once, also after an error."""

    def check(self, ground: Ground) -> None:
        """After the recovery: calls `wrong` for each of its own conditions that does not hold."""

    def wrong(self, text: str) -> None:
        if text not in self._wrongs:
            self._wrongs.append(text)

    def must(self, holds: bool, text: str) -> None:
        if not holds:
            self.wrong(text)

    def wrongs(self) -> list[str]:
        return list(self._wrongs)

    # -- asking --------------------------------------------------------------------------------------------

    def ask(self, ground: Ground, method: str, path: str, *, key: str | None = None, **more: Any) -> Answer:
        """As the attacker; its answer is counted and looked at. key: in place of the attacker's."""
        answer = ask(ground.url, method, path, key=ground.attacker_key if key is None else key, **more)
        return self.note(answer, f"{method} {path}")

    def submit(self, ground: Ground, body: Mapping[str, Any], **more: Any) -> Answer:
        return self.ask(ground, "POST", "/api/v1/queue/submit", body=body, **more)

    def note(self, answer: Answer, what: str) -> Answer:
        what = what.partition("?")[0]
        with self._lock:
            self.answers[answer.label] += 1
            self.slowest = max(self.slowest, answer.seconds)
            if answer.status >= 500 and answer.status not in self.server_errors:
                self.wrong(f"{what[:80]} was answered {answer.label}")
            elif answer.status in (429, 503) and not answer.retry_after:
                self.wrong(f"{what[:80]} was answered {answer.label} without Retry-After")
        return answer


def wait_until(sign: Callable[[], Any], seconds: float, pause: float = 0.1) -> Any:
    """What `sign` says once it is true; its last word after `seconds`."""
    until = time.monotonic() + seconds
    while True:
        said = sign()
        if said or time.monotonic() > until:
            return said
        time.sleep(pause)
