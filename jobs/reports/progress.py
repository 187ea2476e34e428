"""Progress and partial output of running jobs, read from the events that their runs write.

A job that does not run has neither: a new attempt starts again, and after the end the result counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import OuterRef, Subquery

from jobs.domain.partial_output import join_pieces
from jobs.domain.states import JobState
from jobs.models import Event, Job

SHOWN_PROGRESS = "shown_progress"
"""Attribute of a `Job` for progress that was read with it."""


@dataclass(frozen=True, slots=True)
class Reported:
    """Progress of a job's current attempt. value: 0 to 1. text: one line about it, may be empty."""

    value: float
    text: str
    at: datetime


@dataclass(frozen=True, slots=True)
class PartialOutput:
    """Output of a job's current attempt so far. pieces: consecutive texts are joined. left_out: number of
    pieces beyond the limits of events."""

    pieces: list[Any]
    left_out: int


def read_progress(jobs: Iterable[Job]) -> None:
    """Set the attribute `SHOWN_PROGRESS` of each job: one query for all of them, none if none runs."""
    running: dict[str, Job] = {}
    for job in jobs:
        setattr(job, SHOWN_PROGRESS, None)
        if job.state == JobState.RUNNING:
            running[job.id] = job
    if not running:
        return
    latest = Event.objects.filter(job_id=OuterRef("pk"), type="progress").order_by("-seq").values("pk")[:1]
    ids = Job.objects.filter(id__in=running).order_by().values_list(Subquery(latest))
    for event in Event.objects.filter(pk__in=ids).order_by():
        job = running[event.job_id]
        if event.data.get("attempt") == job.attempts_made:
            setattr(job, SHOWN_PROGRESS, _reported(event))


def progress_of(job: Job) -> Reported | None:
    """Return the latest progress of a running job's attempt; queried unless `read_progress` has read it."""
    if not hasattr(job, SHOWN_PROGRESS):
        read_progress([job])
    found: Reported | None = getattr(job, SHOWN_PROGRESS)
    return found


def partial_output_of(job: Job) -> PartialOutput | None:
    """Return the output of a running job's attempt so far; None if it has sent none."""
    if job.state != JobState.RUNNING:
        return None
    rows = Event.objects.filter(job_id=job.id, type="partial", data__attempt=job.attempts_made)
    data = list(rows.order_by("seq").values_list("data", flat=True))
    if not data:
        return None
    pieces = join_pieces(piece for one in data for piece in one.get("output", ()))
    return PartialOutput(pieces, sum(one.get("left_out", 0) for one in data))


def _reported(event: Event) -> Reported:
    return Reported(float(event.data["progress"]), str(event.data.get("text", "")), event.at)
