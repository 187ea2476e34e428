"""How a Django view hands a request over to the async layer: by a response header that stays in the house.

The view has done everything that needs the database (who asks, may they see it); what is left is waiting,
and waiting must not hold a thread. Under plain WSGI nobody takes over: `offered` is False and the view
answers at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

SCOPE_KEY = "dispatcher.handover"
LATE_ANSWER_KEY = "dispatcher.late_answer"
"""Of a request that the async layer makes itself: it reads the job that a submit made and waited for."""
WAIT_HEADER = "x-dispatcher-wait"
FOLLOW_HEADER = "x-dispatcher-follow"
PULSE_HEADER = "x-dispatcher-pulse"
"""Whatever its value: stream that something changed, not what."""


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Answer anew once the job is over, or after `seconds`."""

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
    """Stream the job's events that come after number `after`. with_output: whether its reader may see
    payloads and results; in_full: what only operators read. reader: whose streams are counted together."""

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
    """Whether this request came through the async layer. A client can't pretend: it is no header."""
    return bool(environ.get("asgi.scope", {}).get(SCOPE_KEY))


def answers_submit(environ: Mapping[str, Any]) -> bool:
    """Whether this read is the late answer to a submit."""
    return bool(environ.get("asgi.scope", {}).get(LATE_ANSWER_KEY))
