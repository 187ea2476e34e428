"""The interface of runners: start, poll and cancel a run on a GPU server, and probe its health.

Each step returns; the caller waits between steps. A network call ends early when its `Abort` fires. Errors
are `gpus.errors.GpuError`s, which carry their cost to the job. `gpus.health` decides on the result of a
probe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol
from urllib.parse import urlsplit, urlunsplit

from foundation.long_texts import LongTexts
from gpus.errors import OutputRefused
from gpus.protocol import Endpoint, ModelSpec
from gpus.runners.connections import Abort as Abort  # noqa: PLC0414  runners import it from here


class SaveOutput(Protocol):
    """Stores the bytes of a file as an output of a run, and returns the reference to it.

    file: read from its beginning, twice. name: for downloads. content_type: "": recognised from the bytes.
    Raises OutputRefused (a limit) and OutputNotStored (the store does not answer).
    """

    def __call__(self, file: BinaryIO, *, name: str = "", content_type: str = "") -> dict[str, str]: ...


def no_store(file: BinaryIO, *, name: str = "", content_type: str = "") -> dict[str, str]:
    """Refuse an output: the run has no store. Raises OutputRefused."""
    raise OutputRefused("The run has no store for its outputs.")


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run of a job on a slot.

    payload: any JSON value. fence: of the slot's lease; rejects late requests. push_url, push_token: where
    the server may push its result. artifact_url: where it promises outputs, under the same token.
    limit_seconds: the job's own time limit, if lower than its model's. report: called with ("progress", 0..1
    or ``{"value": 0..1, "text": …}``), ("partial", any JSON value) or ("log", `LogPart`) during the run;
    never blocks or raises. on_sent: called once, during or right after sending, to do work while the server
    works; never raises. Only runners with `Runner.calls_on_sent` call it. logs_seen: position in the server's
    log up to which lines are stored. save: stores an output of the run as an artifact, and returns the
    reference to it for the result; may wait for the store. max_file_bytes: of the files in one answer.
    """

    job_id: str
    attempt_id: str
    model: ModelSpec
    endpoint: Endpoint
    payload: Any
    slot: str
    fence: int
    push_url: str = ""
    push_token: str = ""
    artifact_url: str = ""
    limit_seconds: float = math.inf
    report: Callable[[str, Any], None] = lambda kind, value: None
    on_sent: Callable[[], None] = lambda: None
    logs_seen: int = 0
    save: SaveOutput = no_store
    max_file_bytes: int = 2 * 1024**3


@dataclass(frozen=True, slots=True)
class Finished:
    """The run has succeeded. result: any JSON value. usage: the server's counts (tokens), a JSON object.
    finish: returns the result with its files saved as outputs of the run; called once the GPU is idle, and
    again if the store did not answer; may raise GpuError. None: the result is complete. long_texts: those of
    the answer, for which the result has marks; None: it has none."""

    result: Any
    usage: Mapping[str, Any] | None = None
    finish: Callable[[SaveOutput], Any] | None = None
    long_texts: LongTexts | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The server has accepted the run; poll with this id."""

    remote_id: str


@dataclass(frozen=True, slots=True)
class StillRunning:
    """The run is not finished. progress: as reported by the server (0..1), or None. text: one line about
    it."""

    progress: float | None = None
    text: str = ""


class PollFailed(Exception):
    """A poll returned no state of the run, which may still be running: poll again.

    gone: the server answered that it does not know the run (any more).
    """

    def __init__(self, reason: str, *, gone: bool = False) -> None:
        super().__init__(reason)
        self.gone = gone


class CancelUnsupported(Exception):
    """The server has no known cancel endpoint; do not send a cancel again."""


@dataclass(frozen=True, slots=True)
class Response:
    """A complete HTTP response within the size limit. headers: lower-case names. long_texts: texts of the
    body's JSON for which it has marks; None: the body is as it was sent."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    long_texts: LongTexts | None = None


class Transport(Protocol):
    """Sends one HTTP request and returns the response.

    Raises `GpuError`s: `ConnectFailed` if no byte of the body was sent, `ServerLost` if the connection broke
    later, `RunTimedOut` after `deadline_seconds` in total, `RunFailed` if the response is larger than
    `max_bytes`, `Interrupted` if `abort` fired. on_sent: called once, when the request is sent or before
    waiting for a connection; not called after an earlier error. long_texts: takes the long texts out of a 2xx
    answer, and limits it in place of `max_bytes`; a transport may leave the body whole.
    """

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        connect_timeout_seconds: float,
        deadline_seconds: float,
        max_bytes: int,
        ca_pem: str | None = None,
        abort: Abort | None = None,
        on_sent: Callable[[], None] | None = None,
        long_texts: LongTexts | None = None,
    ) -> Response: ...


