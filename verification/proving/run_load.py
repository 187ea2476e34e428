"""Clients that start runs of workflows, answer, cancel, restart and erase some; their lines go to the ledger
of the load.

Ledger lines, by ``what``: ``run_asked`` (before the first try), ``run_accepted``, ``run_problem``,
``run_cancel``, ``run_restart``, ``run_erased``, ``run_reported`` (how a run ended, as its client reads it).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from dispatcher_client import Conflict, DispatcherError, NotFound, Run, RunNotOver
from verification.proving.clients import WatchedClient
from verification.proving.ledger import Ledger
from verification.proving.run_kinds import FILM, KINDS, LAST_NODE, PERSON, SIGNAL, RunKind, definition
from verification.proving.run_mix import PlannedRun

STARTERS = 2
PATIENCE_SECONDS = 120.0
"""A run that has not ended by then is neither answered, restarted nor erased."""
_AGAIN_SECONDS = 0.5


class RunLoad:
    """Starts runs by their tenants' clients. Thread-safe."""

    def __init__(
        self, clients: Mapping[str, WatchedClient], ledger: Ledger, prefix: str, callback_url: str
    ) -> None:
        self._clients, self._ledger, self._callback_url = clients, ledger, callback_url
        self._prefix = prefix
        self._known: set[tuple[str, str]] = set()
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
            asked = {"key": run.key, "tenant": run.tenant, "callback": run.callback, "kind": run.kind}
            self._ledger.write({"what": "run_asked", **asked, "at": time.time()})
            try:
                self._start(run)
            except DispatcherError as error:
                self._ledger.write({"what": "run_problem", "key": run.key, "error": str(error)[:300]})
            with self._lock:
                self._counts["runs_over"] += 1

    def _start(self, run: PlannedRun) -> None:
        client, kind = self._clients[run.tenant], KINDS[run.kind]
        try:
            started = self._send(run, client, kind)
        except NotFound:  # the database has lost the definition
            with self._lock:
                self._known.discard((run.tenant, kind.name))
            started = self._send(run, client, kind)
        with self._lock:
            self._run_ids.append((run.tenant, started.run_id))
        self._ledger.write({"what": "run_accepted", "key": run.key, "run": started.run_id, "at": time.time()})
        if run.cancel_after is not None:
            threading.Timer(run.cancel_after, self._cancel, (client, started.run_id)).start()
        if kind.is_answered:
            self._follow(self._answer, client, started.run_id)
        if run.restarted:
            self._follow(self._restart, client, started.run_id, [LAST_NODE] if kind is FILM else None)
        if kind.is_erased:
            self._follow(self._erase, client, started.run_id)

    def _send(self, run: PlannedRun, client: WatchedClient, kind: RunKind) -> Run:
        return client.workflows.start(
            definition(self._prefix, kind) if kind.is_inline else self._stored(run.tenant, kind),
            run.inputs,
            deadline_seconds=kind.deadline_seconds,
            callback_url=f"{self._callback_url}/{run.tenant}" if run.callback else None,
            idempotency_key=run.key,
        )

    def _stored(self, tenant: str, kind: RunKind) -> str:
        """Return the name of the kind's workflow, which the tenant has by then."""
        with self._lock:
            is_new = (tenant, kind.name) not in self._known
        if is_new:
            self._clients[tenant].workflows.put(kind.name, definition(self._prefix, kind))
            with self._lock:
                self._known.add((tenant, kind.name))
        return kind.name

    def _follow(self, work: Callable[..., None], *values: object) -> None:
        """Do more with a run, as one more that is not over yet."""

        def follow() -> None:
            work(*values)
            with self._lock:
                self._counts["runs_over"] += 1

        with self._lock:
            self._counts["runs_released"] += 1
        threading.Thread(target=follow, daemon=True).start()

    def _answer(self, client: WatchedClient, run_id: str) -> None:
        """Answer the person and send the signal that a run waits for, again until it has ended."""
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            with suppress(DispatcherError):  # its answer was lost, or came twice
                run = client.workflows.get_run(run_id)
                if run.is_over:
                    return
                if PERSON in (run.waiting_for or ()):
                    client.workflows.answer(run_id, PERSON, "a")
                elif run.waiting_for:
                    client.workflows.signal(SIGNAL, {"of": run_id}, run_id=run_id)
            time.sleep(_AGAIN_SECONDS)

    def _restart(self, client: WatchedClient, run_id: str, nodes: list[str] | None) -> None:
        """Run nodes again once the run has ended; None: what failed. A repeated request whose answer was lost
        finds the run under way, or ended again: then a further round begins."""
        try:
            outcome = client.workflows.wait(run_id, PATIENCE_SECONDS).status
            if outcome == ("completed" if nodes else "failed"):
                client.workflows.restart(run_id, nodes)
                outcome = "restarted"
        except Conflict:
            outcome = "under way"
        except (DispatcherError, RunNotOver) as error:
            outcome = f"unanswered: {error}"
        self._ledger.write({"what": "run_restart", "run": run_id, "outcome": outcome})

    def _erase(self, client: WatchedClient, run_id: str) -> None:
        try:
            client.workflows.wait(run_id, PATIENCE_SECONDS)
            client.workflows.erase(run_id)
            outcome = "erased"
        except (DispatcherError, RunNotOver) as error:
            outcome = f"unanswered: {error}"
        self._ledger.write({"what": "run_erased", "run": run_id, "outcome": outcome})

    def _cancel(self, client: WatchedClient, run_id: str) -> None:
        try:
            client.workflows.cancel(run_id)
            outcome = "requested"
        except Conflict:
            outcome = "over"
        except DispatcherError as error:
            outcome = f"unanswered: {error}"
        self._ledger.write({"what": "run_cancel", "run": run_id, "outcome": outcome})
