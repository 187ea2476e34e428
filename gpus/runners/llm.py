"""Base class of LLM runners: a run ends with its connection, and its text is reported while it is streamed.

LLM servers stop a run when its client disconnects; there is no other cancel, and no way to resume. Answers
are untrusted: they are parsed piece by piece, and limited in size like any other answer.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

from gpus.errors import BadInput, GpuBusy, GpuError, GpuFault, ModelMissing, ServerFailed, ServerLost
from gpus.protocol import ModelSpec
from gpus.runners.base import Abort, Finished, PollFailed, Response, RunRequest, StillRunning, Transport
from gpus.runners.http_runner import (
    HttpRunner,
    identity_headers,
    long_texts_of,
    merge_headers,
    with_long_texts,
)
from gpus.runners.refusals import error_of, failure_of, message_of
from gpus.runners.streaming import HttpStream, OnPiece, StreamTransport
from gpus.runners.transport import Unreadable, read_json, read_one_at_a_time, read_parts, too_large

_CONTEXT = re.compile(
    r"context (length|size|window)|maximum context|exceeds? the (available )?context|prompt is too long",
    re.IGNORECASE,
)
_FAILED_DEPENDENCY = 424
_NAMED: dict[str, type[GpuError]] = {
    "validation": BadInput,  # TGI's names …
    "overloaded": GpuBusy,
    "generation": ServerFailed,
    "invalid_request_error": BadInput,  # … OpenAI's, and vLLM's
    "BadRequestError": BadInput,
}


class Answer(Protocol):
    """Assembles the streamed answer of one run."""

    def feed(self, piece: bytes) -> bool:
        """Parse the next bytes. Returns True at the end of the answer. Raises the error that the server
        reports."""
        ...

    def finished(self) -> Finished:
        """The assembled result. Raises ServerLost if the answer is incomplete."""
        ...


class LlmRunner(HttpRunner, ABC):
    """A `Runner` whose runs end with their connection, so that a lost connection never leaves the slot
    suspect."""

    options: Sequence[str] = ("remote_model",)
    is_pushed = False
    stopped_by = "its connection was closed"

    def __init__(
        self,
        model: ModelSpec,
        transport: Transport | None = None,
        *,
        streams: StreamTransport | None = None,
    ) -> None:
        super().__init__(model, transport)
        self._stream_transport = streams or HttpStream()

    # -- for subclasses -------------------------------------------------------------------------------

    @abstractmethod
    def url(self, run: RunRequest) -> str:
        """The URL for the run's payload. Raises BadInput if it fits none of the server's paths."""

    @abstractmethod
    def body(self, run: RunRequest) -> dict[str, Any]:
        """The request body. Raises BadInput."""

    @abstractmethod
    def is_streamed(self, body: Mapping[str, Any]) -> bool:
        """Whether the server streams its answer to this request body."""

    @abstractmethod
    def answer(self, run: RunRequest, response: Response) -> Answer:
        """A new assembler of a streamed answer. response: its status and headers."""

    @abstractmethod
    def read_whole(self, body: Mapping[str, Any]) -> Finished:
        """Parse an answer that was not streamed."""

    # -- Runner ------------------------------------------------------------------------------------------

    def start(self, run: RunRequest, *, abort: Abort) -> Finished:
        if not isinstance(run.payload, dict):
            raise BadInput("The payload of an LLM job must be a JSON object: the request body of its server.")
        body = self.body(run)
        try:
            return self._stream(run, body, abort) if self.is_streamed(body) else self._ask(run, body, abort)
        except ServerLost as error:
            mark_ended(error)
            raise

    def poll(self, run: RunRequest, remote_id: str, *, abort: Abort) -> Finished | StillRunning:
        raise PollFailed("An LLM server's run ends with its connection and cannot be polled.", gone=True)

    def cancel(self, run: RunRequest, remote_id: str | None) -> bool:
        """True: the run has ended, because its connection is closed before `cancel` is called."""
        return True

    def read_pushed(self, run: RunRequest, body: Mapping[str, object]) -> StillRunning:
        return StillRunning()

    def _ask(self, run: RunRequest, body: Mapping[str, Any], abort: Abort) -> Finished:
        response = self._request(
            "POST",
            self.url(run),
            run,
            headers=_headers(run, "application/json"),
            body=_encoded(body),
            deadline_seconds=_limit(run),
            max_bytes=run.model.max_response_bytes,
            abort=abort,
            long_texts=long_texts_of(run),
        )
        return with_long_texts(read_one_at_a_time(response.body, lambda: self._read(response)), response)

    def _stream(self, run: RunRequest, body: Mapping[str, Any], abort: Abort) -> Finished:
        grown: list[Answer] = []

        def on_head(head: Response) -> OnPiece | None:
            if head.status != 200 or not _is_stream(head):
                return None
            grown.append(self.answer(run, head))
            return grown[0].feed

        response = self._stream_transport.stream(
            "POST",
            self.url(run),
            headers=merge_headers(
                run.endpoint.headers, _headers(run, "text/event-stream, application/x-ndjson")
            ),
            body=_encoded(body),
            on_head=on_head,
            connect_timeout_seconds=self._connect_timeout,
            deadline_seconds=_limit(run),
            max_bytes=run.model.max_response_bytes,
            ca_pem=run.endpoint.ca_pem,
            abort=abort,
        )
        if grown:
            return grown[0].finished()
        return read_one_at_a_time(response.body, lambda: self._read(response))

    def _read(self, response: Response) -> Finished:
        if not 200 <= response.status < 300:
            raise llm_error_of(response, now=datetime.now(UTC))
        body = read_parts(response, lambda body: body.keys() - {"error"})
        if not isinstance(body, dict):
            raise Unreadable("The answer is not a JSON object.")
        if body.get("error"):
            raise llm_failure_of(body)
        return self.read_whole(body)


class SizeLimit:
    """Counts the stored size of an answer. Raises ResponseTooLarge beyond the model's limit."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._size = max_bytes, 0

    def add(self, value: Any) -> None:
        """Count a text's bytes, or a JSON value's length as text."""
        self._size += len(value.encode()) if isinstance(value, str) else len(json.dumps(value))
        if self._size > self._max_bytes:
            raise too_large(self._max_bytes)


