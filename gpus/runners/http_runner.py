"""The dispatcher's own HTTP protocol: the base of all runners over HTTP, its sync and async pattern, and what
the answers of a GPU server mean.

Answers are JSON objects: ``{"status": "success", "result": …}``, ``{"status": "processing", "<id>": …}``,
``{"status": "failed", "error": …}``. Without ``result`` the object's other fields are the result. Reading one
is pure: a response in; an outcome, or the error with its price, out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from gpus.errors import ConnectFailed, RunFailed, RunTimedOut, ServerLost
from gpus.protocol import MAX_SLOTS, NODE, Endpoint, ModelSpec
from gpus.runners.base import (
    MISSING_PAGE,
    Abort,
    Accepted,
    CancelUnsupported,
    Finished,
    Get,
    Health,
    OptionRefused,
    PollFailed,
    Response,
    RunRequest,
    StillRunning,
    Transport,
    at_root,
)
from gpus.runners.refusals import describe_status, error_of, failure_of, message_of
from gpus.runners.transport import HttpTransport, ResponseTooLarge, Unreadable, read_json, read_one_at_a_time

CONNECT_TIMEOUT_SECONDS = 5.0
POLL_SECONDS = 10.0
CANCEL_SECONDS = 5.0
DEFAULT_CANCEL = "/cancel/{job_id}"
_CANCEL_BYTES = 64 * 1024

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

MAX_NAMES = 64
MAX_NAME = 64


class HttpRunner:
    """The dispatcher's own protocol (docs/reference/gpu_protocol.md), and a base for others over HTTP;
    `start` lasts the run limit at most."""

    name = ""
    summary = ""
    options: Sequence[str] = (
        "poll_endpoint_template",
        "id_field",
        "cancel_endpoint_template",
        "health_path",
    )
    is_polled = False
    is_pushed = True
    is_pinned = False
    calls_on_sent = False
    answer_ends_run = False

    def __init__(
        self,
        model: ModelSpec,
        transport: Transport | None = None,
        *,
        connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
    ) -> None:
        self.model = model
        self._transport = transport or HttpTransport()
        self._connect_timeout = connect_timeout_seconds

    def start(self, run: RunRequest, *, abort: Abort) -> Finished | Accepted:
        response = self._request(
            "POST",
            run.endpoint.url,
            run,
            headers=_run_headers(run, polled=self.is_polled),
            body=json.dumps(run.payload, separators=(",", ":")).encode(),
            deadline_seconds=self._read_seconds(run),
            max_bytes=run.model.max_response_bytes,
            abort=abort,
            on_sent=run.on_sent,
        )
        return read_one_at_a_time(
            response.body,
            lambda: read_start(response, run.model, now=datetime.now(UTC), bare_is_id=self.is_polled),
        )

    def _read_seconds(self, run: RunRequest) -> float:
        """Seconds for the whole answer. Where it proves the run over, it is read on past the job's own limit,
        and the run is asked to stop beside it."""
        limit = run.model.run_limit_seconds
        return limit if self.answer_ends_run else min(limit, run.limit_seconds)

    def poll(self, run: RunRequest, remote_id: str, *, abort: Abort) -> Finished | StillRunning:
        template = run.model.poll_endpoint_template
        if not template:
            raise RunFailed("The model has no poll_endpoint_template to ask for its run.")
        try:
            response = self._request(
                "GET",
                _fill(template, run, remote_id),
                run,
                headers=identity_headers(run),
                body=None,
                deadline_seconds=POLL_SECONDS,
                max_bytes=run.model.max_response_bytes,
                abort=abort,
            )
        except (ConnectFailed, ServerLost, RunTimedOut) as error:
            raise PollFailed(f"{error.code}: {error.message}") from error
        try:
            return read_one_at_a_time(response.body, lambda: read_poll(response))
        except Unreadable as error:
            error.suspect = True
            raise

    def cancel(self, run: RunRequest, remote_id: str | None) -> bool:
        """Without a template of the model, the protocol's own path is tried; not on a server that is known to
        have no health endpoint: one that ignores paths would take the cancel for a run."""
        template = run.model.cancel_endpoint_template
        if not template and run.endpoint.tells_health is False:
            raise CancelUnsupported(
                "The model names no cancel endpoint, and its server tells nothing of its runs."
            )
        response = self._request(
            "POST",
            _fill(template or DEFAULT_CANCEL, run, remote_id or run.job_id),
            run,
            headers={**identity_headers(run), "Content-Type": "application/json"},
            body=b"{}",
            deadline_seconds=CANCEL_SECONDS,
            max_bytes=_CANCEL_BYTES,
            abort=None,
        )
        return read_cancel(response, known=remote_id is not None, guessed=not template)

    def read_pushed(self, run: RunRequest, body: Mapping[str, object]) -> Finished | StillRunning:
        return read_progress(body)

    @classmethod
    def check_options(cls, model: ModelSpec) -> None:
        """A protocol that reads no `health_path` has a place of its own for it."""
        if model.health_path is not None and "health_path" not in cls.options:
            raise OptionRefused(
                "health_path",
                "invalid_health_path",
                f"health_path is for sync and async models; {cls.name} has its own.",
            )

    @classmethod
    def health_url(cls, model: ModelSpec, endpoint: Endpoint) -> str:
        if model.health_path:
            return urljoin(endpoint.url, model.health_path)
        return at_root(endpoint.url, "/health")

    @classmethod
    def health(cls, model: ModelSpec, endpoint: Endpoint, get: Get) -> Health:
        """A server may lack the page, unless its model names one."""
        url = cls.health_url(model, endpoint)
        answer = get(url)
        if answer.status in MISSING_PAGE and not model.health_path:
            return Health(True, has_endpoint=False)
        if answer.status != 200:
            return Health(False, error=f"GET {url} answered {describe_status(answer.status)}")
        return read_health(answer.body)

    def _request(
        self,
        method: str,
        url: str,
        run: RunRequest,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        deadline_seconds: float,
        max_bytes: int,
        abort: Abort | None,
        on_sent: Callable[[], None] | None = None,
    ) -> Response:
        return self._transport.request(
            method,
            url,
            headers=merge_headers(run.endpoint.headers, headers),
            body=body,
            connect_timeout_seconds=self._connect_timeout,
            deadline_seconds=deadline_seconds,
            max_bytes=max_bytes,
            ca_pem=run.endpoint.ca_pem,
            abort=abort,
            on_sent=on_sent,
        )


def identity_headers(run: RunRequest) -> dict[str, str]:
    return {
        "Accept": "application/json",
        "X-Source": "dispatcher",
        "X-Job-Id": run.job_id,
        "X-Attempt": run.attempt_id,
    }


def _run_headers(run: RunRequest, *, polled: bool) -> dict[str, str]:
    headers = {
        **identity_headers(run),
        "Content-Type": "application/json",
        "Idempotency-Key": run.attempt_id,
        "X-Slot": run.slot,
        "X-Fence": str(run.fence),
    }
    if polled:
        headers["Prefer"] = "respond-async"
    if run.push_url:
        headers["X-Callback-Url"] = run.push_url
    if run.push_token:
        headers["X-Callback-Token"] = run.push_token
    return headers


def merge_headers(secret: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """The server's own headers, and ours over them."""
    taken = {name.lower() for name in ours}
    kept = {name: value for name, value in secret.items() if name.lower() not in taken}
    return {**kept, **ours}