class OptionRefused(ValueError):
    """A model's option is not allowed by its runner. option: its name; code: stable API error code."""

    def __init__(self, option: str, code: str, message: str) -> None:
        super().__init__(message)
        self.option = option
        self.code = code


CONFIRMED_CANCEL = "server confirmed the cancel"
"""`Runner.stopped_by` of most runners."""


class Runner(Protocol):
    """The steps of one attempt. Runners of registered servers have more:
    `gpus.runners.registry.ServerRunner`."""

    is_polled: bool
    """Whether runs continue after the request that started them."""
    is_pushed: bool
    """Whether servers may send a result to the callback URL; else `read_pushed` returns StillRunning."""
    is_pinned: bool
    """Whether only a pinned worker (on the GPU's host) creates it; its health is that worker's heartbeat
    (`gpus.health.pinned_servers`)."""
    calls_on_sent: bool
    """Whether `start` calls the request's `on_sent` while it waits for the server."""
    answer_ends_run: bool
    """Whether only the answer to `start` proves that the run has ended; closing the connection does not end
    it. A cancel is then sent on another connection, while the answer is still awaited."""
    stopped_by: str
    """Evidence that a run has stopped after `cancel` returned True, for the attempt's row."""

    def start(self, run: RunRequest, *, abort: Abort) -> Finished | Accepted:
        """Send the run to the server. Raises GpuError."""
        ...

    def poll(self, run: RunRequest, remote_id: str, *, abort: Abort) -> Finished | StillRunning:
        """Read the run's state. A GpuError ends the run; after PollFailed the caller polls again."""
        ...

    def cancel(self, run: RunRequest, remote_id: str | None) -> bool:
        """Ask the server to stop the run. Returns True if the server confirms that it does not run.

        remote_id: None if the server has not returned one. Raises GpuError, CancelUnsupported.
        """
        ...

    def read_pushed(self, run: RunRequest, body: Mapping[str, Any]) -> Finished | StillRunning:
        """Parse a pushed body; raises like `poll`."""
        ...


Get = Callable[[str], Response]
"""Sends a GET with the server's secret headers. Raises GpuError."""


def getter(
    transport: Transport,
    *,
    headers: Mapping[str, str],
    timeout_seconds: float,
    connect_timeout_seconds: float,
    max_bytes: int,
    ca_pem: str | None,
) -> Get:
    """Return a sender of GETs to one server. headers: its secret ones. timeout_seconds: for a whole request,
    connecting included."""

    def get(url: str) -> Response:
        return transport.request(
            "GET",
            url,
            headers={"Accept": "application/json", "X-Source": "dispatcher", **headers},
            body=None,
            connect_timeout_seconds=min(timeout_seconds, connect_timeout_seconds),
            deadline_seconds=timeout_seconds,
            max_bytes=max_bytes,
            ca_pem=ca_pem,
        )

    return get


MISSING_PAGE = frozenset({404, 405, 501})
"""Statuses of a server without that URL: it is reachable, which is no evidence against it."""


@dataclass(frozen=True, slots=True)
class Health:
    """Result of a health probe.

    ok: the server answered without evidence of a fault. boot_id: of the server process, empty if unknown.
    active_jobs, max_concurrent: as reported, or None. jobs: (job id, attempt id) of running jobs, None if
    unknown. error: why not ok. age_seconds: age of the answer. has_endpoint: whether the server has a health
    endpoint; without one only its answering is known. reached: it answered at all. refused: no process
    listens at its address. timed_out: it did not answer in time.
    """

    ok: bool
    boot_id: str = ""
    active_jobs: int | None = None
    max_concurrent: int | None = None
    jobs: frozenset[tuple[str, str]] | None = None
    error: str = ""
    age_seconds: float = 0.0
    has_endpoint: bool = True
    reached: bool = True
    refused: bool = False
    timed_out: bool = False

    def runs(self, attempt_id: str) -> bool | None:
        """Whether the server runs the attempt; None: unknown."""
        if self.jobs is None:
            return None
        return any(attempt == attempt_id for _, attempt in self.jobs)


def at_root(endpoint: str, path: str) -> str:
    """The URL of a path at the endpoint's origin."""
    parts = urlsplit(endpoint)
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def excerpt(answer: Response) -> str:
    """The first characters of a response body, for operators."""
    return answer.body[:200].decode("utf-8", "replace").replace("\0", "").strip() or "no reason given"
