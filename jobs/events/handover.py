"""Handover of a waiting request from a Django view to the ASGI gateway, by an internal response header.

The view authenticates and checks permissions; the gateway waits, which must not block a thread. Under plain
WSGI there is no gateway: `offered` returns False and the view responds at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote, unquote

SCOPE_KEY = "dispatcher.handover"
LATE_ANSWER_KEY = "dispatcher.late_answer"
"""Scope key of a request that the gateway makes itself, to read the job of a submit that waited for it."""
WAIT_HEADER = "x-dispatcher-wait"
FOLLOW_HEADER = "x-dispatcher-follow"
PULSE_HEADER = "x-dispatcher-pulse"
"""With any value: stream a pulse (`event: changed`) instead of a job's events."""


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Repeat the request once the job has ended, or after `seconds`."""

    job_id: str
    seconds: float

    def as_header(self) -> str:
        return f"{self.job_id} {self.seconds}"

    @classmethod
    def from_header(cls, text: str) -> WaitFor:
        job_id, seconds = text.split(" ")
        return cls(job_id, float(seconds))


@dataclass(frozen=True, slots=True)
class FollowLog:
    """Stream log lines. is_json: as JSON lines, else as text. attempt: 0 for all. since: Unix seconds, or
    None. after_line: of the event `Follow.after`, this line and those before it were read."""

    is_json: bool = False
    attempt: int = 0
    since: float | None = None
    after_line: int = 0


@dataclass(frozen=True, slots=True)
class Follow:
    """Stream the job's events after number `after`. kind: run for those of a workflow run of this id, after
    `place`, which its reader understands. with_output: the reader may see results. in_full: the
    reader may see details for operators. reader: key or user whose streams are counted together. streams: of
    log lines that the reader may see. log: stream log lines instead of events."""

    job_id: str
    after: int
    with_output: bool
    in_full: bool
    reader: str
    streams: frozenset[str] = frozenset()
    log: FollowLog | None = None
    kind: str = "job"
    place: str = ""

    def as_header(self) -> str:
        fields = {**asdict(self), "streams": sorted(self.streams)}
        return quote(json.dumps(fields))

    @classmethod
    def from_header(cls, text: str) -> Follow:
        fields = json.loads(unquote(text))
        log = None if fields["log"] is None else FollowLog(**fields["log"])
        return cls(**{**fields, "streams": frozenset(fields["streams"]), "log": log})


def offered(environ: Mapping[str, Any]) -> bool:
    """Return True if the request came through the gateway. Clients can't fake it: the mark is in the ASGI
    scope."""
    return bool(environ.get("asgi.scope", {}).get(SCOPE_KEY))


def answers_submit(environ: Mapping[str, Any]) -> bool:
    """Return True if the gateway reads this job as the late response to a submit."""
    return bool(environ.get("asgi.scope", {}).get(LATE_ANSWER_KEY))
