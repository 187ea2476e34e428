"""The node's HTTP routes: runs, status, cancel, health, the run log, faults."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from foundation import json_text
from foundation.http_api.prefer import preferences
from gpu_host.node.admission import Refused
from gpu_host.node.faults import BadFault, ServedNode, before_run, delay, reply_of, result_reply
from gpu_host.node.handlers import Handler
from gpu_host.node.http_server import CUT, Reply, Request, reply_error, reply_json
from gpu_host.node.runs import Run, RunOrder
from gpu_host.node.work import execute_run, failed_answer, push

MAX_FENCE = 2**53
"""Every reader of JSON numbers can represent integers up to this exactly."""


class Routes:
    """Answers requests to a node."""

    def __init__(self, node: ServedNode) -> None:
        self._node = node

    def answer(self, request: Request) -> Reply:
        """Return the reply to a request."""
        first, _, rest = request.path.strip("/").partition("/")
        if request.method == "GET":
            return self._get(request, first, unquote(rest))
        if first == "faults" and not rest and self._node.simulates:
            return self._add_fault(request)
        if request.method != "POST":
            return reply_error(405, "method_not_allowed", "Use POST.")
        if first == "cancel" and rest:
            return self._with_fault(
                "cancel", lambda: self._cancel(unquote(rest), request.header("x-attempt"))
            )
        return self._run(request, unquote(first))

    def _get(self, request: Request, first: str, rest: str) -> Reply:
        if first == "health" and not rest:
            return self._with_fault("health", lambda: reply_json(self._node.health()))
        if first == "status" and rest:
            after = _position(request.header("x-logs-after"))
            return self._with_fault("status", lambda: self._status(rest, after))
        if first == "runs" and not rest:
            lines = "".join(self._node.log.lines()).encode()
            return Reply(200, lines, content_type="application/x-ndjson")
        if first == "faults" and not rest and self._node.simulates:
            return reply_json({"faults": self._node.faults.active()})
        return reply_error(404, "not_found", "No such path.")

    # -- a run -----------------------------------------------------------------------------------------

    def _run(self, request: Request, first: str) -> Reply:
        node = self._node
        handler = node.handler_for(first)
        if handler is None:
            return reply_error(404, "unknown_model", f"This node serves {', '.join(node.models)}.")
        try:
            order = _read_order(request, handler)
            order, reply = before_run(order, node)
        except (ValueError, BadFault) as error:
            return reply_error(400, "bad_input", str(error))
        if reply is not None:
            return reply
        if request.gone():  # the caller hung up before the run began: it must not run
            return CUT
        admission, mode = node.admission, node.config.mode
        if mode == "sync" and "respond-async" in preferences(request.header("prefer")):
            mode = "auto"
        try:
            run, is_new = admission.admit(order)
        except Refused as refused:
            headers = {"Retry_After": str(node.config.retry_after_seconds)} if refused.status == 503 else {}
            return reply_error(refused.status, refused.code, str(refused), **headers)
        if mode == "sync":
            if is_new:
                execute_run(run, admission, caller_gone=request.gone)
            run.done.wait()
        elif is_new:
            self._run_in_thread(run)
            if mode == "auto":
                run.done.wait(node.config.answer_within_seconds)
        if is_new:
            delay(run.order.fault, node)
        if is_new and run.order.fault and run.order.fault["fault"] == "drop_reply":
            return CUT
        if is_new and mode == "async":
            return self._progress_reply(run)
        return self._reply_for(run, in_reply_to_run=True)

    def _run_in_thread(self, run: Run) -> None:
        admission = self._node.admission

        def execute_and_push() -> None:
            execute_run(run, admission)
            self._push(run)

        try:
            threading.Thread(target=execute_and_push, name=f"run-{run.id[:8]}", daemon=True).start()
        except RuntimeError as error:
            admission.end(run, "failed", failed_answer(f"No thread for this run: {error}", "run_failed"))

    def _push(self, run: Run) -> None:
        if self._node.config.push and run.order.callback_url and run.outcome in ("success", "failed"):
            run.delivered = (
                push(run, self._node.stopping, pause_seconds=self._node.config.push_pause_seconds)
                or run.delivered
            )

    def _reply_for(self, run: Run, *, in_reply_to_run: bool = False, after: int = 0) -> Reply:
        """Return the answer of a run that ended, else its progress. after: how many lines of its log the
        caller has."""
        if not run.ended:
            return self._progress_reply(run, after)
        if run.outcome == "restarted":
            return CUT

        def on_end(sent: bool) -> None:
            run.delivered = run.delivered or sent
            if not sent and in_reply_to_run:  # the caller won't poll, so push the result that it missed
                self._push(run)

        return result_reply(run.order.fault, run.answer_with_lines(after), self._node, on_end)

    def _progress_reply(self, run: Run, after: int = 0) -> Reply:
        """``job_id`` is the id to poll and to cancel with."""
        state: dict[str, Any] = {"status": "processing", "job_id": run.id}
        position = self._node.admission.position(run)
        if position:
            state |= {"status": "queued", "position": position}
        if run.context.progress is not None:
            state["progress"] = run.context.progress.as_json()
        if run.order.from_dispatcher:
            state |= run.lines.after(after)
        return reply_json(state)

    # -- the rest --------------------------------------------------------------------------------------

    def _status(self, run_id: str, after: int) -> Reply:
        run = self._node.admission.find(run_id)
        if run is None:
            return reply_error(404, "unknown_run", "This node does not know the run (any more).")
        return self._reply_for(run, after=after)

    def _cancel(self, job_id: str, attempt_id: str) -> Reply:
        """Cancel runs; 202 while a handler has not stopped yet."""
        runs = self._node.admission.cancel(job_id, attempt_id)
        until = time.monotonic() + self._node.config.cancel_wait_seconds
        for run in runs:
            run.done.wait(max(0.0, until - time.monotonic()))
        if any(not run.ended for run in runs):
            return reply_json({"status": "cancelling", "running": True}, 202)
        if not runs:
            return reply_json({"status": "not_running", "running": False}, 404)
        return reply_json({"status": "cancelled", "running": False})

    def _with_fault(self, on: str, answer: Callable[[], Reply]) -> Reply:
        fault = self._node.faults.take(on) if self._node.simulates else None
        return answer() if fault is None else reply_of(fault, self._node, answer)

    def _add_fault(self, request: Request) -> Reply:
        if request.method == "DELETE":
            self._node.faults.clear()
            return reply_json({"faults": []})
        try:
            fault = json_text.read(request.body)
            if not isinstance(fault, dict):
                raise BadFault("a fault is a JSON object")
            self._node.faults.add(fault)
        except ValueError as error:
            return reply_error(400, "bad_input", str(error))
        return reply_json({"faults": self._node.faults.active()}, 201)


def _position(header: str) -> int:
    """Return the position in a log that a header names; 0 without one."""
    return int(header) if header.isascii() and header.isdigit() and len(header) <= 16 else 0


def _read_order(request: Request, handler: Handler) -> RunOrder:
    """Return the order in a request. Raises ValueError."""
    try:
        payload = json_text.read(request.body) if request.body else None
    except json_text.NotReadable as error:
        raise ValueError(f"The body is not JSON: {error}") from error
    fence = request.header("x-fence")
    if fence and not (fence.isascii() and fence.isdigit() and len(fence) <= 16 and int(fence) <= MAX_FENCE):
        raise ValueError(f"X-Fence must be a whole number of at most {MAX_FENCE}.")
    return RunOrder(
        handler=handler,
        payload=payload,
        job_id=request.header("x-job-id"),
        attempt_id=request.header("idempotency-key") or request.header("x-attempt"),
        from_dispatcher=request.header("x-source").lower() == "dispatcher",
        slot=request.header("x-slot"),
        fence=int(fence) if fence else None,
        callback_url=request.header("x-callback-url"),
        callback_token=request.header("x-callback-token"),
        artifact_url=request.header("x-artifact-url"),
    )
