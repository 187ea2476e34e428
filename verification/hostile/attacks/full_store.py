"""Both tenants submit while something that stores is full; then there is room again."""

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
    from verification.hostile.ground import Ground

_SUBMIT = "/api/v1/queue/submit"
_ENDED = ("completed", "failed", "cancelled")


class FullStore(Attack):
    """Refusals say when to come back, and each accepted job comes to its end."""

    neighbour_feels = False
    needs_inside = True

    def prepare(self, ground: Ground) -> None:
        self._accepted: list[tuple[str, str]] = []

    @contextmanager
    @abstractmethod
    def full(self, ground: Ground) -> Iterator[None]:
        """The store is full in this block; calls `wrong` where it was not."""

    def body(self, ground: Ground) -> dict[str, Any]:
        return job(ground)

    def play(self, ground: Ground, until: float) -> None:
        with self.full(ground):
            neighbour = Thread(target=self._submit_as_neighbour, args=(ground, until), daemon=True)
            neighbour.start()
            self.figures["submits"] = flood(
                lambda n: self._keep(self.submit(ground, self.body(ground)), ground.attacker_key),
                workers=8,
                until=until,
                at_most=2000,
            )
            neighbour.join(30.0)

    def check(self, ground: Ground) -> None:
        left = list(self._accepted)

        def all_ended() -> bool:
            left[:] = [one for one in left if ground.job(*one).said.get("status") not in _ENDED]
            return not left

        wait_until(all_ended, 60.0)
        self.figures["accepted"] = len(self._accepted)
        self.must(not left, f"{len(left)} of {len(self._accepted)} accepted jobs did not end within 60 s")

    def _submit_as_neighbour(self, ground: Ground, until: float) -> None:
        """Its refusals count like the attacker's: 503 or 429, and when to come back."""
        while time.monotonic() < until:
            body = self.body(ground)
            answer = ask(ground.url, "POST", _SUBMIT, key=ground.neighbour_key, body=body, as_neighbour=True)
            self._keep(self.note(answer, "the neighbour's submit"), ground.neighbour_key)
            self.must(answer.status in (200, 202, 429, 503), f"the neighbour was answered {answer.label}")
            time.sleep(0.1)

    def _keep(self, answer: Any, key: str) -> None:
        if answer.status in (200, 202):
            with self._lock:
                self._accepted.append((answer.said["job_id"], key))
