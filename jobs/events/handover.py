"""Handover of a waiting request from a Django view to the ASGI gateway, by an internal response header.

The view authenticates and checks permissions; the gateway waits, which must not block a thread. Under plain
WSGI there is no gateway: `offered` returns False and the view responds at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
class Follow:
    """Stream the job's events after number `after`. with_output: the reader may see results. in_full: the
    reader may see details for operators. reader: key or user whose streams are counted together."""

    job_id: str
    after: int
    with_output: bool
    in_full: bool
    reader: str

    def as_header(self) -> str:
        return f"{self.job_id} {self.after} {int(self.with_output)} {int(self.in_full)} {quote(self.reader)}"

    @classmethod
    def from_header(cls, text: str) -> Follow:
        job_id, after, with_output, in_full, reader = text.split(" ")
        return cls(job_id, int(after), with_output == "1", in_full == "1", unquote(reader))


def offered(environ: Mapping[str, Any]) -> bool:
    """Return True if the request came through the gateway. Clients can't fake it: the mark is in the ASGI
    scope."""
    return bool(environ.get("asgi.scope", {}).get(SCOPE_KEY))


def answers_submit(environ: Mapping[str, Any]) -> bool:
    """Return True if the gateway reads this job as the late response to a submit."""
    return bool(environ.get("asgi.scope", {}).get(LATE_ANSWER_KEY))