def llm_error_of(response: Response, *, now: datetime) -> GpuError:
    """The GpuError of an LLM server's answer that is not 2xx."""
    text = f"{response.status}: {message_of(response)}"
    if response.status == 404:
        return ModelMissing(text)
    if response.status >= 500 and _CONTEXT.search(text):
        return BadInput(text)
    if response.status == _FAILED_DEPENDENCY:  # TGI: the generation failed
        return ServerFailed(text)
    return error_of(response, now=now)


def llm_failure_of(parsed: Mapping[str, Any]) -> GpuError:
    """The GpuError of ``{"error": …}`` in an answer with status 200: by a status in it, by its error type, or
    by its text."""
    error = parsed["error"]
    flat = {**parsed, **error} if isinstance(error, Mapping) else parsed
    for name in ("code", "http_status_code", "status_code"):
        status = flat.get(name)
        if isinstance(status, int) and 400 <= status < 600:
            return llm_error_of(Response(status, {}, json.dumps(parsed).encode()), now=datetime.now(UTC))
    failure = failure_of({"status": "error", "error": error})
    if isinstance(failure, GpuFault):
        return failure
    if _CONTEXT.search(failure.message):
        return BadInput(failure.message)
    names = (flat.get("error_type"), flat.get("type"))
    kind = next((_NAMED[name] for name in names if isinstance(name, str) and name in _NAMED), None)
    return failure if kind is None else kind(failure.message)


def payload_url(endpoint: str, payload: Mapping[str, Any], paths: Mapping[str, str], base: str) -> str:
    """The URL for a payload.

    endpoint: a URL that ends with one of `paths`, or their base URL. paths: by the payload field that selects
    them. base: path of an endpoint without a path. Raises BadInput if the payload selects none.
    """
    parts = urlsplit(endpoint)
    path = parts.path.rstrip("/")
    if path.endswith(tuple(paths.values())):
        return endpoint
    asked = next((paths[field] for field in paths if field in payload), None)
    if asked is None:
        raise BadInput(
            f"The payload has none of the fields {', '.join(paths)}, which select the server's API."
        )
    return urlunsplit(parts._replace(path=(path or base) + asked))


def with_model_name(run: RunRequest) -> dict[str, Any]:
    """The payload with the server's name of the model.

    Raises BadInput if the payload names another model: a tenant of this model must not reach other models of
    the server.
    """
    name = run.model.remote_model or run.model.name
    asked = run.payload.get("model")
    if asked not in (None, name, run.model.name):
        raise BadInput(f"The payload names model {str(asked)[:100]!r}; this job's model is {name!r}.")
    return {**run.payload, "model": name}


def parse_object(data: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises Unreadable, or the error that it reports."""
    parsed = read_one_at_a_time(data, lambda: read_json(data))
    if not isinstance(parsed, dict):
        raise Unreadable("A piece of the answer is not a JSON object.")
    if parsed.get("error"):
        raise llm_failure_of(parsed)
    return parsed


def incomplete_answer() -> ServerLost:
    """The error for a streamed answer without its end."""
    return mark_ended(ServerLost("The answer ended before it was complete."))


def mark_ended(error: ServerLost) -> ServerLost:
    """Mark that the run has ended, so the slot is free, but had begun: a job that may run once cannot be
    retried."""
    error.suspect, error.unfinished = False, True
    return error


def _headers(run: RunRequest, accept: str) -> dict[str, str]:
    """Request headers, without callback, slot and fence, which LLM servers do not use."""
    return {
        **identity_headers(run),
        "Accept": accept,
        "Content-Type": "application/json",
        "X-Request-Id": run.attempt_id,
    }


def _encoded(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _limit(run: RunRequest) -> float:
    return min(run.model.run_limit_seconds, run.limit_seconds)


def _is_stream(head: Response) -> bool:
    kind = head.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind in ("text/event-stream", "application/x-ndjson", "application/ndjson", "application/jsonl")
