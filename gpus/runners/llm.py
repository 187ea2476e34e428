"""What runners of LLM servers share: the run lives as long as its connection, the text is told as it comes.

Such servers end a run whose client has hung up; nothing else stops one, and none can be taken up again. What
one of them says is read with distrust, piece by piece, and bounded like any other answer.
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
from gpus.runners.http_runner import HttpRunner, identity_headers, merge_headers
from gpus.runners.refusals import error_of, failure_of, message_of
from gpus.runners.streaming import HttpStream, OnPiece, StreamTransport
from gpus.runners.transport import Unreadable, read_json, read_one_at_a_time, too_large

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
    """An answer that grows: one per run."""

    def feed(self, piece: bytes) -> bool:
        """Takes the next bytes; True: that was its end. Raises the GpuError that the server tells."""
        ...

    def finished(self) -> Finished:
        """What it became. Raises ServerLost if its end did not come."""
        ...


class LlmRunner(HttpRunner, ABC):
    """A `Runner` whose runs end with their connection: one that broke leaves no doubt about the slot."""

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

    # -- what the protocols differ in -----------------------------------------------------------------

    @abstractmethod
    def url(self, run: RunRequest) -> str:
        """Raises BadInput for a payload that fits none of the server's paths."""

    @abstractmethod
    def body(self, run: RunRequest) -> dict[str, Any]: ...

    @abstractmethod
    def is_streamed(self, body: Mapping[str, Any]) -> bool:
        """Whether the server will write as it goes, asked like that."""

    @abstractmethod
    def answer(self, run: RunRequest, response: Response) -> Answer: ...

    @abstractmethod
    def read_whole(self, body: Mapping[str, Any]) -> Finished: ...

    # -- Runner ------------------------------------------------------------------------------------------

    def start(self, run: RunRequest, *, abort: Abort) -> Finished:
        if not isinstance(run.payload, dict):
            raise BadInput("The payload of an LLM job is a JSON object, as its server takes it.")
        body = self.body(run)
        try:
            return self._stream(run, body, abort) if self.is_streamed(body) else self._ask(run, body, abort)
        except ServerLost as error:
            mark_ended(error)
            raise

    def poll(self, run: RunRequest, remote_id: str, *, abort: Abort) -> Finished | StillRunning:
        raise PollFailed(
            "An LLM server's run ends with its connection: there is nothing to ask for.", gone=True
        )

    def cancel(self, run: RunRequest, remote_id: str | None) -> bool:
        """Its connection was closed before anybody may ask."""
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
        )
        return read_one_at_a_time(response.body, lambda: self._read(response))

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
        body = read_json(response.body)
        if not isinstance(body, dict):
            raise Unreadable("The answer is not a JSON object.")
        if body.get("error"):
            raise llm_failure_of(body)
        return self.read_whole(body)


class SizeLimit:
    """How much of an answer is kept. Raises ResponseTooLarge once that is more than the model allows."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._size = max_bytes, 0

    def add(self, value: Any) -> None:
        self._size += len(value.encode()) if isinstance(value, str) else len(json.dumps(value))
        if self._size > self._max_bytes:
            raise too_large(self._max_bytes)


def llm_error_of(response: Response, *, now: datetime) -> GpuError:
    """The price of an LLM server's describe_status."""
    text = f"{response.status}: {message_of(response)}"
    if response.status == 404:
        return ModelMissing(text)
    if response.status >= 500 and _CONTEXT.search(text):
        return BadInput(text)
    if response.status == _FAILED_DEPENDENCY:  # TGI: the generation failed
        return ServerFailed(text)
    return error_of(response, now=now)


def llm_failure_of(parsed: Mapping[str, Any]) -> GpuError:
    """The price of ``{"error": …}`` inside an answer that began well: by a status in it, else by the name
    that the server has for it, else by its words."""
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
    """The URL to ask. endpoint: one of `paths`, or what they stand under (nothing: `base`). paths: by the
    field of the payload that asks for it."""
    parts = urlsplit(endpoint)
    path = parts.path.rstrip("/")
    if path.endswith(tuple(paths.values())):
        return endpoint
    asked = next((paths[field] for field in paths if field in payload), None)
    if asked is None:
        raise BadInput(f"The payload has none of the fields {', '.join(paths)}: nothing tells what is asked.")
    return urlunsplit(parts._replace(path=(path or base) + asked))


def with_model_name(run: RunRequest) -> dict[str, Any]:
    """The payload under the name that the server knows the model by. Who may use this model may not reach
    another one of that server by writing its name."""
    name = run.model.remote_model or run.model.name
    asked = run.payload.get("model")
    if asked not in (None, name, run.model.name):
        raise BadInput(f"The payload asks for model {str(asked)[:100]!r}; this job's is {name!r}.")
    return {**run.payload, "model": name}


def parse_object(data: bytes) -> dict[str, Any]:
    """Raises Unreadable, or the failure that it tells."""
    parsed = read_one_at_a_time(data, lambda: read_json(data))
    if not isinstance(parsed, dict):
        raise Unreadable("A piece of the answer is not a JSON object.")
    if parsed.get("error"):
        raise llm_failure_of(parsed)
    return parsed


def incomplete_answer() -> ServerLost:
    return mark_ended(ServerLost("The answer ended before it was whole."))


def mark_ended(error: ServerLost) -> ServerLost:
    """The slot is free, and yet the run had begun: a job that may run only once can't run again."""
    error.suspect, error.unfinished = False, True
    return error


def _headers(run: RunRequest, accept: str) -> dict[str, str]:
    """No callback, slot or fence: nobody there knows what they are."""
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
