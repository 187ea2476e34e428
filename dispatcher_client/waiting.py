"""Long polls, one after another, until a job is over."""

from __future__ import annotations

import time
from collections.abc import Callable

from .errors import DispatcherError, NoAnswer, Unavailable
from .job import Job
from .patience import pause_after, pause_seconds

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