def _fill(template: str, run: RunRequest, remote_id: str) -> str:
    """The URL of a template at the endpoint's own origin: the server's secret headers go nowhere else."""
    path = template.replace("{id}", quote(remote_id, safe="")).replace("{job_id}", quote(run.job_id, safe=""))
    url = urljoin(run.endpoint.url, path)
    there, home = urlsplit(url), urlsplit(run.endpoint.url)
    if (there.scheme, there.netloc.lower()) != (home.scheme, home.netloc.lower()):
        raise RunFailed(f"The template {template!r} leads away from the server's own address.")
    return url


class SyncHttpRunner(HttpRunner):
    """The answer to the POST is the result. (A server may still answer `processing`, if the model says where
    to poll.)"""

    name = "sync"
    summary = "The answer to the POST is the result."
    calls_on_sent = True
    answer_ends_run = True

    def start(self, run: RunRequest, *, abort: Abort) -> Finished | Accepted:
        outcome = super().start(run, abort=abort)
        if isinstance(outcome, Accepted) and not run.model.poll_endpoint_template:
            error = Unreadable("The server works on it, and the model has no poll_endpoint_template.")
            error.suspect = True
            raise error
        return outcome

    @classmethod
    def recognise(cls, site: Site) -> list[Proposal]:
        """The POST operations of an OpenAPI document (FastAPI has one at ``/openapi.json``); without one, the
        URL itself, if anything answers there."""
        if is_node(site.json(f"{site.root}/health")):
            return []
        document = site.json(f"{site.root}/openapi.json")
        found = [
            one for one in OpenApiDocument(document).operations() if not site.path or one.path == site.path
        ]
        if found:
            return [_operation(cls.name, site, one) for one in found]
        if not site.answers:
            return []
        health = site.page(f"{site.root}/health")
        return [
            Proposal(
                model_type=cls.name,
                model=model_name(site.path) if site.path else server_name(site.url),
                endpoint=site.url,
                certainty=GENERIC,
                reasons=(
                    "It answers HTTP, and describes itself nowhere: each job is POSTed to this URL as JSON.",
                    "It has a /health page."
                    if health is not None and health.status == 200
                    else "It has no /health page: after a lost connection its slot waits for the run limit.",
                ),
            )
        ]


