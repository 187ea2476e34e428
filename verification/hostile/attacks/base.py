"""The base of every attack: the party behind it, its actions, and its conditions."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from verification.hostile.wire import Answer, ask

if TYPE_CHECKING:
    from verification.hostile.environment import Environment

ANY_CLIENT, TENANT, GPU_SERVER, MODEL_AUTHOR, OPERATOR, LOCAL_USER, RECEIVER = (
    "any client",
    "a tenant's key",
    "a GPU server",
    "a model's author",
    "an operator's key",
    "a local user",
    "a callback receiver",
)
_EXPECTED_FAILURES = (503,)
"""Server errors that are allowed, with a Retry-After."""


class Attack:
    """An attack. seconds: its duration. recovery_seconds: limit until the neighbour is quiet again.
    ends_within: seconds in which each job of the neighbour ends, and each callback arrives."""

    id: ClassVar[str]
    title: ClassVar[str]
    attacker: ClassVar[str] = TENANT
    seconds: ClassVar[float] = 8.0
    recovery_seconds: ClassVar[float] = 5.0
    ends_within: ClassVar[float] = 10.0
    judges_neighbour: ClassVar[bool] = True
    """Whether the neighbour's p99 and jobs are judged; not if the attack empties Redis."""
    needs_processes: ClassVar[bool] = False
    """Whether it needs access to the processes, logs or database of the dispatcher."""
    server_errors: ClassVar[tuple[int, ...]] = _EXPECTED_FAILURES
    web_mb: ClassVar[int] = 400
    worker_mb: ClassVar[int] = 600

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()
        self.figures: dict[str, Any] = {}
        self.slowest = 0.0
        self._wrongs: list[str] = []
        self._lock = threading.Lock()

    def skip(self, env: Environment) -> str:
        """Return why it can't be run here; empty if it can."""
        return (
            "it needs access to the processes: give --up-json"
            if self.needs_processes and not env.sees_processes
            else ""
        )

    def prepare(self, env: Environment) -> None:
        """Set up, before the baseline is measured."""

    def play(self, env: Environment, until: float) -> None:
        """Run the attack. until: monotonic; may end earlier."""
        raise NotImplementedError

    def end(self, env: Environment) -> None:
        """Release all resources; called once, also after an error."""

    def check(self, env: Environment) -> None:
        """After the recovery: call `wrong` for each condition of this attack that does not hold."""

    def wrong(self, text: str) -> None:
        """Record a finding."""
        if text not in self._wrongs:
            self._wrongs.append(text)

    def must(self, holds: bool, text: str) -> None:
        """Record a finding unless the condition holds."""
        if not holds:
            self.wrong(text)

    def wrongs(self) -> list[str]:
        return list(self._wrongs)

    # -- requests ------------------------------------------------------------------------------------------

    def ask(self, env: Environment, method: str, path: str, *, key: str | None = None, **more: Any) -> Answer:
        """Send a request as the attacker; the answer is counted and checked. key: instead of the
        attacker's."""
        answer = ask(env.url, method, path, key=env.attacker_key if key is None else key, **more)
        return self.note(answer, f"{method} {path}")

    def submit(self, env: Environment, body: Mapping[str, Any], **more: Any) -> Answer:
        """Submit a job as the attacker."""
        return self.ask(env, "POST", "/api/v1/queue/submit", body=body, **more)

    def note(self, answer: Answer, what: str) -> Answer:
        """Count an answer; record a finding for an unexpected server error. Returns the answer."""
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
    """Return the value of `sign` once it is true, or its last value after `seconds`."""
    until = time.monotonic() + seconds
    while True:
        said = sign()
        if said or time.monotonic() > until:
            return said
        time.sleep(pause)
