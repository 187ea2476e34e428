"""A job as the API answers it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import NoAnswer

FINAL = frozenset({"completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Job:
    """data: everything the API said about it; of a batch only `job_id`, `status`, and what a submit adds."""

    data: Mapping[str, Any]

    @property
    def job_id(self) -> str:
        return str(self.data["job_id"])

    @property
    def status(self) -> str:
        """scheduled, queued, running, retrying, cancelling, completed, failed or cancelled."""
        return str(self.data["status"])

    @property
    def is_over(self) -> bool:
        return self.status in FINAL

    @property
    def result(self) -> Any:
        return self.data.get("result")

    @property
    def error(self) -> Mapping[str, str] | None:
        """``{"code", "message"}`` of a job that failed or was cancelled."""
        return self.data.get("error")

    @property
    def outcome(self) -> str | None:
        """Of a submit: leased, queued, scheduled or finished."""
        return self.data.get("outcome")

    @property
    def wait_reason(self) -> str | None:
        """Of a submit: busy, no_capacity or later_start; None where it starts at once, or nobody knows."""
        return self.data.get("wait_reason")

    @property
    def position(self) -> int | None:
        """Of a submit: the estimated place in line, from 1; None if it is not known."""
        return self.data.get("position")

    @property
    def starts_in(self) -> Mapping[str, float] | None:
        """Of a submit: ``{"p50_seconds", "p90_seconds", "seen"}``: half of such jobs start within the first,
        nine in ten within the second, learnt from so many starts; None where it starts at once, or nobody can
        know."""
        return self.data.get("starts_in")


def read_job(told: Any) -> Job:
    """Raises NoAnswer for what is no job."""
    if not (isinstance(told, dict) and isinstance(told.get("job_id"), str) and "status" in told):
        raise NoAnswer("the answer is no job")
    return Job(told)
