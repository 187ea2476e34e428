"""Both tenants submit while a store is full; then it has space again."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any

from verification.hostile.attacks.base import Attack, wait_until
from verification.hostile.attacks.tenants import job
from verification.hostile.wire import ask, flood

if TYPE_CHECKING:
    from verification.hostile.environment import Environment

_SUBMIT = "/api/v1/queue/submit"
_ENDED = ("completed", "failed", "cancelled")


class FullStore(Attack):
    """Refusals must have a Retry-After, and each accepted job must end."""

    judges_neighbour = False
    needs_processes = True

    def prepare(self, env: Environment) -> None:
        self._accepted: list[tuple[str, str]] = []

    @contextmanager
    @abstractmethod
    def full(self, env: Environment) -> Iterator[None]:
        """The store is full in this block; calls `wrong` if it was not."""

    def body(self, env: Environment) -> dict[str, Any]:
        return job(env)

    def play(self, env: Environment, until: float) -> None:
        with self.full(env):
            neighbour = Thread(target=self._submit_as_neighbour, args=(env, until), daemon=True)
            neighbour.start()
            self.figures["submits"] = flood(
                lambda n: self._collect(self.submit(env, self.body(env)), env.attacker_key),
                workers=8,
                until=until,
                at_most=2000,
            )
            neighbour.join(30.0)

    def check(self, env: Environment) -> None:
        left = list(self._accepted)

        def all_ended() -> bool:
            left[:] = [one for one in left if env.job(*one).said.get("status") not in _ENDED]
            return not left

        wait_until(all_ended, 60.0)
        self.figures["accepted"] = len(self._accepted)
        self.must(not left, f"{len(left)} of {len(self._accepted)} accepted jobs did not end within 60 s")

    def _submit_as_neighbour(self, env: Environment, until: float) -> None:
        """Its refusals are checked like the attacker's: 503 or 429, with a Retry-After."""
        while time.monotonic() < until:
            body = self.body(env)
            answer = ask(env.url, "POST", _SUBMIT, key=env.neighbour_key, body=body, as_neighbour=True)
            self._collect(self.note(answer, "the neighbour's submit"), env.neighbour_key)
            self.must(answer.status in (200, 202, 429, 503), f"the neighbour was answered {answer.label}")
            time.sleep(0.1)

    def _collect(self, answer: Any, key: str) -> None:
        if answer.status in (200, 202):
            with self._lock:
                self._accepted.append((answer.said["job_id"], key))
