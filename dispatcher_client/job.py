"""A job as returned by the API, and long polls until it has ended."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from .errors import DispatcherError, NoAnswer, Unavailable
from .reading import read_answer
from .transport import pause_after, pause_seconds

FINAL = frozenset({"completed", "failed", "cancelled"})


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a running job's current attempt. value: 0 to 1. text: a line about it."""

    value: float
    text: str | None
    at: datetime


@dataclass(frozen=True, slots=True)
class PartialOutput:
    """Output of a running job's current attempt so far. output: texts, joined as far as they are consecutive,
    and other JSON values, in order. left_out: number of pieces beyond the limits of events."""

    output: tuple[Any, ...]
    left_out: int

    @property
    def text(self) -> str:
        """The texts, without the other values."""
        return "".join(piece for piece in self.output if isinstance(piece, str))


@dataclass(frozen=True, slots=True)
class Timings:
    """Durations of a job in seconds, of all its rounds; of what goes on, until now.

    waited: from the submit, or `run_at`, to the start of the first attempt. ran: of the last attempt. gpu:
    for which all attempts held their slots. total: from the submit to the end."""

    waited_seconds: float
    ran_seconds: float | None
    gpu_seconds: float
    total_seconds: float


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
    def run_id(self) -> str | None:
        """Id of the workflow run that it belongs to; None of other jobs."""
        return self.data.get("run_id")

    @property
    def node(self) -> str | None:
        """Key of its node in that run, such as detect or detect[17]."""
        return self.data.get("node")

    @property
    def result(self) -> Any:
        """The result; in place of a long one the reference to the artifact that it is in."""
        return self.data.get("result")

    @property
    def result_is_artifact(self) -> bool:
        """True if the result was too long for a job's answer: `Client.result` reads it."""
        return self.data.get("result_url") is not None

    @property
    def error(self) -> Mapping[str, str] | None:
        """``{"code", "message"}`` if it failed or was cancelled."""
        return self.data.get("error")

    @property
    def progress(self) -> Progress | None:
        """Of a running job whose run has reported progress; else None. Raises NoAnswer if it can't be
        read."""
        return self._read(Progress, "progress")

    @property
    def partial_output(self) -> PartialOutput | None:
        """Of a running job whose run has sent output; else, and in lists, None. Raises NoAnswer if it can't
        be read."""
        return self._read(PartialOutput, "partial_output")

    @property
    def timings(self) -> Timings | None:
        """None in lists. Raises NoAnswer if they can't be read."""
        return self._read(Timings, "timings")

    @property
    def payload(self) -> Any:
        """Of a job that was read with its payload; else None."""
        return self.data.get("payload")

    def _read(self, kind: type[T], name: str) -> T | None:
        found = self.data.get(name)
        return None if found is None else read_answer(kind, found)

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
