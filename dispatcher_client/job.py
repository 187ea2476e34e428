"""A job as the API answers it, and long polls, one after another, until it is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import DispatcherError, NoAnswer, Unavailable
from .transport import pause_after, pause_seconds

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


LONGEST_POLL_SECONDS = 30.0
_LONGEST_PAUSE_SECONDS = 5.0


class NotOver(DispatcherError, TimeoutError):
    """The time is up and the job is not over. job: as it stands; it goes on."""

    def __init__(self, job: Job, seconds: float) -> None:
        super().__init__(f"Job {job.job_id} is {job.status} after {seconds:g} s.")
        self.job = job


def wait_until_over(poll: Callable[[float], Job], timeout_seconds: float | None) -> Job:
    """poll: asks for the job, which may take so many seconds to answer. None: for ever.

    Raises NotOver, or NoAnswer or Unavailable if that was the last that was seen when the time was up.
    """
    began = time.monotonic()
    tries = 0
    while True:
        left = LONGEST_POLL_SECONDS
        if timeout_seconds is not None:
            left = max(0.0, began + timeout_seconds - time.monotonic())
        asked = time.monotonic()
        tries += 1
        try:
            job = poll(min(left, LONGEST_POLL_SECONDS))
        except (NoAnswer, Unavailable) as error:
            pause = pause_after(error, tries)
            if timeout_seconds is not None and pause > left:
                raise
        else:
            if job.is_over:
                return job
            now = time.monotonic()
            if timeout_seconds is not None and now >= began + timeout_seconds:
                raise NotOver(job, timeout_seconds)
            if now - asked >= 1:
                tries = 0
                continue
            pause = min(pause_seconds(tries), _LONGEST_PAUSE_SECONDS)  # a server that does not hold polls
            if timeout_seconds is not None:
                pause = min(pause, began + timeout_seconds - now)
        time.sleep(pause)
