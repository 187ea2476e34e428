"""Executes a run: calls its handler, builds the answer, and pushes it to the URL that the caller named."""

from __future__ import annotations

import http.client
import json
import logging
import ssl
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

from gpu_host.handlers.errors import MAX_TEXT, failure_of
from gpu_host.node.admission import CANCELLED_ANSWER, Admission
from gpu_host.node.outputs import with_outputs
from gpu_host.node.runs import Run
from gpus.errors import OutputNotStored, OutputRefused


def execute_run(run: Run, admission: Admission, *, caller_gone: Callable[[], bool] = lambda: False) -> None:
    """Wait for the run's slot, run it in this thread, end it. Never raises.

    caller_gone: called once it has a slot; if True, the caller hung up while it waited, and no run starts."""
    run.turn.wait()
    if run.ended:
        return
    if caller_gone():
        run.context.cancel()
    outcome, answer = _handle(run)
    admission.end(run, outcome, answer)


def _handle(run: Run) -> tuple[str, bytes]:
    try:
        run.context.check()
        with run.context.collecting():
            result = run.order.handler.handle(run.order.payload, run.context)
        result = with_outputs(run, result)
        answer = json.dumps({"status": "success", "result": result}, allow_nan=False).encode()
    except (OutputNotStored, OutputRefused) as error:  # no fault of the model
        log.info("run_failed job_id=%s attempt=%s error=%s", run.job_id, run.order.attempt_id, error)
        return "failed", failed_answer(str(error), error.code)
    except BaseException as error:  # also SystemExit: otherwise the slot would be lost
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
        # this protocol has no out_of_memory: a node can't unload models
        code = "gpu_fault" if failure.code == "out_of_memory" else failure.code
        return "failed", failed_answer(failure.text, code, failure.trace)
    return "success", answer


def failed_answer(text: str, code: str, trace: str = "") -> bytes:
    """Return the JSON answer of a failed run."""
    answer = {"status": "failed", "error": text[:MAX_TEXT], "error_code": code}
    return json.dumps({**answer, "traceback": trace} if trace else answer).encode()


log = logging.getLogger(__name__)

_TRIES = 4
_TIMEOUT_SECONDS = 10.0


def push(run: Run, stopping: threading.Event, *, pause_seconds: float) -> bool:
    """POST the run's answer with the caller's token; return True if the caller accepted it.

    Tries again for some seconds, then leaves it to the poll. pause_seconds: before the second try. A refusal
    (4xx) is final."""
    for number in range(_TRIES):
        try:
            status = _post(run.order.callback_url, run.order.callback_token, run.answer_with_lines())
        except (OSError, http.client.HTTPException, ValueError) as error:
            log.info("push_failed job_id=%s error=%s", run.job_id, error)
        else:
            if status < 300:
                return True
            log.info("push_refused job_id=%s status=%s", run.job_id, status)
            if status < 500 and status not in (408, 429):
                return False
        if number + 1 < _TRIES and stopping.wait(pause_seconds * 2**number):
            return False
    return False


def _post(url: str, token: str, body: bytes) -> int:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"not an http(s) URL: {url!r}")
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=_TIMEOUT_SECONDS, context=context
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=_TIMEOUT_SECONDS)
    headers = {"Content-Type": "application/json"}
    if token:
        headers |= {"Authorization": f"Bearer {token}", "X-Callback-Token": token}
    try:
        connection.request("POST", parts.path + (f"?{parts.query}" if parts.query else ""), body, headers)
        return connection.getresponse().status
    finally:
        connection.close()
