"""Admits runs: the node's slots, the queue of its direct callers, and its record of past runs.

One lock guards all of it, so that `/health` never misses an admitted run. A slot is freed before any caller
gets the answer: the dispatcher's next request may follow within a millisecond."""

from __future__ import annotations

import threading
import time
import uuid
from collections import OrderedDict, deque
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_host.node.config import NodeConfig
from gpu_host.node.handlers import Handler
from gpu_host.node.runs import Counters, Run, RunLog, RunOrder

CANCELLED_ANSWER = b'{"status": "failed", "error": "The run was cancelled.", "error_code": "cancelled"}'


class Refused(Exception):
    """The run is not admitted. code: stable, for callers."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Admission:
    """One boot of the node: a restart drops everything here except `counters` and `log`. output_root: parent
    of the runs' folders."""

    def __init__(
        self, config: NodeConfig, *, counters: Counters, log: RunLog, output_root: Path | None = None
    ) -> None:
        self.boot_id = uuid.uuid4().hex
        self.output_root = output_root
        self._config, self._counters, self._log = config, counters, log
        self._lock = threading.Lock()
        self._active: dict[str, Run] = {}
        self._waiting: deque[Run] = deque()
        self._runs: dict[str, Run] = {}
        self._by_attempt: dict[str, Run] = {}
        self._ended: OrderedDict[str, Run] = OrderedDict()
        self._fences: dict[str, int] = {}
        self._kept_bytes = 0
        self._draining = False

    def admit(self, order: RunOrder) -> tuple[Run, bool]:
        """Return the run and True if it is new; a repeated attempt gets the run it already has. Raises
        Refused."""
        with self._lock:
            self._check_fence(order)
            known = self._by_attempt.get(order.attempt_id) if order.attempt_id else None
            if known is not None:
                return known, False
            self._check_room(order)
            run = Run(order, self.output_root)
            self._remember(run)
            if len(self._active) < self._config.slots:
                self._begin(run)
            else:
                self._waiting.append(run)
            return run, True

    def end(self, run: Run, outcome: str, answer: bytes) -> bool:
        """Free the slot, give it to the next direct caller, then wake the callers of the run. False: it had
        ended."""
        with self._lock:
            if run.ended:
                return False
            self._end(run, outcome, answer)
            while self._waiting and len(self._active) < self._config.slots:
                self._begin(self._waiting.popleft())
        run.done.set()
        return True

    def find(self, run_id: str) -> Run | None:
        """Return the run of this id, or None."""
        with self._lock:
            return self._runs.get(run_id)

    def running(self) -> list[str]:
        """Return the ids of the runs that hold a slot."""
        with self._lock:
            return list(self._active)

    def position(self, run: Run) -> int:
        """Return its place in the queue, from 1; 0: it does not wait."""
        with self._lock:
            return self._waiting.index(run) + 1 if run in self._waiting else 0

    def cancel(self, job_id: str, attempt_id: str) -> list[Run]:
        """Cancel the runs of this job or attempt; return them.

        An attempt that has not arrived yet is rejected from now on: its request may still be on its way."""
        with self._lock:
            found = [run for run in self._runs.values() if run.belongs_to(job_id, attempt_id)]
            if attempt_id and attempt_id not in self._by_attempt:
                self._reject_attempt(job_id, attempt_id)
            for run in found:
                run.context.cancel()
                if run in self._waiting:
                    self._waiting.remove(run)
                    self._end(run, "cancelled", CANCELLED_ANSWER)
                    run.turn.set()
                    run.done.set()
        return found

    def health(self) -> dict[str, Any]:
        """Return the body of ``GET /health``."""
        with self._lock:
            running = list(self._active.values())
            return {
                "status": "draining" if self._draining else "ok",
                "active_jobs": len(running),
                "max_concurrent": self._config.slots,
                "direct_queue": len(self._waiting),
                "boot_id": self.boot_id,
                "jobs": [{"job_id": run.job_id, "attempt": run.order.attempt_id} for run in running],
                "max_running": self._counters.max_running,
                "refused_503": self._counters.refused_503,
                "late_senders": self._counters.late_senders,
            }

    def unfinished(self) -> int:
        """Return the number of runs and of direct callers that wait for a slot."""
        with self._lock:
            return len(self._active) + len(self._waiting)

    def is_done(self, *, recent_seconds: float) -> bool:
        """Return True if no run is active, and the dispatcher has received all results of the last
        `recent_seconds`."""
        since = time.monotonic() - recent_seconds
        with self._lock:
            return not self._active and not any(
                run.order.from_dispatcher and not run.delivered and run.ended_monotonic >= since
                for run in self._ended.values()
                if run.outcome in ("success", "failed")
            )

    def drain(self) -> None:
        """Admit no more runs."""
        with self._lock:
            self._draining = True

    def abandon(self) -> None:
        """Stop every run without an answer, as if the machine went down."""
        with self._lock:
            self._draining = True
            lost = [*self._active.values(), *self._waiting]
            self._waiting.clear()
            for run in lost:
                run.context.cancel()
                self._end(run, "restarted", b"")
        for run in lost:
            run.turn.set()
            run.done.set()

    def _check_fence(self, order: RunOrder) -> None:
        if not order.slot or order.fence is None:
            return
        if order.fence < self._fences.get(order.slot, order.fence):
            self._counters.late_senders += 1
            self._log.refuse(order, "stale_fence", running=len(self._active))
            raise Refused(409, "stale_fence", f"Slot {order.slot} was leased again since this was sent.")
        self._fences[order.slot] = order.fence
        if len(self._fences) > self._config.max_slot_names:
            del self._fences[next(iter(self._fences))]

    def _check_room(self, order: RunOrder) -> None:
        if self._draining:
            raise self._busy(order, "stopping", "The node is stopping.")
        full = len(self._active) >= self._config.slots
        if order.from_dispatcher and (full or self._waiting):
            if self._waiting:
                raise self._busy(order, "direct_caller", "A direct caller waits.")
            raise self._busy(order, "full", "All slots are busy.")
        if full and len(self._waiting) >= self._config.direct_queue:
            raise self._busy(order, "full", "All slots are busy and the queue of direct callers is full.")

    def _busy(self, order: RunOrder, why: str, message: str) -> Refused:
        self._counters.refused_503 += 1
        self._log.refuse(order, why, running=len(self._active))
        return Refused(503, "busy", message)

    def _begin(self, run: Run) -> None:
        run.began = True
        self._active[run.id] = run
        from_dispatcher = sum(one.order.from_dispatcher for one in self._active.values())
        self._counters.max_running = max(self._counters.max_running, from_dispatcher)
        self._log.begin(run, self.boot_id)
        run.turn.set()

    def _end(self, run: Run, outcome: str, answer: bytes) -> None:
        run.outcome, run.answer, run.ended_monotonic = outcome, answer, time.monotonic()
        if self._active.pop(run.id, None) is not None:
            self._log.end(run)
        run.order = replace(run.order, payload=None)  # it may be large, and is no longer needed
        self._ended[run.id] = run
        run.kept_bytes = len(answer) + run.lines.chars
        self._kept_bytes += run.kept_bytes
        self._forget_old()

    def _reject_attempt(self, job_id: str, attempt_id: str) -> None:
        rejected = Run(RunOrder(Handler("", lambda payload, ctx: None), None, job_id, attempt_id))
        self._remember(rejected)
        self._end(rejected, "cancelled", CANCELLED_ANSWER)
        rejected.turn.set()
        rejected.done.set()

    def _remember(self, run: Run) -> None:
        self._runs[run.id] = run
        if run.order.attempt_id:
            self._by_attempt[run.order.attempt_id] = run

    def _forget_old(self) -> None:
        oldest = time.monotonic() - self._config.keep_seconds
        while self._ended:
            run = next(iter(self._ended.values()))
            too_many = len(self._ended) > self._config.keep_runs
            too_large = self._kept_bytes > self._config.keep_bytes and len(self._ended) > self._config.slots
            if not (too_many or too_large or run.ended_monotonic < oldest):
                return
            del self._ended[run.id], self._runs[run.id]
            self._kept_bytes -= run.kept_bytes
            self._by_attempt.pop(run.order.attempt_id, None)
