"""Runner for a stock Cog container: an asynchronous ``PUT /predictions/{id}``, with the result by webhook.

Cog has no request to read a prediction: a second PUT joins a running one, and *repeats* a finished one. Only
``/health-check`` can be polled; it shows whether a slot is free, but not how many slots there are. So the
webhook delivers the result, and polls detect, if possible, that no webhook will come.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from gpus.errors import BadInput, ConnectFailed, RunFailed, RunTimedOut, ServerLost
from gpus.protocol import Endpoint, ModelSpec
from gpus.runners.base import (
    Abort,
    Accepted,
    Finished,
    Get,
    Health,
    PollFailed,
    Response,
    RunRequest,
    StillRunning,
    excerpt,
)
from gpus.runners.http_runner import (
    CANCEL_SECONDS,
    DONE,
    POLL_SECONDS,
    RUNNING,
    HttpRunner,
    OnBody,
    identity_headers,
    long_texts_of,
    with_long_texts,
)
from gpus.runners.log_tail import LOG_BYTES
from gpus.runners.openapi_document import OpenApiDocument
from gpus.runners.recognition import OWN_PROTOCOL, Proposal, Site, model_name, server_name
from gpus.runners.refusals import describe_status, error_of, failure_of
from gpus.runners.transport import Unreadable, read_json, read_one_at_a_time, read_parts
from gpus.runners.usage import numeric_fields

SILENCE_SECONDS = 15.0
"""Cog sends the webhook at the end of a run, and retries it a few times: after this long on an idle server it
will not come."""
_HEALTH_BYTES = 256 * 1024
_MAX_LOG_CHARS = 20_000
_NOT_SERVING = frozenset({"STARTING", "SETUP_FAILED", "DEFUNCT", "UNKNOWN"})
_SERVES = frozenset({"READY", "BUSY"})
_CANCEL_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8)


class CogRunner(HttpRunner):
    """Runs one attempt as a Cog prediction; the prediction id is the attempt id."""

    name = "cog"
    summary = "A stock Cog container; the endpoint is its address."
    options: Sequence[str] = ()
    is_polled = True
    stopped_by = "the server no longer knows the prediction"
    takes_uploads = True
    _idle_polls = 0
    _was_full = False
    """Whether a poll of this run found the container without a free slot."""

    def start(self, run: RunRequest, *, abort: Abort) -> Finished | Accepted:
        response = self._request(
            "PUT",
            prediction_url(run),
            run,
            headers={**identity_headers(run), "Content-Type": "application/json", "Prefer": "respond-async"},
            body=_body(run),
            deadline_seconds=min(run.model.run_limit_seconds, run.limit_seconds),
            max_bytes=run.model.max_response_bytes,
            log_bytes=LOG_BYTES,
            abort=abort,
            long_texts=long_texts_of(run, LOG_BYTES),
        )
        outcome = read_one_at_a_time(
            response.body, lambda: _read_start(response, partial(self._take_body, run, response))
        )
        outcome = with_long_texts(outcome, response)
        return outcome if isinstance(outcome, Finished) else Accepted(run.attempt_id)

    def poll(self, run: RunRequest, remote_id: str, *, abort: Abort) -> Finished | StillRunning:
        """Poll `/health-check`. BUSY means that no slot is free.

        A container of one slot that was BUSY during this run and is READY now has finished it. Otherwise
        READY is no proof, because the container may have more slots than registered.
        """
        try:
            response = self._request(
                "GET",
                self.health_url(run.model, run.endpoint),
                run,
                headers=identity_headers(run),
                body=None,
                deadline_seconds=POLL_SECONDS,
                max_bytes=_HEALTH_BYTES,
                abort=abort,
            )
            state = read_state(response)
        except (ConnectFailed, ServerLost, RunTimedOut, RunFailed) as error:
            raise PollFailed(f"{error.code}: {error.message}") from error
        if state in _NOT_SERVING:
            raise PollFailed(f"Cog is {state}: it lost its runs.", gone=True)
        self._was_full |= state == "BUSY"
        if state == "READY" and self._was_full and run.endpoint.max_slots == 1:
            self._idle_polls += 1
            if self._idle_polls > math.ceil(SILENCE_SECONDS / run.model.poll_interval):
                raise PollFailed(
                    "Cog is idle and has sent no webhook. Can it reach DISPATCHER_PUBLIC_URL?",
                    gone=True,
                )
        else:
            self._idle_polls = 0
        return StillRunning()

    def cancel(self, run: RunRequest, remote_id: str | None) -> bool:
        """Cancel, and wait briefly for the end: Cog confirms a cancel before it stops the run.

        The run has ended when Cog answers 404 for the prediction.
        """
        known = remote_id is not None
        for pause in (*_CANCEL_PAUSES, None):
            response = self._request(
                "POST",
                prediction_url(run) + "/cancel",
                run,
                headers={**identity_headers(run), "Content-Type": "application/json"},
                body=b"{}",
                deadline_seconds=CANCEL_SECONDS,
                max_bytes=_HEALTH_BYTES,
                abort=None,
            )
            if response.status == 404:
                return known  # if unknown before, the PUT may still be under way
            if not 200 <= response.status < 300 or pause is None:
                break
            known = True
            time.sleep(pause)
        return False

    def read_pushed(self, run: RunRequest, body: Mapping[str, object]) -> Finished | StillRunning:
        self.report_logs(run, body)
        return read_prediction(body)

    @classmethod
    def health_url(cls, model: ModelSpec, endpoint: Endpoint) -> str:
        return f"{_root(endpoint.url)}/health-check"

    @classmethod
    def health(cls, model: ModelSpec, endpoint: Endpoint, get: Get) -> Health:
        """Probe `/health-check`. BUSY: all slots are used. READY: the number of running jobs is unknown."""
        answer = get(cls.health_url(model, endpoint))
        try:
            parsed = read_json(answer.body) if answer.status == 200 else None
        except Unreadable:
            parsed = None
        if not isinstance(parsed, dict) or not isinstance(parsed.get("status"), str):
            return Health(
                False, error=f"/health-check answered {describe_status(answer.status)}: {excerpt(answer)}"
            )
        state = parsed["status"].upper()
        if state not in _SERVES:
            why = parsed.get("user_healthcheck_error") or "no reason given"
            return Health(False, error=f"Cog is {state}: {why}")
        running = endpoint.max_slots if state == "BUSY" else None
        return Health(True, boot_id=_setup_of(parsed), active_jobs=running, max_concurrent=endpoint.max_slots)

    @classmethod
    def recognise(cls, site: Site) -> list[Proposal]:
        """``/health-check`` has the container's state; its OpenAPI document has the input's schema."""
        root = _root(site.url)
        said = site.json(f"{root}/health-check")
        state = said.get("status") if isinstance(said, dict) else None
        if not isinstance(state, str) or state.upper() not in _SERVES | _NOT_SERVING:
            return []
        document = OpenApiDocument(site.json(f"{root}/openapi.json"))
        schema = document.schema_at("Input")
        return [
            Proposal(
                model_type=cls.name,
                model=model_name(site.path)
                if site.path.removesuffix("/predictions")
                else server_name(site.url),
                endpoint=root,
                certainty=OWN_PROTOCOL,
                reasons=(
                    f"/health-check says {state.upper()}: a Cog container.",
                    "One slot, unless `concurrency.max` in its cog.yaml is above 1.",
                ),
                options={} if schema is None else {"payload_schema": schema},
                test_payload=None if schema is None else document.example_of(schema),
            )
        ]


def _read_start(response: Response, on_body: OnBody) -> Finished | StillRunning:
    if not 200 <= response.status < 300:
        raise error_of(response, now=datetime.now(UTC))
    try:
        body = read_parts(response, lambda body: ("output",))
        on_body(body)
        return read_prediction(body)
    except Unreadable as error:
        error.suspect = True
        raise


def read_prediction(parsed: Any) -> Finished | StillRunning:
    """Parse a prediction object of Cog. Raises Unreadable, or the prediction's failure."""
    if not isinstance(parsed, Mapping) or not isinstance(parsed.get("status"), str):
        raise Unreadable("The answer is not a prediction: it has no status.")
    status = parsed["status"].lower()
    if status in RUNNING:
        return StillRunning()
    if status in DONE:
        result = {"output": parsed.get("output")}
        if isinstance(parsed.get("logs"), str) and parsed["logs"]:
            result["logs"] = parsed["logs"][-_MAX_LOG_CHARS:]
        return Finished(result, numeric_fields(parsed.get("metrics")))
    if status in ("failed", "canceled"):
        raise failure_of({"status": status, "error": parsed.get("error")})
    raise Unreadable(f"The prediction's status is {status[:50]!r}.")


