"""``python -m verification.proving.load PLAN``: clients that submit, retry, cancel, and keep a ledger.

PLAN is a JSON file: ``{url, keys: {tenant: key}, seed, shorten, prefix, ledger, callback_url}``. Orders come
on stdin, one JSON object a line, and are answered with the current counts:

- ``release``: so many more jobs, submitted at once, or in batches; ``model`` and ``seconds`` override the
  seed, ``with_files``: each takes a file, and the first one a big one; ``with_outputs``: each takes a file,
  and runs on the pinned worker, which saves one in parts; else some numbers also start a run of
  a workflow (run_load.py);
- ``release_runs``: so many more runs;
- ``schedules``: store the schedules (schedule_load.py), whose periods have at least ``shortest`` seconds;
  ``end_schedules``, ``delete_schedules``: end, or delete them;
- ``fates``: read the end of every job, run and due time.

Ledger lines, by ``what``: ``asked`` (before the first try), ``accepted``, ``unanswered``, ``refused``,
``doubled``, ``cancel``, ``answer`` (a slow, refused or missing one), ``reported`` (how a job ended, as its
client reads it).
"""

from __future__ import annotations

import heapq
import itertools
import json
import queue
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from dispatcher_client import Conflict, DispatcherError, NotFound, Problem, Unavailable, uploads
from verification.proving.clients import SUBMITS, WatchedClient
from verification.proving.files import (
    BIG_OUTPUT_BYTES,
    LONG_RESULT_CHARS,
    OUTPUT_BYTES,
    PARTS_ABOVE_BYTES,
    WORKER_OUTPUT_BYTES,
    WORKER_RESULT_CHARS,
    file_of,
    upload,
)
from verification.proving.ledger import Ledger
from verification.proving.mix import PlannedJob, planned_job
from verification.proving.pinned_models import MODEL, PINNED
from verification.proving.run_load import RunLoad
from verification.proving.run_mix import has_run, planned_run
from verification.proving.schedule_load import ScheduleLoad
from verification.proving.schedule_mix import planned_schedules

SUBMITTERS = 6
BATCH_JOBS = 100
SLOW_SECONDS = 1.0
RESULTS_ASKED = 3000
"""The ends of all jobs are read from the list; of so many the results are read one by one."""


