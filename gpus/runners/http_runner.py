"""The dispatcher's own HTTP protocol (docs/reference/gpu_protocol.md): base class of HTTP runners, sync and
async runners.

Answers are JSON objects: ``{"status": "success", "result": …}``, ``{"status": "processing", "<id>": …}``,
``{"status": "failed", "error": …}``. Without ``result`` the object's other fields are the result. The
`read_…` functions are pure: they return an outcome, or raise a `GpuError`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, urljoin, urlsplit

import structlog

from foundation.long_texts import LongTexts
from gpus.errors import ConnectFailed, RunFailed, RunTimedOut, ServerLost
from gpus.protocol import MAX_SLOTS, NODE, Endpoint, ModelSpec, parse_progress
from gpus.runners.base import (
    CONFIRMED_CANCEL,
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
from gpus.runners.log_tail import LOG_BYTES, LogTail
from gpus.runners.openapi_document import OpenApiDocument, Operation
from gpus.runners.recognition import (
    COMPATIBLE,
    GENERIC,
    MAX_PROPOSALS,
    OWN_PROTOCOL,
    Proposal,
    Site,
    model_name,
    server_name,
)
from gpus.runners.refusals import describe_status, error_of, failure_of, json_object, message_of
from gpus.runners.transport import (
    FilesTooLarge,
    HttpTransport,
    ResponseTooLarge,
    Unreadable,
    read_json,
    read_one_at_a_time,
    read_parts,
    too_large,
)
from gpus.runners.usage import usage_in

log = structlog.get_logger()

CONNECT_TIMEOUT_SECONDS = 5.0
POLL_SECONDS = 10.0
CANCEL_SECONDS = 5.0
DEFAULT_CANCEL = "/cancel/{job_id}"
_CANCEL_BYTES = 64 * 1024

MAX_REMOTE_ID = 500
ID_FIELDS = ("job_id", "id", "task_id", "request_id")
"""Fields that may hold the remote id if the model names no field."""
DONE = frozenset({"success", "succeeded", "completed", "complete", "done", "finished"})
FAILED = frozenset({"failed", "failure", "error", "cancelled", "canceled"})
RUNNING = frozenset({"processing", "pending", "queued", "running", "accepted", "starting", "started"}) | {
    "in_progress",
    "in_queue",
}
_STOPPED = DONE | FAILED | {"not_running", "stopped"}
_GONE = frozenset({404, 410})
_HEALTH_FIELDS = frozenset({"boot_id", "active_jobs", "max_concurrent", "direct_queue", "jobs"})
"""A health answer without any of these fields does not describe the server's runs."""
_TEMPORARY = frozenset({408, 409, 425, 429})

FILE_POLL_SECONDS = 120.0
"""Time limit of a poll whose answer may hold files."""
_ENVELOPE = frozenset({"status", "logs", "logs_offset", "progress", "error", "error_code", "error_type"}) | {
    "detail",
    "message",
    "traceback",
    "usage",
    *ID_FIELDS,
}
"""Fields of an answer that hold no file where it has no `result`."""
LOGS_AFTER = "X-Logs-After"
"""Request header of a poll: position in the run's log up to which the lines were read."""
OnBody = Callable[[Any], None]
Outcome = TypeVar("Outcome")


