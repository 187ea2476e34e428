"""What a job's page tells, read in a bounded number of queries: the latest attempts and events, not all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Prefetch

from admin_ui.pages.job_timeline import Timeline, timeline
from admin_ui.parts.media import Media, find_media
from admin_ui.parts.viewer import Shown, show_json
from gpus.models import ModelConfig
from jobs import ports as wiring
from jobs.api.representations import job_json
from jobs.domain.states import JobState, is_final
from jobs.events.news import NEWS, shown_data
from jobs.models import Attempt, Callback, CallbackTry, Event, Job
from jobs.operations.explain_job import Explanation, explain_job
from jobs.transitions import WAITING

MOST_LANES = 25
MOST_EVENTS = 400
EVENTS_LISTED = 50
NEWS_LISTED = 10
"""Of what runs say of themselves, which may be hundreds of events: the timeline needs none of them."""
MOST_CALLBACKS = 10


@dataclass(frozen=True, slots=True)
class Course:
    """Where the job is and how it got there; read anew every two seconds while it is not over.

    earlier: attempts before the first lane. budget: counted tries that end the job.
    waited, ran: seconds so far, None before they began.
    """

    job: Job
    timeline: Timeline
    events: list[Event]
    earlier: int
    waited: float | None
    ran: float | None
    is_over: bool
    budget: int | None


@dataclass(frozen=True, slots=True)
class Value:
    """A payload, result or metadata to look at. name: also in the addresses of what is embedded in it."""

    name: str
    title: str
    json: Shown
    media: list[Media]


@dataclass(frozen=True, slots=True)
class Step:
    """An event, and the seconds since the one that is listed before it."""

    event: Event
    since: float | None
    data: Shown | None


def course(job: Job, *, now: datetime) -> Course:
    attempts = list(Attempt.objects.filter(job_id=job.id).order_by("-number")[:MOST_LANES])[::-1]
    moves = Event.objects.filter(job_id=job.id).exclude(type__in=NEWS)
    events = list(moves.order_by("-seq")[:MOST_EVENTS])[::-1]
    over = is_final(JobState(job.state))
    begun, ended = job.started_at, job.finished_at if over else now
    limit = job.max_retries
    if limit is None:
        limit = ModelConfig.objects.filter(name=job.model).values_list("max_retries", flat=True).first()
    return Course(
        job=job,
        timeline=timeline(attempts, events, now=now),
        events=events,
        earlier=attempts[0].number - 1 if attempts else 0,
        waited=((begun or ended or now) - job.created_at).total_seconds(),
        ran=(ended - begun).total_seconds() if begun and ended else None,
        is_over=over,
        budget=limit + 1 if limit is not None else None,
    )


def values(job: Job, *, host: str) -> list[Value]:
    """host: our own, whose images may be shown."""
    named = (("result", "Result", job.result), ("payload", "Payload", job.payload))
    return [_value(name, title, value, host) for name, title, value in named if value is not None]


def steps(job: Job, events: list[Event], *, with_output: bool) -> list[Step]:
    """events: of the course. The latest first, with the last words of the runs among them. with_output:
    whether who reads them may see payloads and results."""
    news = Event.objects.filter(job_id=job.id, type__in=NEWS).order_by("-seq")[:NEWS_LISTED]
    listed = sorted([*events[-EVENTS_LISTED:], *news], key=lambda event: event.seq)
    before = [None, *listed]
    told = [
        Step(
            event,
            (event.at - last.at).total_seconds() if last is not None else None,
            show_json(shown_data(event.type, event.data, with_output=with_output)) if event.data else None,
        )
        for last, event in zip(before, listed, strict=False)
    ]
    return told[::-1]


def callbacks(job: Job) -> list[Callback]:
    """The latest round first, each with `tries_made`, the last of its log first."""
    log = Prefetch("log", queryset=CallbackTry.objects.order_by("-number"), to_attr="tries_made")
    rows = Callback.objects.filter(job_id=job.id).defer("body").order_by("-round").prefetch_related(log)
    return list(rows[:MOST_CALLBACKS])


def as_clients_read_it(job: Job) -> dict[str, Any]:
    """Without the result, which has its own place on the page."""
    told = job_json(job)
    del told["result"], told["result_hidden"]
    return told


def embedded(job: Job, name: str, place: int, *, host: str) -> Media | None:
    """What `values` showed at that place of the payload or result."""
    if name not in ("payload", "result"):
        return None
    found = find_media(getattr(job, name), host=host)
    media = found[place] if place < len(found) else None
    return media if media is not None and media.is_embedded else None


def _value(name: str, title: str, value: Any, host: str) -> Value:
    return Value(name, title, show_json(value), find_media(value, host=host))


def why(job: Job) -> Explanation | None:
    """Why it waits; None if it does not."""
    if job.state not in WAITING:
        return None
    return explain_job(job, wiring.production_ports())
