"""Runs a handler to its end, and says what the end was."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

from gpu_host.handlers.errors import MAX_TEXT, failure_of
from gpu_host.node.admission import CANCELLED_ANSWER, Admission
from gpu_host.node.runs import Run

log = logging.getLogger(__name__)


def work(run: Run, admission: Admission, *, is_unwanted: Callable[[], bool] = lambda: False) -> None:
    """Waits for the run's turn, does it in this thread, ends it. Never raises.

    is_unwanted: asked at its turn; a caller that hung up while it waited gets nothing run.
    """
    run.turn.wait()
    if run.ended:
        return
    if is_unwanted():
        run.context.cancel()
    outcome, answer = _handle(run)
    admission.end(run, outcome, answer)


def _handle(run: Run) -> tuple[str, bytes]:
    try:
        run.context.check()
        result = run.order.handler.handle(run.order.payload, run.context)
        answer = json.dumps({"status": "success", "result": result}, allow_nan=False).encode()
    except BaseException as error:  # also SystemExit: a slot whose run never ended would be lost
        failure = failure_of(error)
        if failure.code == "cancelled":
            return "cancelled", CANCELLED_ANSWER
        log.info(
            "run_failed job_id=%s attempt=%s error=%s\n%s",
            run.job_id,
            run.order.attempt_id,
            failure.text,
            failure.trace,
        )
        # callers of this protocol know one class of broken GPU; a node can't make room by itself
        code = "gpu_fault" if failure.code == "out_of_memory" else failure.code
        return "failed", failed_answer(failure.text, code, failure.trace)
    return "success", answer


def failed_answer(text: str, code: str, trace: str = "") -> bytes:
    answer = {"status": "failed", "error": text[:MAX_TEXT], "error_code": code}
    return json.dumps({**answer, "traceback": trace} if trace else answer).encode()