class HttpRunner:
    """Base class of runners over HTTP; implements the dispatcher's own protocol.

    `start` takes at most the model's run limit. model: to run. transport: None: real sockets.
    """

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
    stopped_by = CONFIRMED_CANCEL
    takes_uploads = False

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
        self._log_tail: LogTail | None = None

    def start(self, run: RunRequest, *, abort: Abort) -> Finished | Accepted:
        response = self._request(
            "POST",
            run.endpoint.url,
            run,
            headers=_run_headers(run, polled=self.is_polled),
            body=json.dumps(run.payload, separators=(",", ":")).encode(),
            deadline_seconds=self._read_seconds(run),
            max_bytes=run.model.max_response_bytes,
            log_bytes=LOG_BYTES,
            abort=abort,
            on_sent=run.on_sent,
            long_texts=long_texts_of(run, LOG_BYTES),
        )
        outcome = read_one_at_a_time(
            response.body,
            lambda: read_start(
                response,
                run.model,
                now=datetime.now(UTC),
                bare_is_id=self.is_polled,
                on_body=partial(self._take_body, run, response),
            ),
        )
        return with_long_texts(outcome, response)

    def _read_seconds(self, run: RunRequest) -> float:
        """Time limit of the whole answer, in seconds.

        If only the answer proves the end of the run (`answer_ends_run`), it is awaited beyond the job's own
        limit, while a cancel is sent on another connection.
        """
        limit = run.model.run_limit_seconds
        return limit if self.answer_ends_run else min(limit, run.limit_seconds)

    def poll(self, run: RunRequest, remote_id: str, *, abort: Abort) -> Finished | StillRunning:
        template = run.model.poll_endpoint_template
        if not template:
            raise RunFailed("The model has no poll_endpoint_template.")
        try:
            response = self._request(
                "GET",
                _fill(template, run, remote_id),
                run,
                headers={**identity_headers(run), LOGS_AFTER: str(self._tail(run).seen)},
                body=None,
                deadline_seconds=FILE_POLL_SECONDS if run.model.may_have_files else POLL_SECONDS,
                max_bytes=run.model.max_response_bytes,
                log_bytes=LOG_BYTES,
                abort=abort,
                long_texts=long_texts_of(run, LOG_BYTES),
            )
        except (ConnectFailed, ServerLost, RunTimedOut) as error:
            raise PollFailed(f"{error.code}: {error.message}") from error
        try:
            outcome = read_one_at_a_time(
                response.body,
                lambda: read_poll(response, on_body=partial(self._take_body, run, response)),
            )
        except Unreadable as error:
            error.suspect = True
            raise
        return with_long_texts(outcome, response)

    def cancel(self, run: RunRequest, remote_id: str | None) -> bool:
        """Cancel at the model's template, else at the protocol's own path.

        The latter is not tried on a server without a health endpoint: a server that ignores paths would treat
        the cancel as a run.
        """
        template = run.model.cancel_endpoint_template
        if not template and run.endpoint.tells_health is False:
            raise CancelUnsupported(
                "The model has no cancel endpoint, and its server has no health endpoint."
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
        self.report_logs(run, body)
        return read_progress(body)

    def report_logs(self, run: RunRequest, body: Any) -> None:
        """Report the new log lines of an answer. Never raises."""
        if not isinstance(body, dict) or "logs" not in body or "status" not in body:
            return
        try:
            is_last = str(body["status"]).lower() not in RUNNING
            part = self._tail(run).read(body, is_last=is_last)
        except Exception as error:  # no log may fail its run
            log.warning("logs_not_read", job_id=run.job_id, error=str(error))
        else:
            if part is not None:
                run.report("log", part)

    def _tail(self, run: RunRequest) -> LogTail:
        if self._log_tail is None:
            self._log_tail = LogTail(run.logs_seen)
        return self._log_tail

    def _take_body(self, run: RunRequest, response: Response, body: Any) -> None:
        """Report the log lines of an answer, and check its length besides them. Raises ResponseTooLarge."""
        self.report_logs(run, body)
        check_length(response, body, run.model.max_response_bytes)

    @classmethod
    def check_options(cls, model: ModelSpec) -> None:
        """Raise OptionRefused for options that this protocol does not support."""
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
        """Probe the health endpoint, which is optional unless the model has a `health_path`."""
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
        log_bytes: int = 0,
        long_texts: LongTexts | None = None,
    ) -> Response:
        """Send a request of the run. log_bytes: bytes of log lines that may come beyond `max_bytes`
        (`check_length`). long_texts: as of `Transport`."""
        further: dict[str, Any] = {} if long_texts is None else {"long_texts": long_texts}
        try:
            return self._transport.request(
                method,
                url,
                headers=merge_headers(run.endpoint.headers, headers),
                body=body,
                connect_timeout_seconds=self._connect_timeout,
                deadline_seconds=deadline_seconds,
                max_bytes=max_bytes + log_bytes,
                ca_pem=run.endpoint.ca_pem,
                abort=abort,
                on_sent=on_sent,
                **further,
            )
        except FilesTooLarge:
            raise
        except ResponseTooLarge:
            raise too_large(max_bytes) from None


def long_texts_of(run: RunRequest, log_bytes: int = 0) -> LongTexts | None:
    """Return what takes the long texts out of the run's answer; None if it has no files. log_bytes: as of
    `HttpRunner._request`."""
    if not run.model.may_have_files:
        return None
    return LongTexts(max_rest=run.model.max_response_bytes, spare=log_bytes, max_long=run.max_file_bytes)