class Load:
    """The clients of all tenants, with one ledger."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._ledger = Ledger(Path(plan["ledger"]))
        self._tenants = sorted(plan["keys"])
        self._clients = {
            tenant: WatchedClient(plan["url"], key, on_answer=self._note_answer)
            for tenant, key in plan["keys"].items()
        }
        self._numbers = itertools.count()
        self._runs = RunLoad(self._clients, self._ledger, plan["prefix"], plan["callback_url"])
        self._schedules = ScheduleLoad(self._clients, self._ledger, plan["prefix"])
        self._work: queue.SimpleQueue[list[PlannedJob]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._jobs: dict[str, list[str]] = {tenant: [] for tenant in self._tenants}
        self._state = {"released": 0, "accepted": 0, "given_up": 0, "cancels": 0, "uploads": 0}
        self._with_files: set[int] = set()
        self._with_big_files: set[int] = set()
        self._with_outputs: set[int] = set()
        self._fates = "not asked"
        self._cancels: list[tuple[float, str, str]] = []
        self._soon = threading.Condition()
        for _ in range(SUBMITTERS):
            threading.Thread(target=self._submit_for_ever, daemon=True).start()
        threading.Thread(target=self._cancel_for_ever, daemon=True).start()

    def execute(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carry out an order; return the counts."""
        if order["do"] == "release":
            self._release(order)
        elif order["do"] == "release_runs":
            for _ in range(order["count"]):
                self._release_run(next(self._numbers))
        elif order["do"] == "schedules":
            drawn = {name: self._plan[name] for name in ("prefix", "shorten")}
            planned = planned_schedules(tenants=self._tenants, shortest=order["shortest"], **drawn)
            self._schedules.begin(planned)
        elif order["do"] == "end_schedules":
            self._schedules.end()
        elif order["do"] == "delete_schedules":
            self._schedules.delete()
        elif order["do"] == "fates":
            self._fates = "asking"
            threading.Thread(target=self._read_ends, daemon=True).start()
        with self._lock:
            counts = {**self._runs.counts(), **self._schedules.counts()}
            return {**self._state, **counts, "fates": self._fates}

    # -- submitting ----------------------------------------------------------------------------------------

    def _release(self, order: dict[str, Any]) -> None:
        drawn = {name: self._plan[name] for name in ("seed", "prefix", "shorten")}
        numbers = [next(self._numbers) for _ in range(order["count"])]
        jobs = [planned_job(number, tenants=self._tenants, **drawn) for number in numbers]
        if "model" in order:  # it must still run when the fault begins
            ordered = {"model": order["model"], "seconds": order["seconds"], "priority": 1}
            jobs = [replace(job, **ordered, cancel_after=None, deadline_seconds=None) for job in jobs]
        if order.get("with_files"):
            self._with_files.update(numbers)
            self._with_big_files.add(numbers[0])
            jobs = [replace(job, cancel_after=None, deadline_seconds=None) for job in jobs]
        if order.get("with_outputs"):
            self._with_files.update(numbers)
            self._with_outputs.update(numbers)
            film = f"{self._plan['prefix']}-{MODEL}"
            jobs = [replace(job, model=film, cancel_after=None, deadline_seconds=None) for job in jobs]
        with self._lock:
            self._state["released"] += len(jobs)
            self._state["uploads"] += len(self._with_files.intersection(numbers))
        if "model" not in order:
            for number in numbers:
                if has_run(number, self._plan["seed"]):
                    self._release_run(number)
        if not order.get("batch"):
            for job in jobs:
                self._work.put([job])
            return
        for tenant in self._tenants:
            own = [job for job in jobs if job.tenant == tenant]
            for at in range(0, len(own), BATCH_JOBS):
                self._work.put(own[at : at + BATCH_JOBS])

    def _release_run(self, number: int) -> None:
        drawn = {name: self._plan[name] for name in ("seed", "prefix", "shorten")}
        self._runs.release(planned_run(number, tenants=self._tenants, **drawn))

    def _submit_for_ever(self) -> None:
        while True:
            jobs = self._work.get()
            client = self._clients[jobs[0].tenant]
            asked_at = time.time()
            self._ledger.write(*({"what": "asked", "at": asked_at, **job.as_json()} for job in jobs))
            try:
                if len(jobs) == 1:
                    self._submit_one(client, jobs[0])
                else:
                    self._submit_many(client, jobs)
            except DispatcherError as error:
                for job in jobs:
                    self._give_up(job, error)

    def _submit_one(self, client: WatchedClient, job: PlannedJob) -> None:
        request = self._request(job)
        is_sure, is_big = job.number in self._with_files, job.number in self._with_big_files
        if (content := file_of(job.number, self._plan["seed"], is_sure=is_sure, is_big=is_big)) is not None:
            try:
                stored = upload(client, content, Path(self._plan["ledger"]).parent)
            finally:
                with self._lock:
                    self._state["uploads"] -= is_sure
            self._ledger.write({"what": "file", "key": job.key, **stored})
            request["payload"] |= {
                "file": {"$artifact": stored["artifact"]},
                "sha256": stored["sha256"],
                "output_bytes": BIG_OUTPUT_BYTES if is_big else OUTPUT_BYTES,
                "result_chars": LONG_RESULT_CHARS if job.number % 2 else 0,
            }
        if job.number in self._with_outputs:
            request["payload"] |= {
                "log": self._plan["pinned_log"],
                "server": f"{self._plan['prefix']}-{PINNED}",
                "output_bytes": WORKER_OUTPUT_BYTES,
                "result_chars": WORKER_RESULT_CHARS if job.number % 3 == 0 else 0,
            }
        began = time.monotonic()
        accepted = client.submit(**request, idempotency_key=job.key)
        self._accept(job, accepted.job_id, time.monotonic() - began)
        if job.doubled:
            again = client.submit(**request, idempotency_key=job.key)
            self._ledger.write({"what": "doubled", "key": job.key, "job": again.job_id})

    def _submit_many(self, client: WatchedClient, jobs: list[PlannedJob]) -> None:
        began = time.monotonic()
        items = [{**self._request(job), "idempotency_key": job.key} for job in jobs]
        answers = client.submit_batch(items, idempotency_key=f"batch-{jobs[0].key}")
        for job, answer in zip(jobs, answers, strict=True):
            if isinstance(answer, Problem):
                self._give_up(job, answer)
            else:
                self._accept(job, answer.job_id, time.monotonic() - began)

    def _request(self, job: PlannedJob) -> dict[str, Any]:
        callback = f"{self._plan['callback_url']}/{job.tenant}" if job.callback else None
        request = {
            "model": job.model,
            "payload": {"number": job.number, "seconds": job.seconds},
            "priority": job.priority,
            "callback_url": callback,
            "deadline_seconds": job.deadline_seconds,
        }
        return {name: value for name, value in request.items() if value is not None}

    def _accept(self, job: PlannedJob, job_id: str, took: float) -> None:
        at = time.time()
        self._ledger.write(
            {"what": "accepted", "key": job.key, "job": job_id, "at": at, "took": round(took, 3)}
        )
        with self._lock:
            self._state["accepted"] += 1
            self._jobs[job.tenant].append(job_id)
        if job.cancel_after is not None:
            with self._soon:
                heapq.heappush(self._cancels, (at + job.cancel_after, job_id, job.tenant))
                self._soon.notify()

    def _give_up(self, job: PlannedJob, error: DispatcherError) -> None:
        refused = isinstance(error, Problem) and not isinstance(error, Unavailable)
        what = "refused" if refused else "unanswered"
        self._ledger.write({"what": what, "key": job.key, "at": time.time(), "error": str(error)[:300]})
        with self._lock:
            self._state["given_up"] += 1

    def _note_answer(self, path: str, status: int, retry_after: str, asked_at: float, took: float) -> None:
        if path in SUBMITS and (status not in (200, 202) or took > SLOW_SECONDS):
            line = {
                "status": status,
                "retry_after": retry_after,
                "asked_at": asked_at,
                "took": round(took, 3),
            }
            self._ledger.write({"what": "answer", **line})

    # -- cancelling ----------------------------------------------------------------------------------------

    def _cancel_for_ever(self) -> None:
        while True:
            with self._soon:
                while not self._cancels or self._cancels[0][0] > time.time():
                    self._soon.wait(self._cancels[0][0] - time.time() if self._cancels else None)
                _, job_id, tenant = heapq.heappop(self._cancels)
            try:
                outcome = self._clients[tenant].cancel(job_id)
            except Conflict:
                outcome = "over"
            except DispatcherError as error:
                outcome = f"unanswered: {error}"
            self._ledger.write({"what": "cancel", "job": job_id, "outcome": outcome, "at": time.time()})
            with self._lock:
                self._state["cancels"] += 1

    # -- ends of jobs --------------------------------------------------------------------------------------

    def _read_ends(self) -> None:
        try:
            for tenant, client in self._clients.items():
                self._read_list(client, set(self._jobs[tenant]))
            everything = [(tenant, job_id) for tenant, ids in self._jobs.items() for job_id in ids]
            step = max(1, len(everything) // RESULTS_ASKED)
            for tenant, job_id in everything[::step]:
                self._read_result(self._clients[tenant], job_id)
            self._runs.read_ends()
            self._schedules.read_ends()
        except DispatcherError as error:
            self._fates = f"unanswered: {error}"
        else:
            self._fates = "reported"

    def _read_list(self, client: WatchedClient, wanted: set[str]) -> None:
        following: str | None = None
        while wanted:
            page, following = client.page(following)
            lines = [_reported_end(job) for job in page if job["job_id"] in wanted]
            wanted -= {line["job"] for line in lines}
            self._ledger.write(*lines)
            if following is None:
                return

    def _read_result(self, client: WatchedClient, job_id: str) -> None:
        try:
            job = client.get(job_id)
        except NotFound:  # the judge finds the missing row
            return
        result = job.result if isinstance(job.result, dict) else {}
        attempt = {} if "$artifact" in result else {"attempt": result.get("attempt", "")}
        self._ledger.write({**_reported_end(job.data), **attempt})


def _reported_end(job: Any) -> dict[str, Any]:
    error = job.get("error") or {}
    return {"what": "reported", "job": job["job_id"], "status": job["status"], "code": error.get("code", "")}


def main() -> None:
    uploads.PARTS_ABOVE_BYTES = PARTS_ABOVE_BYTES
    load = Load(json.loads(Path(sys.argv[1]).read_text()))
    sys.stdout.write("{}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(load.execute(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