def _operation(model_type: str, site: Site, operation: Operation) -> Proposal:
    return Proposal(
        model_type=model_type,
        model=model_name(operation.path),
        endpoint=f"{site.root}{operation.path}",
        certainty=COMPATIBLE,
        reasons=(f"/openapi.json describes POST {operation.path}.",),
        options={} if operation.schema is None else {"payload_schema": operation.schema},
        test_payload=operation.example,
    )


def is_node(health: Any) -> bool:
    """Whether it is the health of the reference node, which names the models that it serves."""
    return (
        isinstance(health, dict) and health.get("server") == NODE and isinstance(health.get("models"), list)
    )


class AsyncHttpRunner(HttpRunner):
    """The POST is answered with an id, the result is polled or pushed. (A server may still answer with the
    result at once.)"""

    name = "async"
    summary = "The answer to the POST names a run to poll; a server may push the result."
    is_polled = True
    calls_on_sent = True
    answer_ends_run = True

    def start(self, run: RunRequest, *, abort: Abort) -> Finished | Accepted:
        try:
            return super().start(run, abort=abort)
        except (Unreadable, ResponseTooLarge) as error:
            error.suspect = True  # it may have been accepted all the same, under an id that we don't know
            raise

    @classmethod
    def check_options(cls, model: ModelSpec) -> None:
        if model.poll_endpoint_template is None:
            raise OptionRefused(
                "poll_endpoint_template",
                "poll_template_required",
                "An async model needs a poll_endpoint_template, as in /status/{id}.",
            )
        super().check_options(model)

    @classmethod
    def recognise(cls, site: Site) -> list[Proposal]:
        """A proposal for each model of a node, polled so that its progress is seen."""
        health = site.json(f"{site.root}/health")
        if not is_node(health):
            return []
        slots = _count(health.get("max_concurrent")) or 1
        names = [
            name for name in health["models"][:MAX_PROPOSALS] if isinstance(name, str) and name.isprintable()
        ]
        return [
            Proposal(
                model_type=cls.name,
                model=model_name(name),
                endpoint=f"{site.root}/{quote(name, safe='')}",
                certainty=OWN_PROTOCOL,
                reasons=("/health says that it is a node of this dispatcher.",),
                slots=min(slots, MAX_SLOTS),
                options={
                    "poll_endpoint_template": "/status/{id}",
                    "cancel_endpoint_template": "/cancel/{job_id}",
                },
            )
            for name in names
        ]


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
    return read_progress(read_json(response.body))


def read_progress(body: Any) -> Finished | StillRunning:
    """Read the state of a run that its server works on, from a polled or pushed body."""
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
        parsed = read_json(body)
    except Unreadable:
        parsed = None
    if not isinstance(parsed, dict) or _HEALTH_FIELDS.isdisjoint(parsed):
        return Health(True, has_endpoint=False)
    boot_id = parsed.get("boot_id")
    return Health(
        True,
        boot_id=str(boot_id)[:100] if isinstance(boot_id, (str, int)) else "",
        active_jobs=_count(parsed.get("active_jobs")),
        max_concurrent=_count(parsed.get("max_concurrent")),
        jobs=_jobs(parsed.get("jobs")),
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


def numeric_fields(parsed: Any) -> dict[str, Any] | None:
    """Its finite numbers, also those one level down (``prompt_tokens_details``); None: there are none. Texts
    are left out: tenants read this, and operators sum it."""
    found = _numbers(parsed, deeper=True)
    return found or None


def _numbers(parsed: Any, *, deeper: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in islice(parsed.items(), MAX_NAMES) if isinstance(parsed, Mapping) else ():
        if not isinstance(name, str) or len(name) > MAX_NAME:
            continue
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            found[name] = value
        elif deeper and (below := _numbers(value, deeper=False)):
            found[name] = below
    return found
