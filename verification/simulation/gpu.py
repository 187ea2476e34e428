"""GPU servers under virtual time: the node's real admission (slots, fences, cancels); runs only take time.

Each server records what ran when, and which requests found it full: by that the dispatcher is judged."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from artifacts.store.contract import StoreError
from gpu_host.node.admission import CANCELLED_ANSWER, Admission, Refused
from gpu_host.node.config import NodeConfig
from gpu_host.node.handlers import Handler
from gpu_host.node.runs import Counters, Run, RunLog, RunOrder
from gpu_host.node.work import failed_answer
from verification.simulation.scheduler import Event, Process, Scheduler

_HANDLER = Handler("", lambda payload, ctx: None)
Fetch = Callable[[str], bytes]
Push = Callable[[str, str, Mapping[str, Any]], None]
Claim = tuple[int, str]
"""A lease that was granted: its fence and its attempt."""


@dataclass(slots=True)
class RunRecord:
    """One run that held a slot; times in virtual seconds. sender: the process that sent it."""

    job_id: str
    attempt_id: str
    began: float
    sender: str = ""
    ended: float | None = None
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer. status 0: the connection broke."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


LOST = Answer(0)


class GpuServer:
    """A GPU server. anonymous: it reports neither boot id nor jobs, and ignores fences. ignores_cancel: runs
    go on after a cancel. fetch: reads the bytes of a URL, may raise
    StoreError; None: payloads have no files. push: pushes results."""

    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        chance: random.Random,
        *,
        slots: int,
        is_async: bool,
        anonymous: bool = False,
        ignores_cancel: bool = False,
        fetch: Fetch | None = None,
        push: Push | None = None,
    ) -> None:
        self.name, self.slots, self.is_async, self.anonymous, self.ignores_cancel = (
            name,
            slots,
            is_async,
            anonymous,
            ignores_cancel,
        )
        self.ran: list[RunRecord] = []
        self.late_senders = 0
        self.oversubscribed: list[str] = []
        self.refused_fences: list[str] = []
        self.up = False
        self.fails = True
        """Whether runs fail on request of their payload."""
        self.wrong_files: list[str] = []
        self.only_here_known: Callable[[RunRecord], bool] = lambda ran: False
        """Returns True if worker, database and Redis have all lost the run."""
        self.index_lost_between: Callable[[Claim, Claim], bool] = lambda first, second: False
        """Returns True if Redis lost an index after the first claim and before the second."""
        self._scheduler, self._chance, self._fetch_url, self._push = scheduler, chance, fetch, push
        self._newest: dict[str, Claim] = {}
        """By slot: the claim with the highest fence seen."""
        self._late: set[str] = set()
        self._old: set[str] = set()
        self._senders: dict[str, str] = {}
        self.start()

    # -- start and end ---------------------------------------------------------------------------------

    def start(self) -> None:
        self.up = True
        self.machine = Process(self.name)
        self._admission = Admission(
            NodeConfig(handler="simulated:run", slots=self.slots, direct_queue=0),
            counters=Counters(),
            log=RunLog(1),
        )
        self._done: dict[str, Event] = {}

    def die(self) -> None:
        """Lose all runs, and the admission's memory."""
        self.up = False
        self._scheduler.kill(self.machine)
        self._admission.abandon()
        for one in self.ran:
            if one.ended is None:
                one.ended, one.outcome = self._scheduler.now, "restarted"
        for done in self._done.values():
            done.set()

    def running(self) -> list[RunRecord]:
        """The runs without an end."""
        return [one for one in self.ran if one.ended is None]

    def record_sender(self, sender: str, headers: Mapping[str, str]) -> None:
        """Record the process that sends this attempt's request."""
        if "Idempotency-Key" in headers:
            self._senders[headers["Idempotency-Key"]] = sender

    def record_late_sender(self, headers: Mapping[str, str]) -> None:
        """Record a sender that was stopped for longer than a lease while it held the request.

        If that begins a run, the run cannot be stopped: the server has seen no newer fence before the slot's
        next run, a moment later. A late poll is no excuse."""
        if "Idempotency-Key" in headers:
            self._late.add(headers["Idempotency-Key"])

    def record_old_claim(self, headers: Mapping[str, str]) -> None:
        """Record a sender that was stopped between claim and request, whose renewal a rebuilt index accepted.

        Its fence is old: it is refused if the slot had a later run."""
        self._old.add(headers["Idempotency-Key"])

    # -- the protocol ----------------------------------------------------------------------------------

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """Return the answer to a request; blocks as long as the run takes."""
        first, _, rest = path.strip("/").partition("/")
        if method == "GET" and first == "health":
            return self._health()
        if method == "GET" and first == "status":
            return self._status(unquote(rest))
        if first == "cancel":
            return self._cancel(unquote(rest), headers.get("X-Attempt", ""))
        return self._run(headers, json.loads(body or b"null"))

    def _run(self, headers: Mapping[str, str], payload: Any) -> Answer:
        fence = None if self.anonymous else int(headers["X-Fence"])
        order = RunOrder(
            _HANDLER, payload, headers["X-Job-Id"], headers["Idempotency-Key"], True, headers["X-Slot"], fence
        )
        request = int(headers["X-Fence"]), order.attempt_id
        newest = self._newest.setdefault(order.slot, request)
        is_late = request[0] < newest[0] or order.attempt_id in self._late
        self._newest[order.slot] = max(newest, request)
        admission = self._admission
        try:
            run, is_new = admission.admit(order)
        except Refused as refused:
            if refused.status == 503 and not is_late:
                self._judge(order)
            self.late_senders += is_late
            if refused.code == "stale_fence" and not self._may_refuse(order.slot, request):
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
            if run.id in self._done:  # otherwise it was cancelled before it arrived
                self._done[run.id].wait()
            return self._state(admission, run)
        return _json({"status": "processing", "job_id": run.id})

    def _may_refuse(self, slot: str, claim: Claim) -> bool:
        """Return True if the request of an old fence is a late one: its sender was stopped; or its lease was
        lost with the index while this server hung, and the request of the slot's next claim is here."""
        return claim[1] in self._late | self._old or self.index_lost_between(claim, self._newest[slot])

    def _judge(self, order: RunOrder) -> None:
        """A full machine is the dispatcher's fault.

        Excepted are late senders that could not be stopped, and runs that only this server has and does not
        report: its count may include other clients' jobs."""
        running = self.running()
        known = [one for one in running if not (self.anonymous and self.only_here_known(one))]
        if len(known) >= self.slots and not any(one.attempt_id in self._late for one in running):
            there = ", ".join(f"{one.attempt_id} of {one.job_id} since {one.began:.2f}" for one in running)
            self.oversubscribed.append(
                f"{self.name} at {self._scheduler.now:.2f}: {order.attempt_id} of {order.job_id} came to "
                f"{order.slot}, running: {there}"
            )

    def _begin(self, run: Run) -> None:
        sender = self._senders.get(run.order.attempt_id, "")
        ran = RunRecord(run.order.job_id, run.order.attempt_id, self._scheduler.now, sender)
        self.ran.append(ran)
        admission, done = self._admission, Event(self._scheduler)
        self._done[run.id] = done
        payload = run.order.payload

        def work() -> None:
            if "file" in payload:
                self._fetch(run, payload)
            until = self._scheduler.now + float(payload["seconds"])
            while (left := until - self._scheduler.now) > 0:
                self._scheduler.sleep(min(left, 0.5))
                if run.context.cancelled and not self.ignores_cancel:
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

    def _fetch(self, run: Run, payload: Mapping[str, Any]) -> None:
        """Read the payload's file, again until it is whole or the run is cancelled."""
        fetch = self._fetch_url
        while fetch is not None and not run.context.cancelled:
            try:
                content = fetch(payload["file"])
            except StoreError:
                self._scheduler.sleep(0.5)
                continue
            if hashlib.sha256(content).hexdigest() != payload["sha256"]:
                self.wrong_files.append(f"{self.name} got other bytes for job {run.order.job_id}")
            return

    def _outcome(self, run: Run) -> tuple[str, bytes]:
        """payload: {seconds, fails: chance that a try fails}."""
        if self._chance.random() < run.order.payload.get("fails", 0.0) and self.fails:
            return "failed", failed_answer("it failed", "run_failed")
        result = {"attempt": run.order.attempt_id, "server": self.name}
        if chars := run.order.payload.get("result_chars"):
            result["text"] = "x" * chars
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
        if self.anonymous:
            said = {name: said[name] for name in ("status", "active_jobs", "max_concurrent", "direct_queue")}
        return _json(said)


def _json(value: Any, status: int = 200) -> Answer:
    return Answer(status, json.dumps(value).encode(), {"retry-after": "1"} if status == 503 else {})


def origin(server: str) -> str:
    """Return the URL of a server."""
    return f"http://{server}.gpu"


def server_of(url: str) -> str:
    """Return the server of a URL."""
    return (urlsplit(url).hostname or "").removesuffix(".gpu")
