"""A job as returned by the API, and long polls until it has ended."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import DispatcherError, NoAnswer, Unavailable
from .transport import pause_after, pause_seconds

FINAL = frozenset({"completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Job:
    """A job. data: all fields of the API's answer; after a batch only `job_id`, `status`, and those of a
    submit."""

    data: Mapping[str, Any]

    @property
    def job_id(self) -> str:
        return str(self.data["job_id"])

    @property
    def status(self) -> str:
        """scheduled, queued, running, retrying, cancelling, completed, failed or cancelled."""
        return str(self.data["status"])

    @property
    def model(self) -> str | None:
        """None after a batch."""
        return self.data.get("model")

    @property
    def is_over(self) -> bool:
        return self.status in FINAL

    @property
    def result(self) -> Any:
        return self.data.get("result")

    @property
    def error(self) -> Mapping[str, str] | None:
        """``{"code", "message"}`` if it failed or was cancelled."""
        return self.data.get("error")

    @property
    def outcome(self) -> str | None:
        """After a submit: leased, queued, scheduled or finished."""
        return self.data.get("outcome")

    @property
    def wait_reason(self) -> str | None:
        """After a submit: busy, no_capacity or later_start; None if it starts at once, or if unknown."""
        return self.data.get("wait_reason")

    @property
    def position(self) -> int | None:
        """After a submit: the estimated position in the queue, from 1; None if unknown."""
        return self.data.get("position")

    @property
    def starts_in(self) -> Mapping[str, float] | None:
        """After a submit: ``{"p50_seconds", "p90_seconds", "seen"}``; None if it starts at once, or if
        unknown.

        Half of such jobs start within the first, nine in ten within the second, learnt from `seen` starts."""
        return self.data.get("starts_in")


def read_job(value: Any) -> Job:
    """Return the job in an answer. Raises NoAnswer if there is none."""
    if not (isinstance(value, dict) and isinstance(value.get("job_id"), str) and "status" in value):
        raise NoAnswer("the answer is not a job")
    return Job(value)


class JobFailed(DispatcherError):
    """The job failed or was cancelled. code, message: of its error."""

    def __init__(self, job: Job) -> None:
        error = job.error if isinstance(job.error, Mapping) else {}
        self.job = job
        self.code = str(error.get("code", job.status))
        self.message = str(error.get("message", ""))
        super().__init__(f"Job {job.job_id} {job.status}: {self.code}: {self.message}")


MAX_POLL_SECONDS = 30.0
_MAX_PAUSE_SECONDS = 5.0


class NotOver(DispatcherError, TimeoutError):
    """The job has not ended in time; it continues. job: its last known state."""

    def __init__(self, job: Job, seconds: float) -> None:
        super().__init__(f"Job {job.job_id} is {job.status} after {seconds:g} s.")
        self.job = job


async def wait_until_over(
    poll: Callable[[float], Awaitable[Job]],
    timeout_seconds: float | None,
    sleep: Callable[[float], Awaitable[None]],
) -> Job:
    """Poll until the job has ended, and return it.

    poll: requests the job; the argument is how many seconds the server may hold the request. timeout_seconds:
    None: for ever. Raises NotOver; NoAnswer or Unavailable if the last poll before the time-out failed."""
    began = time.monotonic()
    tries = 0
    while True:
        left = MAX_POLL_SECONDS
        if timeout_seconds is not None:
            left = max(0.0, began + timeout_seconds - time.monotonic())
        requested_at = time.monotonic()
        tries += 1
        try:
            job = await poll(min(left, MAX_POLL_SECONDS))
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
            if now - requested_at >= 1:
                tries = 0
                continue
            pause = min(pause_seconds(tries), _MAX_PAUSE_SECONDS)  # the server does not hold polls
            if timeout_seconds is not None:
                pause = min(pause, began + timeout_seconds - now)
        await sleep(pause)
