"""GPU servers under virtual time: the node's real admission (who may run, fences, cancels); runs only last.

Each server keeps the record that judges the dispatcher: what ran when, and who came to a full machine.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from gpu_host.node.admission import CANCELLED_ANSWER, Admission, Refused
from gpu_host.node.config import NodeConfig
from gpu_host.node.handlers import Handler
from gpu_host.node.runs import Run, RunLog, RunOrder, Tally
from gpu_host.node.work import failed_answer
from verification.simulation.scheduler import Event, Process, Scheduler

_HANDLER = Handler("", lambda payload, ctx: None)
Push = Callable[[str, str, Mapping[str, Any]], None]


@dataclass(slots=True)
class Ran:
    """One run that held a slot; times in virtual seconds. sender: the process that sent it."""

    job_id: str
    attempt_id: str
    began: float
    sender: str = ""
    ended: float | None = None
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """status 0: the connection broke."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


LOST = Answer(0)


class GpuServer:
    """plain: it tells neither boot nor jobs, and looks at no fence. deaf: a cancel stops nothing."""

    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        chance: random.Random,
        *,
        slots: int,
        is_async: bool,
        plain: bool = False,
        deaf: bool = False,
        push: Push | None = None,
    ) -> None:
        self.name, self.slots, self.is_async, self.plain, self.deaf = name, slots, is_async, plain, deaf
        self.ran: list[Ran] = []
        self.late_senders = 0
        self.oversubscribed: list[str] = []
        self.refused_fences: list[str] = []
        self.up = False
        self.fails = True
        """Whether tries fail whose job asks for it."""
        self.is_known_here_only: Callable[[Ran], bool] = lambda ran: False
        """Whether the run's worker, the database and Redis have all lost it."""
        self._scheduler, self._chance, self._push = scheduler, chance, push
        self._fences: dict[str, int] = {}
        self._late: set[str] = set()
        self._old: set[str] = set()
        self._senders: dict[str, str] = {}
        self.start()

    # -- life ------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.up = True
        self.machine = Process(self.name)
        self._admission = Admission(
            NodeConfig(handler="simulated:run", slots=self.slots, direct_queue=0),
            tally=Tally(),
            log=RunLog(1),
        )
        self._done: dict[str, Event] = {}

    def die(self) -> None:
        """Everything that runs is gone, and so is what the admission remembered."""
        self.up = False
        self._scheduler.kill(self.machine)
        self._admission.abandon()
        for one in self.ran:
            if one.ended is None:
                one.ended, one.outcome = self._scheduler.now, "restarted"
        for done in self._done.values():
            done.set()

    def running(self) -> list[Ran]:
        return [one for one in self.ran if one.ended is None]

    def comes_from(self, sender: str, headers: Mapping[str, str]) -> None:
        if "Idempotency-Key" in headers:
            self._senders[headers["Idempotency-Key"]] = sender

    def comes_late(self, headers: Mapping[str, str]) -> None:
        """Its sender stood still for longer than a lease, the request in its hands. If that begins a run,
        nobody can stop it: the server has seen no newer fence before the slot's next run comes, a moment
        later. A late poll excuses nothing."""
        if "Idempotency-Key" in headers:
            self._late.add(headers["Idempotency-Key"])

    def was_claimed_long_ago(self, headers: Mapping[str, str]) -> None:
        """Its sender stood still between the claim and the request, and an index that was made anew meanwhile
        took its renewal. Its fence is old: it is refused where the slot had a later run."""
        self._old.add(headers["Idempotency-Key"])

    # -- the protocol ----------------------------------------------------------------------------------

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """May wait as long as the run takes."""
        first, _, rest = path.strip("/").partition("/")
        if method == "GET" and first == "health":
            return self._health()
        if method == "GET" and first == "status":
            return self._status(unquote(rest))
        if first == "cancel":
            return self._cancel(unquote(rest), headers.get("X-Attempt", ""))
        return self._run(headers, json.loads(body or b"null"))

    def _run(self, headers: Mapping[str, str], payload: Any) -> Answer:
        fence = None if self.plain else int(headers["X-Fence"])
        order = RunOrder(
            _HANDLER, payload, headers["X-Job-Id"], headers["Idempotency-Key"], True, headers["X-Slot"], fence
        )
        is_late = int(headers["X-Fence"]) < self._fences.get(order.slot, 0) or order.attempt_id in self._late
        self._fences[order.slot] = max(int(headers["X-Fence"]), self._fences.get(order.slot, 0))
        admission = self._admission
        try:
            run, is_new = admission.admit(order)
        except Refused as refused:
            if refused.status == 503 and not is_late:
                self._judge(order)
            self.late_senders += is_late
            if refused.code == "stale_fence" and order.attempt_id not in self._late | self._old:
                self.refused_fences.append(
                    f"{self.name} at {self._scheduler.now:.2f} refused fence {fence} of "
                    f"{order.attempt_id} of {order.job_id}, which did not come late to {order.slot}"
                )
            return _json({"error": {"code": refused.code}}, refused.status)
        if is_new:
            self.late_senders += is_late
            if is_late:
                self._late.add(order.attempt_id)
            self._begin(run)
        if not self.is_async:
            if run.id in self._done:  # else it was cancelled before it came
                self._done[run.id].wait()
            return self._state(admission, run)
        return _json({"status": "processing", "job_id": run.id})

    def _judge(self, order: RunOrder) -> None:
        """A full machine is the dispatcher's fault, unless a late sender is there that nobody could stop, or
        runs that only this server knows and that it does not name: its count may be other clients' jobs."""
        running = self.running()
        known = [one for one in running if not (self.plain and self.is_known_here_only(one))]
        if len(known) >= self.slots and not any(one.attempt_id in self._late for one in running):
            there = ", ".join(f"{one.attempt_id} of {one.job_id} since {one.began:.2f}" for one in running)
            self.oversubscribed.append(
                f"{self.name} at {self._scheduler.now:.2f}: {order.attempt_id} of {order.job_id} came to "
                f"{order.slot}, running: {there}"
            )

    def _begin(self, run: Run) -> None:
        sender = self._senders.get(run.order.attempt_id, "")
        ran = Ran(run.order.job_id, run.order.attempt_id, self._scheduler.now, sender)
        self.ran.append(ran)
        admission, done = self._admission, Event(self._scheduler)
        self._done[run.id] = done
        payload = run.order.payload

        def work() -> None:
            until = self._scheduler.now + float(payload["seconds"])
            while (left := until - self._scheduler.now) > 0:
                self._scheduler.sleep(min(left, 0.5))
                if run.context.cancelled and not self.deaf:
                    ran.outcome, answer = "cancelled", CANCELLED_ANSWER
                    break
            else:
                ran.outcome, answer = self._outcome(run)
            ran.ended = self._scheduler.now
            admission.end(run, ran.outcome, answer)
            done.set()
            if self._push is not None and ran.outcome == "success" and run.order.attempt_id:
                self._push(run.order.job_id, run.order.attempt_id, json.loads(answer))

        self._scheduler.spawn(self.machine, work)

    def _outcome(self, run: Run) -> tuple[str, bytes]:
        """payload: {seconds, fails: chance that a try fails}."""
        if self._chance.random() < run.order.payload.get("fails", 0.0) and self.fails:
            return "failed", failed_answer("it failed", "run_failed")
        result = {"attempt": run.order.attempt_id, "server": self.name}
        return "success", json.dumps({"status": "success", "result": result}).encode()

    def _state(self, admission: Admission, run: Run) -> Answer:
        if not run.ended:
            return _json({"status": "processing", "job_id": run.id})
        return LOST if run.outcome == "restarted" else Answer(200, run.answer)

    def _status(self, run_id: str) -> Answer:
        run = self._admission.find(run_id)
        return self._state(self._admission, run) if run else _json({"error": {"code": "unknown_run"}}, 404)

    def _cancel(self, job_id: str, attempt_id: str) -> Answer:
        runs = self._admission.cancel(job_id, attempt_id)
        for run in runs:
            if not run.ended and run.id in self._done:
                self._done[run.id].wait(0.5)
        if any(not run.ended for run in runs):
            return _json({"status": "cancelling", "running": True}, 202)
        if not runs:
            return _json({"status": "not_running", "running": False}, 404)
        return _json({"status": "cancelled", "running": False})

    def _health(self) -> Answer:
        said = self._admission.health()
        if self.plain:
            said = {name: said[name] for name in ("status", "active_jobs", "max_concurrent", "direct_queue")}
        return _json(said)


def _json(value: Any, status: int = 200) -> Answer:
    return Answer(status, json.dumps(value).encode(), {"retry-after": "1"} if status == 503 else {})


def origin(server: str) -> str:
    return f"http://{server}.gpu"


def server_of(url: str) -> str:
    return (urlsplit(url).hostname or "").removesuffix(".gpu")
