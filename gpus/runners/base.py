"""What every runner offers: start, poll and cancel a run on a GPU, each one step that returns; and what its
health probe asks with and returns (judging of it: `gpus.health`).

Between steps the caller waits (it owns the clock); a step that talks over the network ends early when its
`Abort` fires. Errors are raised as `gpus.errors.GpuError`: they carry what they cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

from gpus.protocol import Endpoint, ModelSpec
from gpus.runners.connections import Abort as Abort  # noqa: PLC0414  runners import it from here


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run. push_url, push_token: where and with what the server may push its result. limit_seconds: of
    the job, where it has a lower limit than its model.

    tell: hears ("progress", 0..1) and ("partial", any JSON value) while it runs; never waits or raises.
    on_sent: called once, when the request is sent or while its connection is opened, so that its work takes
    the server's time; never raises. Only runners that say so call it (`Runner.calls_on_sent`)."""

    job_id: str
    attempt_id: str
    model: ModelSpec
    endpoint: Endpoint
    payload: Any
    slot: str
    fence: int
    push_url: str = ""
    push_token: str = ""
    limit_seconds: float = math.inf
    report: Callable[[str, Any], None] = lambda kind, value: None
    on_sent: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Finished:
    """result: any JSON value. usage: what the server counted for it (tokens), a JSON object."""

    result: Any
    usage: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The server works on it; poll with this id."""

    remote_id: str


@dataclass(frozen=True, slots=True)
class StillRunning:
    """progress: what the server said of it, if anything (0..1)."""

    progress: float | None = None


class PollFailed(Exception):
    """A poll brought no news of the run: it may still go on, poll again. gone: the server answered that it
    does not know the run (any more)."""

    def __init__(self, reason: str, *, gone: bool = False) -> None:
        super().__init__(reason)
        self.gone = gone


class CancelUnsupported(Exception):
    """The server has no cancel endpoint that is known: the run is not to be asked to stop again."""


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP answer, read whole and within the size limit. headers: lower-case names."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class Transport(Protocol):
    """One HTTP exchange. Raises the network's `GpuError`s: `ConnectFailed` if nothing of the body was
    sent, `ServerLost` if the connection broke after it, `RunTimedOut` past `deadline_seconds` in all,
    `RunFailed` if the answer is larger than `max_bytes`, `Interrupted` if `abort` fired.

    on_sent: called once, if nothing is wrong before: when the request is sent, or before a connection is
    waited for."""

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
    ) -> Response: ...


class OptionRefused(ValueError):
    """A model's option that its runner can't take. option: its name; code: stable, as the API answers it."""

    def __init__(self, option: str, code: str, message: str) -> None:
        super().__init__(message)
        self.option = option
        self.code = code


class Runner(Protocol):
    """The steps of one attempt. A protocol of servers has a name, options and a health probe as well:
    `gpus.runners.registry.ServerRunner`."""

    is_polled: bool
    """Whether its runs outlive the request that began them."""
    is_pushed: bool
    """Whether its servers may send a result to the callback URL; else `read_pushed` returns StillRunning."""
    is_pinned: bool
    """Whether only the worker beside the GPU makes it; its health is that worker's heartbeat
    (`gpus.health.pinned_servers`)."""
    calls_on_sent: bool
    """Whether `start` calls the request's `meanwhile` while it waits for the server."""
    answer_ends_run: bool
    """Whether the answer to `start` proves that the run is over, and breaking the connection does not end it:
    a cancel is then asked for beside the request, which goes on being read."""

    def start(self, run: RunRequest, *, abort: Abort) -> Finished | Accepted: ...

    def poll(self, run: RunRequest, remote_id: str, *, abort: Abort) -> Finished | StillRunning:
        """A GpuError ends the run; PollFailed does not: the caller polls again until its time is up."""
        ...

    def cancel(self, run: RunRequest, remote_id: str | None) -> bool:
        """Asks the server to stop the run. True: the server says that it does not run (any more). Raises
        GpuError, CancelUnsupported."""
        ...

    def read_pushed(self, run: RunRequest, body: Mapping[str, Any]) -> Finished | StillRunning:
        """What a pushed body means; raises like `poll`."""
        ...


Get = Callable[[str], Response]
"""Sends a GET with the server's secret headers. Raises GpuError."""

MISSING_PAGE = frozenset({404, 405, 501})
"""The statuses of a server without that page: it is reachable, and nothing speaks against it."""


@dataclass(frozen=True, slots=True)
class Health:
    """ok: it answered, and nothing it parsed speaks against it. tells: it has a health endpoint; False: it
    answers and tells nothing of itself. boot_id: empty if it doesn't say. jobs: (job id, attempt id) of what
    it runs, None if it can't tell. error: why not ok. reached: it answered at all. refused: nothing listens
    at its address. timed_out: it did not answer in time. age_seconds: since it said so."""

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
        """None: it can't tell."""
        if self.jobs is None:
            return None
        return any(attempt == attempt_id for _, attempt in self.jobs)


def at_root(endpoint: str, path: str) -> str:
    """The URL of a path at the endpoint's origin."""
    parts = urlsplit(endpoint)
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def excerpt(answer: Response) -> str:
    """The first characters of an answer's body, for an operator to read."""
    return answer.body[:200].decode("utf-8", "replace").replace("\0", "").strip() or "no reason given"
