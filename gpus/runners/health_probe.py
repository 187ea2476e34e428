"""What a runner's health probe asks with and returns. Judging of it: `gpus.health`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from gpus.runners.base import Response

Get = Callable[[str], Response]
"""Sends a GET with the server's secret headers. Raises GpuError."""

NO_SUCH_PAGE = frozenset({404, 405, 501})
"""The statuses of a server without that page: it is reachable, and nothing speaks against it."""


@dataclass(frozen=True, slots=True)
class Health:
    """ok: it answered, and nothing it said speaks against it. tells: it has a health endpoint; False: it
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
    tells: bool = True
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


def said_by(answer: Response) -> str:
    """The first characters of an answer's body, for an operator to read."""
    return answer.body[:200].decode("utf-8", "replace").replace("\0", "").strip() or "no reason given"