def with_long_texts(outcome: Outcome, response: Response) -> Outcome:
    """Return the outcome of an answer with its long texts; those of an unfinished run are not needed."""
    if response.long_texts is None:
        return outcome
    if isinstance(outcome, Finished):
        return replace(outcome, long_texts=response.long_texts)
    response.long_texts.close()
    return outcome


def identity_headers(run: RunRequest) -> dict[str, str]:
    """Headers of every request that belongs to a run."""
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
    if run.artifact_url:
        headers["X-Artifact-Url"] = run.artifact_url
    if run.push_token:
        headers["X-Callback-Token"] = run.push_token
    return headers


def merge_headers(secret: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """The server's secret headers, overridden by ours (names are case-insensitive)."""
    taken = {name.lower() for name in ours}
    kept = {name: value for name, value in secret.items() if name.lower() not in taken}
    return {**kept, **ours}


def _fill(template: str, run: RunRequest, remote_id: str) -> str:
    """The URL of a template. Raises RunFailed for another origin than the endpoint's, to protect secret
    headers."""
    path = template.replace("{id}", quote(remote_id, safe="")).replace("{job_id}", quote(run.job_id, safe=""))
    url = urljoin(run.endpoint.url, path)
    there, home = urlsplit(url), urlsplit(run.endpoint.url)
    if (there.scheme, there.netloc.lower()) != (home.scheme, home.netloc.lower()):
        raise RunFailed(f"The template {template!r} leads to another origin than the server's.")
    return url


class SyncHttpRunner(HttpRunner):
    """The answer to the POST is the result.

    A server may answer `processing` instead, if the model has a poll template.
    """

    name = "sync"
    summary = "The answer to the POST is the result."
    calls_on_sent = True
    answer_ends_run = True

    def start(self, run: RunRequest, *, abort: Abort) -> Finished | Accepted:
        outcome = super().start(run, abort=abort)
        if isinstance(outcome, Accepted) and not run.model.poll_endpoint_template:
            error = Unreadable("The run continues, and the model has no poll_endpoint_template.")
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
                options=_files_of(site.path),
            )
        ]


_IMAGES = "/images/generations"
"""Path of OpenAI's protocol for pictures, as many servers of image models have it."""
_IMAGE_FILES = ("data[*].b64_json", "data[*].url")


def _files_of(path: str) -> dict[str, Any]:
    """Options for the files in the answers of a known path."""
    return {"output_files": list(_IMAGE_FILES)} if path.rstrip("/").endswith(_IMAGES) else {}


def _operation(model_type: str, site: Site, operation: Operation) -> Proposal:
    options = {} if operation.schema is None else {"payload_schema": operation.schema}
    return Proposal(
        model_type=model_type,
        model=model_name(operation.path),
        endpoint=f"{site.root}{operation.path}",
        certainty=COMPATIBLE,
        reasons=(f"/openapi.json describes POST {operation.path}.",),
        options=options | _files_of(operation.path),
        test_payload=operation.example,
    )


def is_node(health: Any) -> bool:
    """Whether it is the health of the reference node, which names the models that it serves."""
    return (
        isinstance(health, dict) and health.get("server") == NODE and isinstance(health.get("models"), list)
    )


class AsyncHttpRunner(HttpRunner):
    """The answer to the POST is an id; the result is polled or pushed.

    A server may answer with the result instead.
    """

    name = "async"
    summary = "The answer to the POST names a run to poll; a server may push the result."
    is_polled = True
    calls_on_sent = True
    answer_ends_run = True

    def start(self, run: RunRequest, *, abort: Abort) -> Finished | Accepted:
        try:
            return super().start(run, abort=abort)
        except (Unreadable, ResponseTooLarge) as error:
            error.suspect = True  # the server may have accepted the run under an unknown id
            raise

    @classmethod
    def check_options(cls, model: ModelSpec) -> None:
        if model.poll_endpoint_template is None:
            raise OptionRefused(
                "poll_endpoint_template",
                "poll_template_required",
                "An async model needs a poll_endpoint_template, such as /status/{id}.",
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
    response: Response,
    model: ModelSpec,
    *,
    now: datetime,
    bare_is_id: bool,
    on_body: OnBody = lambda body: None,
) -> Finished | Accepted:
    """Parse the answer to the POST.

    bare_is_id: an answer without a status holds the run's id, not its result. on_body: called with the body.
    Raises the GpuError of the HTTP status or of the reported failure.
    """
    if not _is_success(response):
        on_body(json_object(response))
        raise error_of(response, now=now)
    body = read_parts(response, lambda body: _parts_with_files(body, model.id_field))
    on_body(body)
    if not isinstance(body, dict):
        raise Unreadable("The answer is not a JSON object.")
    if "status" not in body:
        if bare_is_id:
            return Accepted(_remote_id(body, model.id_field))
        return _finished(body)
    outcome = _outcome(body)
    return outcome if isinstance(outcome, Finished) else Accepted(_remote_id(body, model.id_field))


