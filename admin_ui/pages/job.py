"""A job's own page: state and timeline, live until the job ends, then payload, result, events and callbacks.

The number of queries is bounded: the page reads the latest attempts and events, not all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.db.models import Prefetch
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern
from django.utils import timezone

from admin_ui.pages.job_folds import EventRow, LaneRow, fold_events, fold_lanes
from admin_ui.pages.job_log import job_log
from admin_ui.pages.job_timeline import Timeline, timeline
from admin_ui.parts.base_pages import sees_payloads
from admin_ui.parts.row_page import RowPage
from admin_ui.parts.viewer import SHOWN_TYPES, Media, Shown, erased_mark, find_media, one_line_json, show_json
from artifacts.refs import BadRef, TooManyRefs, find_refs
from gpus.models import ModelConfig
from jobs import ports
from jobs.api.representations import job_json, nodes_of_jobs, summary_json
from jobs.domain.access import VIEW_PAYLOAD
from jobs.domain.states import JobState, is_final
from jobs.events.hub import PROGRESS_EVENTS, shown_data
from jobs.events.log_lines import LOG_EVENT
from jobs.models import Attempt, Callback, CallbackTry, Event, Job, Timings
from jobs.operations.explain_job import Explanation, explain_job
from jobs.reports.progress import Reported, partial_output_of, progress_of
from jobs.transitions import WAITING

MAX_LANES = 100
MAX_EVENTS = 400
EVENTS_LISTED = 50
NEWS_LISTED = 10
"""Progress and partial output events listed: a run may send hundreds, and the timeline needs none."""
OUTPUT_SHOWN = 20_000
"""Characters of a run's output so far."""
MAX_CALLBACKS = 10
ARTIFACTS_LISTED = 20
RERUNS_LISTED = 5
_LARGE_FIELDS = ("payload", "result", "metadata")
_STATIC_ONLY = "default-src 'none'; sandbox"


@dataclass(frozen=True, slots=True)
class Course:
    """The job's state and history. The page reads them again every two seconds until the job has ended.

    rows: of the timeline. earlier: number of attempts before the first lane. progress, output: of the running
    attempt; None if it has reported none. retries_left: counted retries that the job still has; None if its
    model is no longer registered.
    """

    job: Job
    timeline: Timeline
    rows: list[LaneRow]
    events: list[Event]
    earlier: int
    timings: Timings
    progress: Reported | None
    output: str | None
    is_over: bool
    retries_left: int | None


@dataclass(frozen=True, slots=True)
class Value:
    """A payload, result or metadata as the page shows it. name: also part of the URLs of embedded media.
    artifacts: ids of those that it refers to, `ARTIFACTS_LISTED` at most. erased: of `erased_mark`."""

    name: str
    title: str
    json: Shown
    media: list[Media]
    artifacts: list[str]
    erased: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class Step:
    """An event, or the events of folded attempts. data: of the event; None if it has none."""

    row: EventRow
    data: Shown | None


def course(job: Job, *, now: datetime, with_output: bool = True) -> Course:
    """Read a job's latest attempts and events, and draw its timeline up to `now`.

    with_output: True if the user may see payloads and results."""
    attempts = list(Attempt.objects.filter(job_id=job.id).order_by("-number")[:MAX_LANES])[::-1]
    moves = Event.objects.filter(job_id=job.id).exclude(type__in=PROGRESS_EVENTS)
    events = list(moves.order_by("-seq")[:MAX_EVENTS])[::-1]
    over = is_final(JobState(job.state))
    shown = timeline(attempts, events, now=now)
    progress = progress_of(job)
    limit = job.max_retries
    if limit is None:
        limit = ModelConfig.objects.filter(name=job.model).values_list("max_retries", flat=True).first()
    return Course(
        job=job,
        timeline=shown,
        rows=fold_lanes(shown.lanes),
        events=events,
        earlier=attempts[0].number - 1 if attempts else 0,
        timings=job.timings(attempts, now),
        progress=progress if with_output or progress is None else replace(progress, text=""),
        output=output_text(job) if with_output else None,
        is_over=over,
        retries_left=max(limit - job.tries, 0) if limit is not None else None,
    )


