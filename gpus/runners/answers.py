"""What a GPU server's answer means. Pure: a response in; an outcome, or the error with its price, out.

Answers are JSON objects: ``{"status": "success", "result": …}``, ``{"status": "processing", "<id>": …}``,
``{"status": "failed", "error": …}``. Without ``result`` the object's other fields are the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from gpus.protocol import ModelSpec
from gpus.runners.base import Accepted, CancelUnsupported, Finished, PollFailed, Response, StillRunning
from gpus.runners.health_probe import Health
from gpus.runners.json_body import Unreadable, read_json
from gpus.runners.refusals import error_of, failure_of, message_of

MAX_REMOTE_ID = 500
ID_FIELDS = ("job_id", "id", "task_id", "request_id")
"""Where the remote id is looked for if the model does not name a field."""
DONE = frozenset({"success", "succeeded", "completed", "complete", "done", "finished"})
FAILED = frozenset({"failed", "failure", "error", "cancelled", "canceled"})
RUNNING = frozenset({"processing", "pending", "queued", "running", "accepted", "starting", "started"}) | {
    "in_progress",
    "in_queue",
}
_STOPPED = DONE | FAILED | {"not_running", "stopped"}
_GONE = frozenset({404, 410})
_HEALTH_FIELDS = frozenset({"boot_id", "active_jobs", "max_concurrent", "direct_queue", "jobs"})
"""Without one of these an answer says nothing of the server's runs."""
_TEMPORARY = frozenset({408, 409, 425, 429})


def read_start(
    response: Response, model: ModelSpec, *, now: datetime, bare_is_id: bool
) -> Finished | Accepted:
    """The answer to the POST. bare_is_id: one without a status is the run's id, not its result.
    Raises the GpuError of the status, or of the failure that it tells."""
    if not _is_success(response):
        raise error_of(response, now=now)
    body = read_json(response.body)
    if not isinstance(body, dict):
        raise Unreadable("The answer is not a JSON object.")
    if "status" not in body:
        if bare_is_id:
            return Accepted(_remote_id(body, model.id_field))
        return Finished(body.get("result", body))
    outcome = _outcome(body)
    return outcome if isinstance(outcome, Finished) else Accepted(_remote_id(body, model.id_field))


def read_poll(response: Response) -> Finished | StillRunning:
    """Raises PollFailed where the answer tells nothing of the run, a GpuError where the run failed."""
    if not _is_success(response):
        raise PollFailed(f"{response.status}: {message_of(response)}", gone=response.status in _GONE)
    return read_news(read_json(response.body))


def read_news(body: Any) -> Finished | StillRunning:
    """What is said of a run that goes on elsewhere, polled or pushed."""
    if not isinstance(body, Mapping):
        raise Unreadable("The answer is not a JSON object.")
    if "status" in body:
        return _outcome(body)
    if "result" in body:
        return Finished(body["result"])
    if "error" in body:
        raise failure_of(body)
    raise Unreadable("The answer has neither a status nor a result.")


def read_cancel(response: Response, *, known: bool, guessed: bool = False) -> bool:
    """Whether the server says that the run does not run. known: it gave the run an id before; if not, a
    bare 404 may only mean that the request is still on its way. guessed: nobody said that this is the path to
    cancel at, so nothing but the protocol's own ``running`` is believed. Raises CancelUnsupported where the
    answer shows that a guess was wrong: a 404, a result."""
    is_gone = response.status in _GONE
    if is_gone and known and not guessed:
        return True
    body = _object(response) if _is_success(response) or is_gone else {}
    if isinstance(body.get("running"), bool):
        return not body["running"]
    if guessed:
        if _is_final(response):
            raise CancelUnsupported(
                f"The answer at the protocol's cancel path is no cancel's ({response.status})."
            )
        return False
    return str(body.get("status", "")).lower() in _STOPPED


def _object(response: Response) -> dict[str, Any]:
    """The body, empty where it is no JSON object."""
    try:
        body = read_json(response.body)
    except Unreadable:
        return {}
    return body if isinstance(body, dict) else {}


def _is_final(response: Response) -> bool:
    """Whether the same request will be answered the same way later."""
    return response.status == 501 or (response.status < 500 and response.status not in _TEMPORARY)


def _outcome(body: Mapping[str, Any]) -> Finished | StillRunning:
    status = str(body["status"]).lower()
    if status in DONE:
        rest = {name: value for name, value in body.items() if name != "status"}
        return Finished(rest.get("result", rest))
    if status in FAILED:
        raise failure_of(body)
    if status in RUNNING:
        return StillRunning(_progress(body.get("progress")))
    raise Unreadable(f"The answer's status is {status[:50]!r}.")


def _progress(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return min(1.0, max(0.0, float(value)))


def _remote_id(body: Mapping[str, Any], field: str | None) -> str:
    for name in (field,) if field else ID_FIELDS:
        value = body.get(name)
        is_id = isinstance(value, (str, int)) and not isinstance(value, bool)
        if is_id and 0 < len(str(value)) <= MAX_REMOTE_ID:
            return str(value)
    raise Unreadable(f"The answer has no id to poll with: looked for {field or ', '.join(ID_FIELDS)}.")


def _is_success(response: Response) -> bool:
    return 200 <= response.status < 300


def read_health(body: bytes) -> Health:
    """The protocol's fields out of the body of a 200; any other body (``OK``, ``{"status": "ok"}``) is from a
    server that tells nothing."""
    try:
        said = read_json(body)
    except Unreadable:
        said = None
    if not isinstance(said, dict) or _HEALTH_FIELDS.isdisjoint(said):
        return Health(True, tells=False)
    boot_id = said.get("boot_id")
    return Health(
        True,
        boot_id=str(boot_id)[:100] if isinstance(boot_id, (str, int)) else "",
        active_jobs=_count(said.get("active_jobs")),
        max_concurrent=_count(said.get("max_concurrent")),
        jobs=_jobs(said.get("jobs")),
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _jobs(value: Any) -> frozenset[tuple[str, str]] | None:
    """None unless every entry names its attempt: half a list proves nothing."""
    if not isinstance(value, list):
        return None
    jobs = set()
    for entry in value:
        if not isinstance(entry, dict) or not isinstance(entry.get("attempt"), str):
            return None
        jobs.add((str(entry.get("job_id", "")), entry["attempt"]))
    return frozenset(jobs)


MOST_NAMES = 64
MAX_NAME = 64


def numbers_of(said: Any) -> dict[str, Any] | None:
    """Its finite numbers, also those one level down (``prompt_tokens_details``); None: there are none. Texts
    are left out: tenants read this, and operators sum it."""
    found = _numbers(said, deeper=True)
    return found or None


def _numbers(said: Any, *, deeper: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in islice(said.items(), MOST_NAMES) if isinstance(said, Mapping) else ():
        if not isinstance(name, str) or len(name) > MAX_NAME:
            continue
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            found[name] = value
        elif deeper and (below := _numbers(value, deeper=False)):
            found[name] = below
    return found
