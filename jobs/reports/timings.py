"""Durations of a job: waiting, running, on GPUs, in all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Sum

from jobs.models import Attempt, Job


@dataclass(frozen=True, slots=True)
class Timings:
    """Durations of a job, in seconds, of all its rounds; of what goes on, until now.

    waited: from the submit, or `run_at`, to the start of the first attempt. ran: of the last attempt; None
    before the first. gpu: for which all attempts held their slots, as charged to the tenant. total: from the
    submit to the end.
    """

    waited: float
    ran: float | None
    gpu: float
    total: float


def timings_of(job: Job, attempts: Sequence[Attempt], now: datetime) -> Timings:
    """Return a job's durations. attempts: known ones of the job, by number; if some are missing, what is
    needed of them is queried."""
    until = job.finished_at or now
    begin = max(job.created_at, job.run_at or job.created_at)
    if len(attempts) < job.attempts_made - job.refusals_folded:
        gpu, last = _in_all(job)
    else:
        gpu = sum(attempt.gpu_seconds or 0.0 for attempt in attempts)
        last = attempts[-1] if attempts else None
    ran = None
    if last is not None:
        ran = _seconds(last.started_at, last.finished_at or now)
        gpu += ran if last.finished_at is None else 0.0
    return Timings(
        waited=_seconds(begin, job.started_at or until),
        ran=ran,
        gpu=gpu,
        total=_seconds(job.created_at, until),
    )


def _in_all(job: Job) -> tuple[float, Attempt | None]:
    rows = Attempt.objects.filter(job_id=job.id)
    return rows.aggregate(in_all=Sum("gpu_seconds"))["in_all"] or 0.0, rows.order_by("-number").first()


def _seconds(begin: datetime, end: datetime) -> float:
    return max(0.0, (end - begin).total_seconds())
