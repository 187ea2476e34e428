"""Runs a handler to its end, and says what the end was."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable

from gpus.node.desk import CANCELLED_ANSWER, Desk
from gpus.node.handlers import BadInput, Cancelled
from gpus.node.runs import Run

log = logging.getLogger(__name__)

_GPU_FAULT = re.compile(r"CUDA error|CUDA out of memory|out of memory|\bXid\b|cuBLAS|cuDNN", re.IGNORECASE)
_MAX_TEXT = 500


def work(run: Run, desk: Desk, *, is_unwanted: Callable[[], bool] = lambda: False) -> None:
    """Waits for the run's turn, does it in this thread, ends it. Never raises.

    is_unwanted: asked at its turn; a caller that hung up while it waited gets nothing run.
    """
    run.turn.wait()
    if run.ended:
        return
    if is_unwanted():
        run.context.cancel()
    outcome, answer = _handle(run)
    desk.end(run, outcome, answer)


def _handle(run: Run) -> tuple[str, bytes]:
    try:
        run.context.check()
        result = run.order.handler.handle(run.order.payload, run.context)
        answer = json.dumps({"status": "success", "result": result}, allow_nan=False).encode()
    except Cancelled:
        return "cancelled", CANCELLED_ANSWER
    except BadInput as error:
        return "failed", failed_answer(str(error), "bad_input")
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        log.info("run_failed job_id=%s attempt=%s error=%s", run.job_id, run.order.attempt_id, text)
        return "failed", failed_answer(text, "gpu_fault" if _GPU_FAULT.search(text) else "run_failed")
    return "success", answer


def failed_answer(text: str, code: str) -> bytes:
    return json.dumps({"status": "failed", "error": text[:_MAX_TEXT], "error_code": code}).encode()
