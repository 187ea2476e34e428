"""Clients that start runs of workflows, and cancel some; their lines go to the ledger of the load.

Ledger lines, by ``what``: ``run_asked`` (before the first try), ``run_accepted``, ``run_problem``,
``run_cancel``, ``run_restart``, ``run_reported`` (how a run ended, as its client reads it).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping

from dispatcher_client import Conflict, DispatcherError, RunNotOver
from verification.proving.clients import WatchedClient
from verification.proving.ledger import Ledger
from verification.proving.run_mix import LAST_NODE, WORKFLOW, PlannedRun, definition

STARTERS = 2
RESTART_SECONDS = 120.0
"""A run that has not ended by then is not restarted."""


class RunLoad:
    """Starts runs by their tenants' clients. Thread-safe."""

    def __init__(
        self, clients: Mapping[str, WatchedClient], ledger: Ledger, prefix: str, callback_url: str
    ) -> None:
        self._clients, self._ledger, self._callback_url = clients, ledger, callback_url
        self._definition = definition(prefix)
        self._known: set[str] = set()
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[PlannedRun] = queue.SimpleQueue()
        self._counts = {"runs_released": 0, "runs_over": 0}
        self._run_ids: list[tuple[str, str]] = []
        for _ in range(STARTERS):
            threading.Thread(target=self._start_for_ever, daemon=True).start()

    def release(self, run: PlannedRun) -> None:
        """Start this run soon."""
        with self._lock:
            self._counts["runs_released"] += 1
        self._work.put(run)

    def counts(self) -> dict[str, int]:
        """Return how many runs were released, and how many of them were accepted or given up."""
        with self._lock:
            return dict(self._counts)

    def read_ends(self) -> None:
        """Write to the ledger how all runs ended. Raises DispatcherError."""
        for tenant, run_id in list(self._run_ids):
            run = self._clients[tenant].workflows.get_run(run_id)
            reported = {"run": run_id, "status": run.status, "round": run.round}
            self._ledger.write({"what": "run_reported", **reported})

    def _start_for_ever(self) -> None:
        while True:
            run = self._work.get()
            asked = {"key": run.key, "tenant": run.tenant, "callback": run.callback}
            self._ledger.write({"what": "run_asked", **asked, "at": time.time()})
            try:
                self._start(run)
            except DispatcherError as error:
                self._ledger.write({"what": "run_problem", "key": run.key, "error": str(error)[:300]})
            with self._lock:
                self._counts["runs_over"] += 1

    def _start(self, run: PlannedRun) -> None:
        client = self._clients[run.tenant]
        with self._lock:
            is_new = run.tenant not in self._known
        if is_new:
            client.workflows.put(WORKFLOW, self._definition)
            with self._lock:
                self._known.add(run.tenant)
        url = f"{self._callback_url}/{run.tenant}" if run.callback else None
        started = client.workflows.start(WORKFLOW, run.inputs, callback_url=url, idempotency_key=run.key)
        with self._lock:
            self._run_ids.append((run.tenant, started.run_id))
        self._ledger.write({"what": "run_accepted", "key": run.key, "run": started.run_id, "at": time.time()})
        if run.cancel_after is not None:
            threading.Timer(run.cancel_after, self._cancel, (client, started.run_id)).start()
        if run.restarted:
            with self._lock:
                self._counts["runs_released"] += 1
            threading.Thread(target=self._restart, args=(client, started.run_id), daemon=True).start()

    def _restart(self, client: WatchedClient, run_id: str) -> None:
        """Run the last node again once the run has completed. A repeated request whose answer was lost finds
        the run under way, or ended again: then a further round begins."""
        try:
            outcome = client.workflows.wait(run_id, RESTART_SECONDS).status
            if outcome == "completed":
                client.workflows.restart(run_id, [LAST_NODE])
                outcome = "restarted"
        except Conflict:
            outcome = "under way"
        except (DispatcherError, RunNotOver) as error:
            outcome = f"unanswered: {error}"
        self._ledger.write({"what": "run_restart", "run": run_id, "outcome": outcome})
        with self._lock:
            self._counts["runs_over"] += 1

    def _cancel(self, client: WatchedClient, run_id: str) -> None:
        try:
            client.workflows.cancel(run_id)
            outcome = "requested"
        except Conflict:
            outcome = "over"
        except DispatcherError as error:
            outcome = f"unanswered: {error}"
        self._ledger.write({"what": "run_cancel", "run": run_id, "outcome": outcome})
