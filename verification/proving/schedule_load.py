"""Clients that store schedules, end them, and read what became of their due times; their lines go to the
ledger of the load.

Ledger lines, by ``what``: ``schedule_put`` (start_at, made_at), ``schedule_end`` (end_at),
``schedule_problem``, ``schedule_firing`` (as its client reads it). Times are Unix seconds.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from dispatcher_client import DispatcherError
from verification.proving.clients import WatchedClient
from verification.proving.ledger import Ledger
from verification.proving.run_kinds import definition
from verification.proving.run_mix import WORKFLOW
from verification.proving.schedule_mix import PlannedSchedule

AHEAD_SECONDS = 3
"""Between a request and the first due time, or the last one."""
_LOOK_SECONDS = 1.0


class ScheduleLoad:
    """The schedules of a trial. Thread-safe. prefix: of the models of a workflow's jobs."""

    def __init__(self, clients: Mapping[str, WatchedClient], ledger: Ledger, prefix: str) -> None:
        self._clients, self._ledger, self._prefix = clients, ledger, prefix
        self._made: dict[str, tuple[PlannedSchedule, int]] = {}
        self._open = 0

    def begin(self, planned: Sequence[PlannedSchedule]) -> None:
        """Store these schedules, in the background."""
        self._open = len(planned)
        self._in_thread(lambda: self._put_all(planned))

    def end(self) -> None:
        """Give all schedules an end, in the background; they are open until each firing has ended."""
        self._in_thread(self._end_all)

    def counts(self) -> dict[str, int]:
        """Return how many schedules may still start something, or wait for what they started."""
        return {"schedules_open": self._open}

    def read_ends(self) -> None:
        """Write to the ledger what became of all due times. Raises DispatcherError."""
        for schedule, _ in self._made.values():
            for firing in self._clients[schedule.tenant].schedules.firings(schedule.name):
                line = {
                    "due_at": firing.due_at.timestamp(),
                    "until_at": (firing.until_at or firing.due_at).timestamp(),
                    "count": firing.count,
                    "outcome": firing.outcome,
                    "reason": firing.reason or "",
                    "at": firing.at.timestamp(),
                    "job": firing.job_id or "",
                    "run": firing.run_id or "",
                    "end_state": firing.end_state or "",
                    "ended_at": None if firing.ended_at is None else firing.ended_at.timestamp(),
                }
                self._ledger.write({"what": "schedule_firing", "schedule": schedule.name, **line})

    def delete(self) -> None:
        """Delete the schedules from a dispatcher that goes on without the trial."""
        for schedule, _ in self._made.values():
            self._clients[schedule.tenant].schedules.delete(schedule.name)

    def _put_all(self, planned: Sequence[PlannedSchedule]) -> None:
        for schedule in planned:
            self._put(schedule)

    def _put(self, schedule: PlannedSchedule) -> None:
        client, start_at = self._clients[schedule.tenant], int(time.time()) + AHEAD_SECONDS
        try:
            if schedule.model is None:
                client.workflows.put(WORKFLOW, definition(self._prefix))
            client.schedules.put(schedule.name, schedule.body(start_at=_text(start_at)))
        except DispatcherError as error:
            self._problem(schedule, error)
            return
        self._made[schedule.name] = schedule, start_at
        known = {"schedule": schedule.name, "start_at": start_at, "made_at": time.time()}
        self._ledger.write({"what": "schedule_put", **known})

    def _end_all(self) -> None:
        waiting = []
        for schedule, start_at in self._made.values():
            soon = time.time() + AHEAD_SECONDS
            last = next(schedule.due_times(start_at, soon, soon + schedule.period + 1.0))
            body = schedule.body(start_at=_text(start_at), end_at=_text(int(last)))
            try:
                self._clients[schedule.tenant].schedules.put(schedule.name, body)
            except DispatcherError as error:
                self._problem(schedule, error)
                continue
            self._ledger.write({"what": "schedule_end", "schedule": schedule.name, "end_at": int(last)})
            waiting.append(schedule)
        while waiting:
            with contextlib.suppress(DispatcherError):  # the drain notes that a schedule stays open
                waiting = [one for one in waiting if not self._is_over(one)]
            self._open = len(waiting)
            time.sleep(_LOOK_SECONDS)
        self._open = 0

    def _is_over(self, schedule: PlannedSchedule) -> bool:
        client = self._clients[schedule.tenant]
        if client.schedules.get(schedule.name).next_due_at is not None:
            return False
        return all(
            one.outcome != "waiting" and (one.outcome != "started" or one.ended_at is not None)
            for one in client.schedules.firings(schedule.name)
        )

    def _problem(self, schedule: PlannedSchedule, error: DispatcherError) -> None:
        line = {"schedule": schedule.name, "error": str(error)[:300]}
        self._ledger.write({"what": "schedule_problem", **line})

    def _in_thread(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name="schedules", daemon=True).start()


def _text(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()
