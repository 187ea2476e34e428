"""One attempt's steps by hand: a runner that answers from lists, and a clock that the test moves."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from gpus.protocol import Endpoint, ModelSpec
from gpus.runners.base import Abort, Finished, RunRequest, StillRunning
from jobs.execution.attempt_run import AttemptRun, Remote, RunSoFar, Wait
from tests.support.fakes import ManualClock

ASYNC = ModelSpec(
    "flux",
    "flux",
    "async",
    poll_endpoint_template="/status/{id}",
    poll_interval=3.0,
    max_poll_time=60.0,
)
NOWHERE = Endpoint("gpu-1", "http://gpu-1/generate")


class ScriptedRunner:
    """Answers from lists; an exception in them is raised."""

    answer_ends_run = False
    stopped_by = "server confirmed the cancel"

    def __init__(self, *, starts: list[Any] = (), polls: list[Any] = (), cancels: list[Any] = ()) -> None:
        self.starts, self.polls, self.cancels = list(starts), list(polls), list(cancels)
        self.calls: list[str] = []
        self.on_start: Callable[[Abort], None] = lambda abort: None

    def start(self, run: RunRequest, *, abort: Abort) -> Any:
        self.calls.append("start")
        self.on_start(abort)
        return _say(self.starts.pop(0))

    def poll(self, run: RunRequest, remote_id: str, *, abort: Abort) -> Any:
        self.calls.append(f"poll {remote_id}")
        return _say(self.polls.pop(0) if self.polls else StillRunning())

    def cancel(self, run: RunRequest, remote_id: str | None) -> bool:
        self.calls.append(f"cancel {remote_id}")
        return bool(_say(self.cancels.pop(0) if self.cancels else True))

    def read_pushed(self, run: RunRequest, body: Mapping[str, Any]) -> Any:
        return Finished(body["result"])


def _say(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


class Bench:
    """A run and what it asks of its worker (`RunServices`)."""

    def __init__(
        self,
        runner: Any,
        *,
        model: ModelSpec = ASYNC,
        endpoint: Endpoint = NOWHERE,
        deadline: float | None = None,
        remote_id: str | None = None,
        limit: float = math.inf,
        in_background: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self.runner = runner
        self.clock = ManualClock()
        self.fresh = True
        self.push: Mapping[str, Any] | None = None
        self.evidence: str | None = None
        self.agree = True
        request = RunRequest("j", "a", model, endpoint, {}, "gpu-1/0", 1, limit_seconds=limit)
        self.in_background = in_background
        self.run = AttemptRun(
            request,
            runner,
            self,
            deadline=None if deadline is None else self.clock.now() + timedelta(seconds=deadline),
            so_far=RunSoFar(remote_id),
        )

    new_event = staticmethod(threading.Event)

    def is_fresh(self) -> bool:
        return self.fresh

    def clocks_agree(self) -> bool:
        return self.agree

    def pushed(self) -> Mapping[str, Any] | None:
        return self.push

    def prove_free(self) -> str | None:
        return self.evidence

    def refused_url(self) -> str:
        return ""

    def accept(self) -> Bench:
        assert self.run.step() == Remote("r1")
        self.run.remote_committed = True
        return self

    def wait_through(self) -> Any:
        """Steps and moves the clock by each wait until something else comes."""
        for _ in range(1000):
            step = self.run.step()
            if not isinstance(step, Wait):
                return step
            assert step.seconds > 0
            self.clock.move(step.seconds)
        raise AssertionError("it never ended")
