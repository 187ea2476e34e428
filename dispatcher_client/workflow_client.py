"""The blocking calls about workflows: `Client.workflows`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

from .stream import Event
from .urllib_transport import iterate_blocking, run_blocking
from .workflow import Workflow
from .workflow_answers import (
    Run,
    RunDataErased,
    RunExplanation,
    RunNode,
    WorkflowSummary,
    WorkflowVersion,
    WorkflowVersionSummary,
)
from .workflow_calls import RunFilters, WorkflowCalls


class Workflows:
    """Definitions and runs. `dispatcher_client.workflow_calls` has the details of each call."""

    def __init__(self, calls: WorkflowCalls) -> None:
        self._calls = calls

    def put(self, name: str, definition: Mapping[str, Any] | Workflow) -> WorkflowVersion:
        """Store a definition as the newest version, unless that has the same content; return it. Raises
        `Invalid` with the place of each error."""
        return run_blocking(self._calls.put(name, definition))

    def get(self, name: str, version: int | None = None) -> WorkflowVersion:
        """Return a version of a workflow, by default the newest."""
        return run_blocking(self._calls.get(name, version))

    def versions(self, name: str) -> Iterator[WorkflowVersionSummary]:
        """Yield the versions of a workflow, newest first, without their definitions."""
        return iterate_blocking(self._calls.versions(name))

    def list(self) -> Iterator[WorkflowSummary]:
        """Yield the tenant's workflows by name."""
        return iterate_blocking(self._calls.list())

    def start(
        self,
        workflow: str | Mapping[str, Any] | Workflow,
        inputs: Any = None,
        *,
        version: int | None = None,
        priority: int | bool | None = None,
        deadline_seconds: float | None = None,
        tags: Sequence[str] | None = None,
        callback_url: str | None = None,
        idempotency_key: str | None = None,
    ) -> Run:
        """Start a run of a stored workflow, or of a definition, exactly once; return it once it is
        durable."""
        return run_blocking(
            self._calls.start(
                workflow,
                inputs,
                version=version,
                priority=priority,
                deadline_seconds=deadline_seconds,
                tags=tags,
                callback_url=callback_url,
                idempotency_key=idempotency_key,
            )
        )

    def run(
        self,
        workflow: str | Mapping[str, Any] | Workflow,
        inputs: Any = None,
        *,
        timeout_seconds: float | None = None,
        **options: Any,
    ) -> Any:
        """Start a run of a stored workflow, or of a definition, wait until it has ended, and return its
        output. Raises `RunFailed`, `RunNotOver`."""
        return run_blocking(self._calls.run(workflow, inputs, timeout_seconds=timeout_seconds, **options))

    def output(self, run: Run | RunNode) -> Any:
        """Return the output of a run or a node, also a long one, which is in an artifact."""
        return run_blocking(self._calls.output(run))

    def get_run(self, run_id: str) -> Run:
        """Return the run."""
        return run_blocking(self._calls.get_run(run_id))

    def explain(self, run_id: str) -> RunExplanation:
        """Return why a run waits, when it will probably end, and what it cost."""
        return run_blocking(self._calls.explain(run_id))

    def runs(self, **wanted: Unpack[RunFilters]) -> Iterator[Run]:
        """Yield the tenant's runs, newest first, without inputs and outputs. wanted: `RunFilters`."""
        return iterate_blocking(self._calls.runs(**wanted))

    def wait(self, run_id: str, timeout_seconds: float | None = None, *, for_answer: bool = False) -> Run:
        """Wait until the run has ended, or `for_answer` until it waits for one. Raises `RunNotOver`."""
        return run_blocking(self._calls.wait(run_id, timeout_seconds, for_answer=for_answer))

    def nodes(self, run_id: str, *, state: str | None = None) -> Iterator[RunNode]:
        """Yield the nodes of a run that have started or ended, and the children of maps."""
        return iterate_blocking(self._calls.nodes(run_id, state=state))

    def node(self, run_id: str, key: str, index: int | None = None) -> RunNode:
        """Return a node of a run. index: of a map's child. Raises `NotFound` if it has not started."""
        return run_blocking(self._calls.node(run_id, key, index))

    def items(self, run_id: str, key: str) -> dict[int, RunNode]:
        """Return the items of a map that have started, by index: `items(run_id, "images")[3]`."""
        return run_blocking(self._calls.items(run_id, key))

    def events(self, run_id: str, *, after: str = "") -> Iterator[Event]:
        """Yield the events of a run and of all its jobs, each once; the last is ``done``."""
        return iterate_blocking(self._calls.events(run_id, after=after))

    def cancel(self, run_id: str) -> Run:
        """Ask for the cancel of a run. Raises `Conflict` if it has ended."""
        return run_blocking(self._calls.cancel(run_id))

    def pause(self, run_id: str) -> Run:
        """Start no further nodes of a run. Raises `Conflict` if it has ended."""
        return run_blocking(self._calls.pause(run_id))

    def resume(self, run_id: str) -> Run:
        """Start nodes of a paused run again. Raises `Conflict` if it has ended."""
        return run_blocking(self._calls.resume(run_id))

    def restart(self, run_id: str, nodes: Sequence[str] | None = None) -> Run:
        """Run the failed nodes of a run again, or the given ones, and all after them. Raises `Conflict`
        while it runs, and if nothing failed."""
        return run_blocking(self._calls.restart(run_id, nodes))

    def erase(self, run_id: str) -> RunDataErased:
        """Erase what a run that has ended and its jobs were given and made. Raises `Conflict`."""
        return run_blocking(self._calls.erase(run_id))

    def answer(
        self,
        run_id: str,
        key: str,
        answer: Any,
        *,
        round: int | None = None,
        idempotency_key: str | None = None,
    ) -> Run:
        """Answer a human node, exactly once. round: only in this one. Raises `Conflict`, `Invalid`."""
        return run_blocking(
            self._calls.answer(run_id, key, answer, round=round, idempotency_key=idempotency_key)
        )

    def signal(
        self,
        name: str,
        body: Any = None,
        *,
        run_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        """Send a signal to the runs that wait for it, exactly once; return how many nodes took it."""
        return run_blocking(self._calls.signal(name, body, run_id=run_id, idempotency_key=idempotency_key))