def values(job: Job, *, host: str) -> list[Value]:
    """Return the result and the payload, as far as the job has them. host: our own; its images are shown."""
    named = (("result", "Result", job.result), ("payload", "Payload", job.payload))
    return [_value(name, title, value, host) for name, title, value in named if value is not None]


def output_text(job: Job) -> str | None:
    """Return the end of a running job's output so far, `OUTPUT_SHOWN` characters; None without output."""
    found = partial_output_of(job)
    if found is None:
        return None
    text = "".join(map(_piece_text, found.pieces)).strip("\n")
    return text if len(text) <= OUTPUT_SHOWN else f"…{text[-OUTPUT_SHOWN:]}"


def _piece_text(piece: Any) -> str:
    """Return a text as it is, an object whose only value is a text under its name, other values as JSON."""
    if isinstance(piece, str):
        return piece
    if isinstance(piece, dict) and len(piece) == 1:
        ((name, value),) = piece.items()
        if isinstance(value, str):
            return f"\n[{name}]\n{value}\n"
    return f"\n{one_line_json(piece)}\n"


def steps(course: Course, *, with_output: bool) -> list[Step]:
    """Return the latest events, newest first, among them the last `NEWS_LISTED` progress events.

    Those of folded attempts are one row. with_output: True if the user may see payloads and results.
    """
    job, events = course.job, course.events
    reported = PROGRESS_EVENTS - {LOG_EVENT}  # log lines have a pane of their own
    news = Event.objects.filter(job_id=job.id, type__in=reported).order_by("-seq")[:NEWS_LISTED]
    rows = fold_events(sorted([*events, *news], key=lambda event: event.seq), course.timeline.lanes)
    return [_step(row, with_output=with_output) for row in rows[: -EVENTS_LISTED - 1 : -1]]


def _step(row: EventRow, *, with_output: bool) -> Step:
    event = row.events[0]
    if row.is_folded or not event.data:
        return Step(row, None)
    return Step(row, show_json(shown_data(event.type, event.data, with_output=with_output)))


def callbacks(job: Job) -> list[Callback]:
    """Return the job's callbacks, latest round first, each with `tries_made`: its delivery log, newest
    first."""
    log = Prefetch("log", queryset=CallbackTry.objects.order_by("-number"), to_attr="tries_made")
    rows = Callback.objects.filter(job_id=job.id).defer("body").order_by("-round").prefetch_related(log)
    return list(rows[:MAX_CALLBACKS])


def api_json(job: Job, *, with_output: bool) -> dict[str, Any]:
    """Return the job as the API does, without the result, which has a section of its own."""
    node = nodes_of_jobs([job], ports.production_ports()).get(job.id)
    return {**summary_json(job, node=node, with_result=with_output)}


def embedded(job: Job, name: str, place: int, *, host: str) -> Media | None:
    """Return the embedded file number `place` that `values` found. name: payload or result."""
    if name not in ("payload", "result"):
        return None
    found = find_media(getattr(job, name), host=host)
    media = found[place] if place < len(found) else None
    return media if media is not None and media.is_embedded else None


def _value(name: str, title: str, value: Any, host: str) -> Value:
    return Value(
        name, title, show_json(value), find_media(value, host=host), _artifacts_in(value), erased_mark(value)
    )


def _artifacts_in(value: Any) -> list[str]:
    try:
        return list(find_refs(value, settings.DISPATCHER.max_artifact_refs))[:ARTIFACTS_LISTED]
    except (BadRef, TooManyRefs):
        return []


def why(job: Job) -> Explanation | None:
    """Return the reasons why the job waits; None if it does not wait."""
    if job.state not in WAITING:
        return None
    return explain_job(job, ports.production_ports())