def read_poll(response: Response, *, on_body: OnBody = lambda body: None) -> Finished | StillRunning:
    """Parse the answer to a poll. on_body: called with the body. Raises PollFailed without a state of the
    run, a GpuError if the run failed."""
    if not _is_success(response):
        raise PollFailed(f"{response.status}: {message_of(response)}", gone=response.status in _GONE)
    body = read_parts(response, _parts_with_files)
    on_body(body)
    return read_progress(body)


def _parts_with_files(body: Mapping[str, Any], id_field: str | None = None) -> Container[str]:
    """Return the names of an answer's parts that may hold files."""
    return ("result",) if "result" in body else body.keys() - _ENVELOPE - {id_field}


def check_length(response: Response, body: Any, most: int) -> None:
    """Raise ResponseTooLarge for an answer of more than `most` bytes besides its log lines, of which
    `LOG_BYTES` were read on top, and its files."""
    size = len(response.body) if response.long_texts is None else response.long_texts.rest_bytes
    if size <= most:
        return
    logs = body.get("logs") if isinstance(body, Mapping) else None
    if logs is None or size - len(json.dumps(logs)) > most:
        raise too_large(most)


def read_progress(body: Any) -> Finished | StillRunning:
    """Parse the state of a run in a polled or pushed body. Raises the failure that it reports."""
    if not isinstance(body, Mapping):
        raise Unreadable("The answer is not a JSON object.")
    if "status" in body:
        return _outcome(body)
    if "result" in body:
        return _finished(body)
    if "error" in body:
        raise failure_of(body)
    raise Unreadable("The answer has neither a status nor a result.")


def read_cancel(response: Response, *, known: bool, guessed: bool = False) -> bool:
    """Whether the server confirms that the run does not run.

    known: the server has returned an id for the run; if not, a bare 404 may mean that the request is still
    under way. guessed: the cancel path is the protocol's default, so only its ``running`` field counts.
    Raises CancelUnsupported if the answer shows that the guessed path is wrong: a 404, or a result.
    """
    is_gone = response.status in _GONE
    if is_gone and known and not guessed:
        return True
    body = json_object(response) if _is_success(response) or is_gone else {}
    if isinstance(body.get("running"), bool):
        return not body["running"]
    if guessed:
        if _is_final(response):
            raise CancelUnsupported(
                f"The server does not support a cancel at the protocol's path ({response.status})."
            )
        return False
    return str(body.get("status", "")).lower() in _STOPPED


def _finished(body: Mapping[str, Any]) -> Finished:
    result = body.get("result", body)
    has_usage = "usage" in body or (isinstance(result, dict) and "usage" in result)
    return Finished(result, (usage_in(body) or usage_in(result)) if has_usage else None)


def _is_final(response: Response) -> bool:
    """Whether the same request will get the same answer later."""
    return response.status == 501 or (response.status < 500 and response.status not in _TEMPORARY)


def _outcome(body: Mapping[str, Any]) -> Finished | StillRunning:
    status = str(body["status"]).lower()
    if status in DONE:
        rest = {name: value for name, value in body.items() if name != "status"}
        return _finished(rest)
    if status in FAILED:
        raise failure_of(body)
    if status in RUNNING:
        progress = parse_progress(body.get("progress"))
        return StillRunning(progress.value, progress.text) if progress else StillRunning()
    raise Unreadable(f"The answer's status is {status[:50]!r}.")


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
    """Parse the body of a 200 health answer.

    A body without the protocol's fields (``OK``, ``{"status": "ok"}``) counts as a server without a health
    endpoint.
    """
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
    """The running jobs; None if an entry lacks its attempt, because an incomplete list is no proof."""
    if not isinstance(value, list):
        return None
    jobs = set()
    for entry in value:
        if not isinstance(entry, dict) or not isinstance(entry.get("attempt"), str):
            return None
        jobs.add((str(entry.get("job_id", "")), entry["attempt"]))
    return frozenset(jobs)
