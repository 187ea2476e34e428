"""The times of a submitted job: when it may start, and by when it must have.

`start_deadline_seconds` and `deadline_seconds` count from the moment at which the job may start: `run_at`, or
the acceptance. So a client whose clock is wrong gets the deadlines it means.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings

from gpus.protocol import ModelSpec
from jobs.domain.errors import (
    DeadlineBeforeStartDeadline,
    MaxRunSecondsTooLong,
    MaxRunSecondsTooShort,
    RunAtInPast,
    RunAtTooFar,
)
from jobs.submission.request import SubmitRequest

SKEW_SECONDS = 60.0
"""A `run_at` that is past by less means now: clocks differ, and requests take time."""
MAX_AHEAD_SECONDS = 366 * 86_400.0


def check_times(request: SubmitRequest, spec: ModelSpec, now: datetime) -> None:
    """Raises Refused."""
    start, end = request.body.start_deadline_seconds, request.body.deadline_seconds
    if start is not None and end is not None and end < start:
        raise DeadlineBeforeStartDeadline(
            f"The job would have to be over after {end:g} s and to start within {start:g} s.",
            pointer="/deadline_seconds",
        )
    limit = spec.run_limit_seconds
    if request.body.max_run_seconds is not None and request.body.max_run_seconds > limit:
        raise MaxRunSecondsTooLong(
            f"The model's runs may take {limit:g} s; a job can lower that, not raise it.",
            pointer="/max_run_seconds",
        )
    least = min(limit, _least_run_seconds(spec))
    if request.body.max_run_seconds is not None and request.body.max_run_seconds < least:
        raise MaxRunSecondsTooShort(
            f"A job may limit its runs of this model to {least:g} s or more.",
            pointer="/max_run_seconds",
        )
    if request.body.run_at is None:
        return
    ahead = (request.body.run_at - now).total_seconds()
    told = f"The dispatcher's clock says {now.isoformat(timespec='seconds')}"
    if ahead < -SKEW_SECONDS:
        raise RunAtInPast(f"{told}: that was {-ahead:.0f} s ago.", pointer="/run_at")
    if ahead > MAX_AHEAD_SECONDS:
        raise RunAtTooFar(f"{told}: a job may be at most 366 days ahead.", pointer="/run_at")


def _least_run_seconds(spec: ModelSpec) -> float:
    least: float = settings.DISPATCHER.min_run_seconds
    return least if spec.min_run_seconds is None else spec.min_run_seconds


def later_start(request: SubmitRequest, now: datetime) -> datetime | None:
    """When the job comes into the line; None: now."""
    return request.body.run_at if request.body.run_at is not None and request.body.run_at > now else None


def after(start: datetime, seconds: float | None) -> datetime | None:
    return None if seconds is None else start + timedelta(seconds=seconds)