class JobDetail(RowPage):
    """Mixin of the jobs' admin: the job's page."""

    row_template = "admin_ui/job/page.html"

    def get_urls(self) -> list[URLPattern]:
        views = self.routes(
            ("<str:job_id>/live/", self.live, "jobs_job_live"),
            ("<str:job_id>/raw/<str:name>/", self.raw, "jobs_job_raw"),
            ("<str:job_id>/media/<str:name>/<int:place>/", self.media_of, "jobs_job_media"),
        )
        return [*views, *super().get_urls()]

    def find_row(self, row_id: str, *deferred: str) -> Job | None:
        return Job.objects.select_related("tenant").defer(*deferred).filter(id=row_id).first()

    def live(self, request: HttpRequest, job_id: str) -> HttpResponse:
        """The live part as a fragment; with the rest of the page if the job has events after `?seq=`."""
        self.require_view(request)
        job = self.row_or_404(job_id, *_LARGE_FIELDS)
        context = self._course(request, job)
        templates = ["admin_ui/job/live.html"]
        if request.GET.get("seq") != str(job.event_seq):
            context = {**self.page_context(request, self.row_or_404(job_id)), "swapped": True}
            templates = ["admin_ui/job/live_and_detail.html"]
        return TemplateResponse(request, templates, context)

    def raw(self, request: HttpRequest, job_id: str, name: str) -> HttpResponse:
        """A JSON download. name: payload, result, metadata, or job for the whole job."""
        self.require_view(request)
        job, may_see = self.row_or_404(job_id), sees_payloads(request)
        if name in ("payload", "result") and not may_see:
            raise PermissionDenied
        known = {"payload": job.payload, "result": job.result, "metadata": job.metadata}
        if name != "job" and name not in known:
            raise Http404
        if name == "job":
            shown: Any = job_json(
                job,
                timezone.now(),
                node=nodes_of_jobs([job], ports.production_ports()).get(job.id),
                with_result=may_see,
                in_full=True,
            )
        else:
            shown = known[name]
        return HttpResponse(
            json.dumps(shown, indent=1),
            content_type="application/json",
            headers={"Content-Disposition": f'attachment; filename="{job.id}-{name}.json"'},
        )

    def media_of(self, request: HttpRequest, job_id: str, name: str, place: int) -> HttpResponse:
        """An embedded file, with its own content type; types that a browser might run come as a download."""
        self.require_view(request)
        if not sees_payloads(request):
            raise PermissionDenied
        job = self.row_or_404(job_id, *(field for field in _LARGE_FIELDS if field != name))
        media = embedded(job, name, place, host=request.get_host())
        if media is None:
            raise Http404
        try:
            content = media.decoded()
        except ValueError:
            raise Http404 from None
        shown = media.content_type in SHOWN_TYPES
        return HttpResponse(
            content,
            content_type=media.content_type if shown else "application/octet-stream",
            headers={
                "Content-Disposition": "inline" if shown else f'attachment; filename="{job_id}-{place}"',
                "Content-Security-Policy": _STATIC_ONLY,
                "X-Content-Type-Options": "nosniff",
                "Cache-Control": "private, max-age=3600",
            },
        )

    def _course(self, request: HttpRequest, job: Job) -> dict[str, Any]:
        allowed = self.get_actions_detail(request, job.id)
        buttons = self._get_actions_navigation(self.actions_detail, allowed, job.id)
        return {
            "job": job,
            "course": course(job, now=timezone.now(), with_output=sees_payloads(request)),
            "buttons": buttons,
            "why": why(job),
            "may_rerun": request.user.has_perms(("jobs.change_job", VIEW_PAYLOAD)),
            "reruns": list(Job.objects.filter(rerun_of=job.id).values_list("id", flat=True)[:RERUNS_LISTED]),
        }

    def page_context(self, request: HttpRequest, job: Job) -> dict[str, Any]:
        context, may_see = self._course(request, job), sees_payloads(request)
        return context | {
            "values": values(job, host=request.get_host()) if may_see else [],
            "payloads_hidden": not may_see,
            "metadata": show_json(job.metadata),
            "log": job_log(request, job.id),
            "steps": steps(context["course"], with_output=may_see),
            "callbacks": callbacks(job),
            "raw": show_json(api_json(job, with_output=may_see)),
        }
