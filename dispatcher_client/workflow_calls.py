"""Calls about workflows, written once: `AsyncClient.workflows` has them; `Client.workflows` runs each to its
end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol, TypedDict, TypeVar, Unpack
from urllib.parse import quote, urlencode

from .answers import cursor_of
from .artifacts import id_of
from .errors import NoAnswer, NotFound, Unavailable
from .reading import read_answer
from .stream import Event, EventParser, follow
from .transport import Request, Transport, key_of_request, pause_after, pause_seconds
from .workflow import Workflow
from .workflow_answers import (
    Run,
    RunDataErased,
    RunExplanation,
    RunFailed,
    RunNode,
    RunNotOver,
    WorkflowSummary,
    WorkflowVersion,
    WorkflowVersionSummary,
    read_taken,
)

T = TypeVar("T")

_MAX_PAUSE_SECONDS = 2.0
_PAGE_ROWS = 200
_REPEATED_EVENTS = 10_000
"""Events of jobs that are remembered: a stream sends those of the last ten seconds again, at most 1,000 per
second."""


class RunFilters(TypedDict, total=False):
    """Filters of runs; None: any. workflow: its name. parent: `none`: runs that were started; `any`: their
    sub-runs, too; the id of a run: its sub-runs. By default `none`; with `waiting`, `any`. waiting: whether
    a node waits for a person or a signal."""

    status: str | None
    workflow: str | None
    parent: str | None
    tag: str | None
    paused: bool | None
    waiting: bool | None


class Sending(Protocol):
    """What `Calls` gives: requests to the API, with retries."""

    async def send(
        self, request: Request, read: Callable[[dict[str, Any]], T], *, accepted: Any = ...
    ) -> T: ...


class Calls:
    """Sends the calls of one part of the API, with `timeout_seconds` for each."""

    def __init__(self, api: Sending, *, timeout_seconds: float) -> None:
        self._api, self._timeout_seconds = api, timeout_seconds

    async def _get(self, path: str, read: Callable[[dict[str, Any]], T]) -> T:
        return await self._api.send(Request("GET", path, self._timeout_seconds), read)

    async def _post(
        self,
        path: str,
        read: Callable[[dict[str, Any]], T],
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        return await self._api.send(Request("POST", path, self._timeout_seconds, body, headers or {}), read)

    async def _rows(self, path: str, query: Mapping[str, Any], kind: type[T]) -> AsyncGenerator[T, None]:
        given = {name: value for name, value in query.items() if value is not None} | {"limit": _PAGE_ROWS}
        while True:
            rows, cursor = await self._get(
                f"{path}?{urlencode(given)}", lambda document: _read_rows(kind, document)
            )
            for row in rows:
                yield row
            if cursor is None:
                return
            given["cursor"] = cursor


class WorkflowCalls(Calls):
    """Definitions and runs. api: requests to the dispatcher. read_artifact: returns the JSON in an artifact.

    Each call raises `Problem` for an error answer, and after the last retry `NoAnswer` or `Unavailable`.
    """

    def __init__(
        self,
        transport: Transport,
        api: Sending,
        read_artifact: Callable[[str], Awaitable[Any]],
        *,
        timeout_seconds: float,
        retry_seconds: float,
    ) -> None:
        super().__init__(api, timeout_seconds=timeout_seconds)
        self._transport, self._read_artifact = transport, read_artifact
        self._retry_seconds = retry_seconds

    # -- definitions ---------------------------------------------------------------------------------------

    async def put(self, name: str, definition: Mapping[str, Any] | Workflow) -> WorkflowVersion:
        """Store a definition as the newest version, unless that has the same content; return it. The content
        of an earlier version becomes a new version. Raises `Invalid` with the place of each error."""
        body = _definition_of(definition)
        request = Request("PUT", _workflow_path(name), self._timeout_seconds, body)
        return await self._api.send(request, _read_version, accepted=(200, 201))

    async def get(self, name: str, version: int | None = None) -> WorkflowVersion:
        """Return a version of a workflow, by default the newest."""
        path = _workflow_path(name) + ("" if version is None else f"/versions/{version}")
        return await self._get(path, _read_version)

    async def versions(self, name: str) -> AsyncGenerator[WorkflowVersionSummary, None]:
        """Yield the versions of a workflow, newest first, without their definitions; one request per page."""
        async for row in self._rows(f"{_workflow_path(name)}/versions", {}, WorkflowVersionSummary):
            yield row

    async def list(self) -> AsyncGenerator[WorkflowSummary, None]:
        """Yield the tenant's workflows by name."""
        async for row in self._rows("/workflows", {}, WorkflowSummary):
            yield row

    # -- runs ----------------------------------------------------------------------------------------------

    async def start(
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
        """Start a run; return it once it is durable. All tries carry one idempotency key (a new one by
        default), so one run is started.

        workflow: name of a stored one; or a definition, which is run without being stored under its name.
        version: of a stored one; default: the newest. priority, tags: of all its jobs. deadline_seconds: the
        run fails if it has not ended by then. callback_url: is sent a signed POST when the run is over."""
        given = {
            "inputs": inputs,
            "version": version,
            "priority": priority,
            "deadline_seconds": deadline_seconds,
            "tags": None if tags is None else list(tags),
            "callback_url": callback_url,
        }
        if isinstance(workflow, str):
            path = f"{_workflow_path(workflow)}/runs"
        elif version is None:
            path, given["definition"] = "/workflows/runs", _definition_of(workflow)
        else:
            raise ValueError("a definition has no version: give the name of a stored workflow")
        body = {name: value for name, value in given.items() if value is not None}
        headers = {"Idempotency-Key": key_of_request(idempotency_key)}
        return await self._post(path, _read_run, body, headers)

    async def run(
        self,
        workflow: str | Mapping[str, Any] | Workflow,
        inputs: Any = None,
        *,
        timeout_seconds: float | None = None,
        **options: Any,
    ) -> Any:
        """Start a run, wait until it has ended, and return its output.

        workflow, options: of `start`. Raises `RunFailed` if it failed or was cancelled, and what `start` and
        `wait` raise."""
        run = await self.wait((await self.start(workflow, inputs, **options)).run_id, timeout_seconds)
        if run.status != "completed":
            raise RunFailed(run)
        return await self.output(run)

    async def output(self, run: Run | RunNode) -> Any:
        """Return the output of a run or a node, also a long one, which is in an artifact."""
        return run.output if run.output_url is None else await self._read_artifact(id_of(run.output))

    async def get_run(self, run_id: str) -> Run:
        """Return the run."""
        return await self._get(_run_path(run_id), _read_run)

    async def explain(self, run_id: str) -> RunExplanation:
        """Return why a run waits, when it will probably end, and what it cost."""
        return await self._get(
            f"{_run_path(run_id)}/explain", lambda document: read_answer(RunExplanation, document)
        )

    async def runs(self, **wanted: Unpack[RunFilters]) -> AsyncGenerator[Run, None]:
        """Yield the tenant's runs, newest first, without inputs and outputs; one request per page. wanted:
        `RunFilters`."""
        query = {name: _text(value) if type(value) is bool else value for name, value in wanted.items()}
        async for run in self._rows("/runs", query, Run):
            yield run

    async def wait(
        self, run_id: str, timeout_seconds: float | None = None, *, for_answer: bool = False
    ) -> Run:
        """Wait until the run has ended and return it, also while the dispatcher restarts.

        for_answer: return too as soon as a node waits for a person or a signal. Raises `RunNotOver` after
        `timeout_seconds`; None waits for ever."""
        until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        tries = 0
        while True:
            tries += 1
            error: NoAnswer | Unavailable | None = None
            try:
                run = await self.get_run(run_id)
            except (NoAnswer, Unavailable) as failed:
                error, pause = failed, pause_after(failed, tries)
            else:
                if run.is_over or (for_answer and run.waiting_for):
                    return run
                pause = min(pause_seconds(tries), _MAX_PAUSE_SECONDS)
            if until is not None:
                left = until - time.monotonic()
                if left <= 0 or (error is not None and pause > left):
                    raise error or RunNotOver(run, timeout_seconds or 0.0)
                pause = min(pause, left)
            await self._transport.sleep(pause)

    async def nodes(self, run_id: str, *, state: str | None = None) -> AsyncGenerator[RunNode, None]:
        """Yield the nodes of a run that have started or ended, with the children of maps, in the order of
        their starts; one request per page."""
        async for node in self._rows(f"{_run_path(run_id)}/nodes", {"state": state}, RunNode):
            yield node

    async def node(self, run_id: str, key: str, index: int | None = None) -> RunNode:
        """Return a node of a run, of its newest round. index: of a map's child.

        Raises `NotFound` for a node that has not started."""
        wanted = key if index is None else f"{key}[{index}]"
        found: RunNode | None = None
        async for node in self._rows(f"{_run_path(run_id)}/nodes", {"key": wanted}, RunNode):
            if found is None or node.round >= found.round:
                found = node
        if found is None:
            raise NotFound(
                404, "unknown_node", f"The run has no node {wanted} that has started.", retryable=False
            )
        return found

    async def items(self, run_id: str, key: str) -> dict[int, RunNode]:
        """Return the items of a map that have started, by index, each of its newest round; one request per
        page."""
        found: dict[int, RunNode] = {}
        async for node in self._rows(f"{_run_path(run_id)}/nodes", {"map": key}, RunNode):
            index = _index_of(node)
            if index not in found or node.round >= found[index].round:
                found[index] = node
        return dict(sorted(found.items()))

    async def events(self, run_id: str, *, after: str = "") -> AsyncGenerator[Event, None]:
        """Yield the events of a run and of all its jobs as they happen, each once, across reconnects; the
        last is ``done``. Types of jobs' events begin with ``job_``. after: id of the last known event."""
        parser = EventParser(after, self._transport.max_answer_bytes, _run_path(run_id))
        seen: deque[tuple[str, Any]] = deque(maxlen=_REPEATED_EVENTS)
        async with aclosing(follow(self._transport, parser, retry_seconds=self._retry_seconds)) as events:
            async for event in events:
                data = event.data if isinstance(event.data, dict) else {}
                mark = (str(data.get("job_id")), data.get("seq"))
                if event.type.startswith("job_") and mark in seen:  # sent again after a reconnect
                    continue
                seen.append(mark)
                yield event

    # -- what one does with a run --------------------------------------------------------------------------

    async def cancel(self, run_id: str) -> Run:
        """Ask for the cancel of a run; it ends once its jobs have. Raises `Conflict` if it has ended."""
        return await self._post(f"{_run_path(run_id)}/cancel", _read_run)

    async def pause(self, run_id: str) -> Run:
        """Start no further nodes of a run and its sub-runs; jobs and waits under way go on. Raises `Conflict`
        if it has ended."""
        return await self._post(f"{_run_path(run_id)}/pause", _read_run)

    async def resume(self, run_id: str) -> Run:
        """Start nodes of a paused run again. Raises `Conflict` if it has ended."""
        return await self._post(f"{_run_path(run_id)}/resume", _read_run)

    async def restart(self, run_id: str, nodes: Sequence[str] | None = None) -> Run:
        """Run a run's failed and cancelled nodes again, or the given ones, and all nodes after them; the
        others keep their outputs. Raises `Conflict` while it runs, so also if the answer to an earlier try
        was lost, and if no node failed or was cancelled."""
        body = {} if nodes is None else {"nodes": list(nodes)}
        return await self._post(f"{_run_path(run_id)}/restart", _read_run, body)

    async def erase(self, run_id: str) -> RunDataErased:
        """Erase what a run that has ended, its jobs and its sub-runs were given and made; may be repeated.
        Raises `Conflict` if it has not ended."""
        request = Request("DELETE", f"{_run_path(run_id)}/data", self._timeout_seconds)
        return await self._api.send(request, lambda document: read_answer(RunDataErased, document))

    async def answer(
        self,
        run_id: str,
        key: str,
        answer: Any,
        *,
        round: int | None = None,
        idempotency_key: str | None = None,
    ) -> Run:
        """Answer a human node. key: such as ``best``, or ``best[3]``. round: of the node that asks, as in
        `RunNode.round`: a node that was restarted since is not answered; None: any.

        A try after a lost response answers no further question: without `round`, all tries carry one
        idempotency key (a new one by default); with it, they carry a key only if one is given. Raises
        `Conflict` if there is another answer or round, `NotAllowed` if the node names other keys in
        `answer_by`, `Problem` (410) if the time for it is over, `Invalid` for an answer that is none of the
        choices or does not match the form."""
        sent = {"answer": answer} if round is None else {"answer": answer, "round": round}
        needs_key = round is None or idempotency_key is not None
        headers = {"Idempotency-Key": key_of_request(idempotency_key)} if needs_key else {}
        return await self._post(f"{_run_path(run_id)}/waits/{quote(key, safe='')}", _read_run, sent, headers)

    async def signal(
        self,
        name: str,
        body: Any = None,
        *,
        run_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        """Send a signal to the runs that wait for it, or to one of them; return how many nodes took it. All
        tries carry one idempotency key (a new one by default): a second one reaches no further nodes."""
        sent = {"body": body} if run_id is None else {"body": body, "run_id": run_id}
        headers = {"Idempotency-Key": key_of_request(idempotency_key)}
        return await self._post(f"/signals/{quote(name, safe='')}", read_taken, sent, headers)


def _read_rows(kind: type[T], document: Mapping[str, Any]) -> tuple[list[T], str | None]:
    """Return the rows of a page, and the cursor of the next one. Raises NoAnswer."""
    rows, cursor = document.get("results"), cursor_of(document)
    if not isinstance(rows, list):
        raise NoAnswer("the answer is not a page")
    return [read_answer(kind, row) for row in rows], cursor


def _text(flag: bool) -> str:
    return "true" if flag else "false"


def _index_of(node: RunNode) -> int:
    """Return the place of an item in its map. Raises NoAnswer."""
    try:
        return int(node.key.removesuffix("]").rpartition("[")[2])
    except ValueError:
        raise NoAnswer(f"the node {node.key[:80]} is no item of a map") from None


def _read_version(document: Mapping[str, Any]) -> WorkflowVersion:
    return read_answer(WorkflowVersion, document)


def _read_run(document: Mapping[str, Any]) -> Run:
    return read_answer(Run, document)


def _definition_of(workflow: Mapping[str, Any] | Workflow) -> dict[str, Any]:
    return workflow.definition() if isinstance(workflow, Workflow) else dict(workflow)


def _workflow_path(name: str) -> str:
    return f"/workflows/{quote(name, safe='')}"


def _run_path(run_id: str) -> str:
    return f"/runs/{quote(run_id, safe='')}"
