"""What the node answers at which path: runs, status, cancel, health, the run log, faults."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from foundation import json_text
from gpu_host.node.admission import Refused
from gpu_host.node.faults import BadOrder, ServedNode, before_run, delay, reply_of, with_result
from gpu_host.node.handlers import Handler
from gpu_host.node.http_server import CUT, Reply, Request, reply_error, reply_json
from gpu_host.node.runs import Run, RunOrder
from gpu_host.node.work import failed_answer, push, work

MAX_FENCE = 2**53
"""What every reader of JSON numbers holds exactly."""


class Routes:
    def __init__(self, node: ServedNode) -> None:
        self._node = node

    def answer(self, request: Request) -> Reply:
        first, _, rest = request.path.strip("/").partition("/")
        if request.method == "GET":
            return self._get(request, first, unquote(rest))
        if first == "faults" and not rest and self._node.simulates:
            return self._order_fault(request)
        if request.method != "POST":
            return reply_error(405, "method_not_allowed", "Use POST.")
        if first == "cancel" and rest:
            return self._faulty("cancel", lambda: self._cancel(unquote(rest), request.header("x-attempt")))
        return self._run(request, unquote(first))

    def _get(self, request: Request, first: str, rest: str) -> Reply:
        if first == "health" and not rest:
            return self._faulty("health", lambda: reply_json(self._node.health()))
        if first == "status" and rest:
            return self._faulty("status", lambda: self._status(rest))
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
        except (ValueError, BadOrder) as error:
            return reply_error(400, "bad_input", str(error))
        if reply is not None:
            return reply
        if request.gone():  # its sender let go of it before anything ran: it must not run any more
            return CUT
        admission, mode = node.admission, node.config.mode
        if mode == "sync" and "respond-async" in request.header("prefer").lower():
            mode = "auto"
        try:
            run, is_new = admission.admit(order)
        except Refused as refused:
            headers = {"Retry_After": str(node.config.retry_after_seconds)} if refused.status == 503 else {}
            return reply_error(refused.status, refused.code, str(refused), **headers)
        if mode == "sync":
            if is_new:
                work(run, admission, is_unwanted=request.gone)
            run.done.wait()
        elif is_new:
            self._work_apart(run)
            if mode == "auto":
                run.done.wait(node.config.answer_within_seconds)
        if is_new:
            delay(run.order.fault, node)
        if is_new and run.order.fault and run.order.fault["fault"] == "drop_reply":
            return CUT
        if is_new and mode == "async":
            return self._standing(run)
        return self._state_of(run, in_reply_to_run=True)

    def _work_apart(self, run: Run) -> None:
        admission = self._node.admission

        def work_and_push() -> None:
            work(run, admission)
            self._push(run)

        try:
            threading.Thread(target=work_and_push, name=f"run-{run.id[:8]}", daemon=True).start()
        except RuntimeError as error:
            admission.end(run, "failed", failed_answer(f"No thread for it: {error}", "run_failed"))

    def _push(self, run: Run) -> None:
        if self._node.config.push and run.order.callback_url and run.outcome in ("success", "failed"):
            run.heard = push(run, self._node.stopping) or run.heard

    def _state_of(self, run: Run, *, in_reply_to_run: bool = False) -> Reply:
        """An ended run's answer, else how it stands."""
        if not run.ended:
            return self._standing(run)
        if run.outcome == "restarted":
            return CUT

        def on_end(sent: bool) -> None:
            run.heard = run.heard or sent
            if not sent and in_reply_to_run:  # nobody will poll: a result that its caller missed is pushed
                self._push(run)

        return with_result(run.order.fault, run.answer, self._node, on_end)

    def _standing(self, run: Run) -> Reply:
        """``job_id`` is the id to poll and to cancel with."""
        state: dict[str, Any] = {"status": "processing", "job_id": run.id}
        position = self._node.admission.position(run)
        if position:
            state |= {"status": "queued", "position": position}
        if run.context.progress is not None:
            state["progress"] = run.context.progress
        return reply_json(state)

    # -- the rest --------------------------------------------------------------------------------------

    def _status(self, run_id: str) -> Reply:
        run = self._node.admission.find(run_id)
        if run is None:
            return reply_error(404, "unknown_run", "This node does not know the run (any more).")
        return self._state_of(run)

    def _cancel(self, job_id: str, attempt_id: str) -> Reply:
        """202 while the handler has not stopped yet."""
        runs = self._node.admission.cancel(job_id, attempt_id)
        until = time.monotonic() + self._node.config.cancel_wait_seconds
        for run in runs:
            run.done.wait(max(0.0, until - time.monotonic()))
        if any(not run.ended for run in runs):
            return reply_json({"status": "cancelling", "running": True}, 202)
        if not runs:
            return reply_json({"status": "not_running", "running": False}, 404)
        return reply_json({"status": "cancelled", "running": False})

    def _faulty(self, on: str, answer: Callable[[], Reply]) -> Reply:
        fault = self._node.faults.take(on) if self._node.simulates else None
        return answer() if fault is None else reply_of(fault, self._node, answer)

    def _order_fault(self, request: Request) -> Reply:
        if request.method == "DELETE":
            self._node.faults.clear()
            return reply_json({"faults": []})
        try:
            wish = json_text.read(request.body)
            if not isinstance(wish, dict):
                raise BadOrder("a fault is a JSON object")
            self._node.faults.order(wish)
        except ValueError as error:
            return reply_error(400, "bad_input", str(error))
        return reply_json({"faults": self._node.faults.active()}, 201)


def _read_order(request: Request, handler: Handler) -> RunOrder:
    """Raises ValueError."""
    try:
        payload = json_text.read(request.body) if request.body else None
    except json_text.NotReadable as error:
        raise ValueError(f"The body is not JSON: {error}") from error
    fence = request.header("x-fence")
    if fence and not (fence.isascii() and fence.isdigit() and len(fence) <= 16 and int(fence) <= MAX_FENCE):
        raise ValueError(f"X-Fence is a whole number of at most {MAX_FENCE}.")
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
    )