def read_state(response: Response) -> str:
    """The state of a `/health-check` response, upper case. Raises RunFailed if it is not one."""
    if response.status != 200:
        raise RunFailed(f"/health-check answered {response.status}.")
    parsed = read_json(response.body)
    if not isinstance(parsed, dict) or not isinstance(parsed.get("status"), str):
        raise Unreadable("/health-check has no status.")
    return str(parsed["status"]).upper()


def _setup_of(parsed: dict[str, object]) -> str:
    """The time of the container's set-up, which happens once, as its boot id; "" if missing."""
    setup = parsed.get("setup")
    began = setup.get("started_at") if isinstance(setup, dict) else None
    try:
        return datetime.fromisoformat(str(began)).isoformat()
    except ValueError:
        return ""


def prediction_url(run: RunRequest) -> str:
    """The URL of the attempt's prediction."""
    return f"{_root(run.endpoint.url)}/predictions/{quote(run.attempt_id, safe='')}"


def _root(endpoint: str) -> str:
    """The container's base URL, from an endpoint with or without ``/predictions``."""
    parts = urlsplit(endpoint)
    path = parts.path.rstrip("/").removesuffix("/predictions")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def _body(run: RunRequest) -> bytes:
    """The request body. The payload is the input, or Cog's whole request ``{"input": …}``."""
    if not isinstance(run.payload, dict):
        raise BadInput("The payload of a Cog model must be a JSON object: its input.")
    wrapped = set(run.payload) == {"input"} and isinstance(run.payload["input"], dict)
    body: dict[str, Any] = {"input": run.payload["input"] if wrapped else run.payload}
    if run.push_url:
        body["webhook"] = f"{run.push_url}?token={quote(run.push_token, safe='')}"
        body["webhook_events_filter"] = ["logs", "completed"]
    return json.dumps(body, separators=(",", ":")).encode()
