"""Two pinned workers on the CPU: the time until the job of a killed one runs on the other, and until a worker
that is switched on runs a waiting job. With the default lease of 15 s."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from verification.proving.children import Child
from verification.proving.terminal import say

from .contenders import Dispatcher
from .figures import percentiles
from .gpu import NotDone
from .suite import Suite

MODEL, BOXES = "waits", ("box-1", "box-2")
_OPTIONS = ("--gpu", "none", "--models", "benchmarks.suite.holding")
Sign = TypeVar("Sign")
_LONG_SECONDS, _WAIT_SECONDS, _POLL_SECONDS = 500.0, 90.0, 0.02


def measure(suite: Suite) -> dict[str, Any]:
    """Run the benchmark."""
    elsewhere: list[float] = []
    switched_on: list[float] = []
    with suite.dispatcher() as ours:
        boxes = _Boxes(ours)
        for number in range(suite.options.rounds):
            elsewhere.append(boxes.killed())
            switched_on.append(boxes.switched_on(BOXES[number % len(BOXES)]))
            say(f"killed: elsewhere after {elsewhere[-1]:.1f} s; on: runs after {switched_on[-1]:.2f} s")
        boxes.stop()
    return summary(elsewhere, switched_on)


def summary(elsewhere: Sequence[float], switched_on: Sequence[float]) -> dict[str, Any]:
    """Return the seconds of all rounds; the goals concern the longest."""
    return {
        "rounds": len(elsewhere),
        "elsewhere_seconds": max(elsewhere),
        "on_seconds": max(switched_on),
        "seconds": {
            "killed → its job runs elsewhere": percentiles(elsewhere),
            "switched on → a job that waited runs": percentiles(switched_on),
        },
    }


class _Boxes:
    def __init__(self, ours: Dispatcher) -> None:
        self._ours = ours
        self._workers: dict[str, Child] = {name: ours.start_worker(name, options=_OPTIONS) for name in BOXES}

    def killed(self) -> float:
        """Return the seconds until the job of a killed worker runs on the other one. Both run afterwards."""
        job = self._submit(_LONG_SECONDS)
        box = self._runs(job, lambda attempts: len(attempts) == 1)
        began = time.monotonic()
        self._workers[box].kill()
        self._runs(job, lambda attempts: len(attempts) == 2)
        took = time.monotonic() - began
        self._ours.ask("POST", f"/queue/jobs/{job}/cancel")
        self._wait(lambda: self._job(job)["finished_at"], "the end of a cancelled job")
        self._workers[box] = self._ours.start_worker(box, options=_OPTIONS)
        for name in BOXES:
            self._wait(partial(self._free, name), f"{name} to be free")
        return took

    def switched_on(self, box: str) -> float:
        """Return the seconds until a waiting job, both workers being off, runs on the one that is switched
        on."""
        for name in BOXES:
            self._switch(name, "off")
        job = self._submit(0.0)
        began = time.monotonic()
        self._switch(box, "on")
        self._runs(job, lambda attempts: len(attempts) == 1)
        took = time.monotonic() - began
        self._wait(lambda: self._job(job)["finished_at"], "the end of a job")
        for name in BOXES:
            self._switch(name, "on")
        return took

    def stop(self) -> None:
        for worker in self._workers.values():
            worker.stop(20.0)

    def _submit(self, seconds: float) -> str:
        said = self._ours.ask("POST", "/queue/submit", {"model": MODEL, "payload": {"seconds": seconds}})
        return str(said["job_id"])

    def _job(self, job: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._ours.ask("GET", f"/queue/jobs/{job}")
        return found

    def _runs(self, job: str, is_it: Callable[[Sequence[Any]], bool]) -> str:
        """Return the server of its last attempt, once that began and matches."""

        def look() -> str:
            attempts = self._job(job)["attempts"]
            begun = attempts and attempts[-1]["state"] != "leased" and is_it(attempts)
            return str(attempts[-1]["server"]) if begun else ""

        return self._wait(look, "a job to run")

    def _free(self, box: str) -> int:
        slots = self._ours.ask("GET", f"/admin/servers/{box}")["observed"]["slots"]
        return int(slots.get("free", 0))

    def _switch(self, box: str, desired: str) -> None:
        self._ours.ask("PATCH", f"/admin/servers/{box}", {"desired": desired})

    def _wait(self, look: Callable[[], Sign], what: str) -> Sign:
        until = time.monotonic() + _WAIT_SECONDS
        while not (found := look()):
            self._ours.check()
            if time.monotonic() > until:
                raise NotDone(f"{what} did not come in {_WAIT_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)
        return found
