"""Views of schedules and their firings."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response
from typing_extensions import TypedDict

from foundation.http_api.json_body import JsonObject, about, choices, read_body
from foundation.http_api.openapi import Instant, described
from foundation.http_api.parameters import (
    PARAMETERS,
    CursorPages,
    NamePages,
    allow_only,
    choice_parameter,
    whole_parameter,
)
from foundation.http_api.problems import FieldError, Problem, validation_problem
from foundation.ids import ID_PATTERN
from gpus.api.answers import page_of
from gpus.api.base import is_name, read_optional_body
from jobs.api.base import JobView, operator_of, principal_of, tenant_of
from jobs.api.submit import IDEMPOTENCY, idempotency_key, replay_headers
from jobs.domain.access import Scope, may_see_payloads
from workflows.api.runs import max_start_bytes
from workflows.domain.errors import UnknownSchedule
from workflows.schedules import backlog as backlogs
from workflows.schedules.body import Backfill, NewSchedule, ScheduleBody, SchedulePause
from workflows.schedules.domain.policy import CatchUp, Outcome, Overlap
from workflows.schedules.domain.target import template_of
from workflows.schedules.execution.fire import is_paused
from workflows.schedules.models import Firing, Schedule
from workflows.schedules.operations.backfill import backfill, cancel_backfills
from workflows.schedules.operations.fire_times import (
    PREVIEW_MOST,
    fire_times,
    fire_times_if_resumed,
    shown_next_due_at,
    times_in_words,
)
from workflows.schedules.operations.fire_times import FireTime as DueTime
from workflows.schedules.operations.pause import pause_schedule, resume_schedule
from workflows.schedules.operations.read import read_schedule
from workflows.schedules.operations.request_keys import RequestKey
from workflows.schedules.operations.store import as_if_stored, create_schedule, delete_schedule, put_schedule
from workflows.schedules.operations.trigger import trigger

SHOWN_NEXT = 10
NAME = OpenApiParameter("name", str, OpenApiParameter.PATH, description="The schedule's name.")
COUNT = OpenApiParameter(
    "n",
    {"type": "integer", "minimum": 1, "maximum": PREVIEW_MOST},
    description="How many fire times.",
)
PREVIEW = "preview"
"""A name that the path of previews takes."""


class FireTime(TypedDict):
    due_at: Instant
    fires_at: Annotated[Instant, about("With the jitter.")]
    local: Annotated[str, about("The due time in the schedule's time zone.")]


class ScheduleError(TypedDict):
    code: str
    message: str


class ScheduleUrls(TypedDict):
    self: str
    firings: str


class ScheduleSummary(TypedDict):
    """A schedule in a list."""

    name: str
    cron: str | None
    timezone: str | None
    every_seconds: float | None
    at: Instant | None
    words: Annotated[str, about("The due times in words.")]
    overlap: Annotated[str, choices(Overlap)]
    catch_up: Annotated[str, choices(CatchUp)]
    catch_up_seconds: float
    jitter_seconds: float
    start_at: Instant | None
    end_at: Instant | None
    pause_after_failures: int | None
    paused: bool
    paused_until: Instant | None
    pause_reason: str | None
    failures: Annotated[int, about("Ends in a row that failed.")]
    error: Annotated[ScheduleError | None, about("Why it has no due time, such as an unknown time zone.")]
    next_due_at: Instant | None
    created_at: Instant
    updated_at: Instant
    urls: ScheduleUrls


class BacklogFiring(TypedDict):
    """A firing under way that others wait for."""

    due_at: Instant
    job_id: str | None
    run_id: str | None


class BacklogLane(TypedDict):
    """Firings that wait for each other."""

    waiting: int
    first_due_at: Annotated[Instant, about("Of the one that starts next.")]
    waits_for: Annotated[list[BacklogFiring], about("At most five; none: it is about to start.")]
    message: str


class Backlog(TypedDict):
    """Firings that wait, by the timetable and of backfills."""

    own: BacklogLane | None
    backfills: BacklogLane | None


class ShownSchedule(ScheduleSummary):
    """A schedule."""

    submit: Annotated[JsonObject | None, about("Without payload where the key may not see payloads.")]
    workflow: Annotated[JsonObject | None, about("Without inputs where the key may not see payloads.")]
    next: Annotated[list[FireTime], about("The next ten fire times; none while it is paused without an end.")]
    backlog: Annotated[Backlog | None, about("Null: no firing waits.")]


class Preview(TypedDict):
    """Fire times."""

    words: str
    paused: Annotated[bool, about("Without an end: `next` has the fire times if it were resumed now.")]
    next: list[FireTime]


class ShownFiring(TypedDict):
    """The outcome of a due time, or of several due times in a row."""

    firing_id: str
    due_at: Instant
    until_at: Annotated[Instant | None, about("The last one, of a row for several due times.")]
    count: int
    outcome: Annotated[str, choices(Outcome)]
    reason: str | None
    detail: str | None
    cause: Annotated[str, about("timetable, or request: a trigger or a backfill.")]
    by: str | None
    job_id: str | None
    run_id: str | None
    at: Annotated[Instant, about("When it was decided.")]
    ended_at: Instant | None
    end_state: str | None


class Backfilled(TypedDict):
    count: int
    first: Instant
    last: Instant


class CancelledBackfills(TypedDict):
    count: Annotated[int, about("Firings that waited; 0: none did.")]


SchedulePage = page_of(ScheduleSummary)
FiringPage = page_of(ShownFiring)


class FiringPages(CursorPages):
    ordering = "-id"
    position = ID_PATTERN


class ScheduleView(JobView):
    """Base of the views of schedules, which belong to the key's tenant."""

    needs = {
        "GET": "schedules.view_schedule",
        "POST": "schedules.change_schedule",
        "PUT": "schedules.add_schedule",
        "DELETE": "schedules.delete_schedule",
    }
    scopes = {"GET": Scope.READ, "POST": Scope.SUBMIT, "PUT": Scope.SUBMIT, "DELETE": Scope.SUBMIT}

    def read(self, request: Request, name: str, body: ScheduleBody) -> Schedule:
        """Return the row of a body, checked and not saved."""
        if name == PREVIEW:
            error = FieldError("/name", "invalid", f"{PREVIEW} is reserved; give it another name.")
            raise validation_problem([error])
        return read_schedule(
            tenant_of(request), name, body, ports=self.ports, key_models=principal_of(request).models
        )

    def shown(self, request: Request, schedule: Schedule) -> dict[str, Any]:
        now = self.ports.clock.now()
        return schedule_json(schedule, now, with_payload=may_see_payloads(principal_of(request)))


class Schedules(ScheduleView):
    max_body_bytes = staticmethod(max_start_bytes)

    @described(
        "list_schedules",
        "Your schedules by name",
        answers={200: SchedulePage},
        refusals=(400, 403),
        parameters=PARAMETERS,
        tag="schedules",
    )
    def get(self, request: Request) -> Response:
        allow_only(request, ("cursor", "limit"))
        pages, now = NamePages(), self.ports.clock.now()
        rows = Schedule.objects.filter(tenant_id=tenant_of(request))
        page = pages.paginate_queryset(rows, request, view=self) or []
        return pages.get_paginated_response([summary_json(row, now) for row in page])

    @described(
        "create_schedule",
        "Create a schedule",
        answers={201: ShownSchedule},
        refusals=(403, 409, 413),
        body=NewSchedule,
        tag="schedules",
    )
    def post(self, request: Request) -> Response:
        body = read_body(NewSchedule, request.data)
        schedule = create_schedule(self.read(request, body.name, body), operator_of(request))
        return Response(self.shown(request, schedule), status=201)


class PreviewNew(ScheduleView):
    max_body_bytes = staticmethod(max_start_bytes)
    scopes = {"POST": Scope.READ}

    @described(
        "preview_new_schedule",
        "The next fire times of a schedule that is not stored",
        answers={200: Preview},
        refusals=(400, 403, 413),
        body=ScheduleBody,
        parameters=(COUNT,),
        tag="schedules",
        description="With the `name` of a stored one: as if this body replaced it. A jitter needs a name.",
    )
    def post(self, request: Request) -> Response:
        allow_only(request, ("n",))
        body = read_body(ScheduleBody, request.data)
        if body.jitter_seconds and body.name is None:
            text = "Give the name: the jitter is computed from it."
            raise validation_problem([FieldError("/name", "required", text)])
        schedule = self.read(request, body.name or "unnamed", body)
        if body.name is not None:
            schedule = as_if_stored(schedule)
        return Response(preview_json(schedule, request, self.ports.clock.now()))


class ScheduleDetail(ScheduleView):
    max_body_bytes = staticmethod(max_start_bytes)

    @described(
        "get_schedule",
        "A schedule with its next fire times",
        answers={200: ShownSchedule},
        refusals=(403, 404),
        parameters=(NAME,),
        tag="schedules",
    )
    def get(self, request: Request, name: str) -> Response:
        return Response(self.shown(request, own_schedule(request, name)))

    @described(
        "put_schedule",
        "Create or replace a schedule",
        answers={200: ShownSchedule, 201: ShownSchedule},
        refusals=(403, 404, 409, 413),
        body=ScheduleBody,
        parameters=(NAME,),
        tag="schedules",
        description="201: it is new. Due times that have come are not repeated by a change.",
    )
    def put(self, request: Request, name: str) -> Response:
        if not is_name(name):
            raise UnknownSchedule
        body = read_body(ScheduleBody, request.data)
        if body.name not in (None, name):
            error = FieldError("/name", "invalid", "The name in the body is not the one in the URL.")
            raise validation_problem([error])
        stored = put_schedule(self.read(request, name, body), operator_of(request))
        return Response(self.shown(request, stored.schedule), status=201 if stored.is_new else 200)

    @described(
        "delete_schedule",
        "Delete a schedule and its firings",
        answers={204: None},
        refusals=(403, 404),
        parameters=(NAME,),
        tag="schedules",
        description="Jobs and runs that it started go on.",
    )
    def delete(self, request: Request, name: str) -> Response:
        delete_schedule(own_schedule(request, name), operator_of(request))
        return Response(status=204)


class PreviewStored(ScheduleView):
    @described(
        "preview_schedule",
        "The next fire times of a schedule",
        answers={200: Preview},
        refusals=(400, 403, 404),
        parameters=(NAME, COUNT),
        tag="schedules",
    )
    def get(self, request: Request, name: str) -> Response:
        allow_only(request, ("n",))
        return Response(preview_json(own_schedule(request, name), request, self.ports.clock.now()))


class Trigger(ScheduleView):
    @described(
        "trigger_schedule",
        "Start the target of a schedule now",
        answers={202: ShownFiring},
        refusals=(403, 404, 429),
        parameters=(NAME, IDEMPOTENCY),
        tag="schedules",
        description="Also while the schedule is paused or an earlier firing runs. A refused target is an "
        "error, and leaves no firing.",
    )
    def post(self, request: Request, name: str) -> Response:
        schedule = own_schedule(request, name)
        key = idempotency_key(request.headers.get("Idempotency-Key"))
        done = trigger(
            schedule,
            by=principal_of(request).name,
            ports=self.ports,
            operator=operator_of(request),
            idempotency_key=None if key is None else RequestKey(key),
            key_models=principal_of(request).models,
        )
        return Response(firing_json(done.firing), status=202, headers=replay_headers(done.replayed))


class StartBackfill(ScheduleView):
    @described(
        "backfill_schedule",
        "Start the due times of a time span again",
        answers={200: Backfilled, 202: Backfilled},
        refusals=(403, 404, 429),
        body=Backfill,
        parameters=(NAME, IDEMPOTENCY),
        tag="schedules",
        description="They are counted first: more than the limit are refused. 200: `dry_run` only counts.",
    )
    def post(self, request: Request, name: str) -> Response:
        schedule = own_schedule(request, name)
        key = idempotency_key(request.headers.get("Idempotency-Key"))
        body = read_body(Backfill, request.data)
        done = backfill(
            schedule,
            body.from_,
            body.to,
            by=principal_of(request).name,
            ports=self.ports,
            parallel=body.parallel,
            dry_run=body.dry_run,
            operator=operator_of(request),
            idempotency_key=None if key is None else RequestKey(key),
            key_models=principal_of(request).models,
        )
        answer = {"count": len(done.dues), "first": done.dues[0], "last": done.dues[-1]}
        status = 200 if body.dry_run else 202
        return Response(answer, status=status, headers=replay_headers(done.replayed))


class CancelBackfills(ScheduleView):
    @described(
        "cancel_backfills",
        "Cancel a schedule's backfills that wait",
        answers={200: CancelledBackfills},
        refusals=(403, 404),
        parameters=(NAME,),
        tag="schedules",
        description="Their firings that wait become `skipped` with the reason `cancelled`. What was started "
        "goes on.",
    )
    def post(self, request: Request, name: str) -> Response:
        count = cancel_backfills(own_schedule(request, name), ports=self.ports, operator=operator_of(request))
        return Response({"count": count})


class PauseSchedule(ScheduleView):
    @described(
        "pause_schedule",
        "Start nothing by this schedule",
        answers={200: ShownSchedule},
        refusals=(403, 404, 409),
        body=SchedulePause,
        body_required=False,
        parameters=(NAME,),
        tag="schedules",
        description="Its due times are skipped, until `until` or until it is resumed.",
    )
    def post(self, request: Request, name: str) -> Response:
        schedule = own_schedule(request, name)
        body = read_optional_body(SchedulePause, request.data or None)
        paused = pause_schedule(
            schedule,
            ports=self.ports,
            until=body.until,
            reason=body.reason or "",
            operator=operator_of(request),
        )
        return Response(self.shown(request, paused))


class ResumeSchedule(ScheduleView):
    @described(
        "resume_schedule",
        "Resume a schedule",
        answers={200: ShownSchedule},
        refusals=(403, 404, 409),
        parameters=(NAME,),
        tag="schedules",
    )
    def post(self, request: Request, name: str) -> Response:
        resumed = resume_schedule(
            own_schedule(request, name), ports=self.ports, operator=operator_of(request)
        )
        return Response(self.shown(request, resumed))


class Firings(ScheduleView):
    @described(
        "list_firings",
        "The outcomes of a schedule's due times, newest first",
        answers={200: FiringPage},
        refusals=(400, 403, 404),
        parameters=(
            NAME,
            OpenApiParameter("outcome", str, enum=[outcome.value for outcome in Outcome]),
            *PARAMETERS,
        ),
        tag="schedules",
    )
    def get(self, request: Request, name: str) -> Response:
        allow_only(request, ("outcome", "cursor", "limit"))
        rows = Firing.objects.filter(schedule=own_schedule(request, name))
        if outcome := choice_parameter(request, "outcome", [one.value for one in Outcome]):
            rows = rows.filter(outcome=outcome)
        pages = FiringPages()
        page = pages.paginate_queryset(rows, request, view=self) or []
        return pages.get_paginated_response([firing_json(row) for row in page])


# -- representations -----------------------------------------------------------------------------------------


def own_schedule(request: Request, name: str) -> Schedule:
    """Return a schedule of the key's tenant. Raises Problem 404."""
    tenant_id = tenant_of(request)
    found = is_name(name) and Schedule.objects.filter(tenant_id=tenant_id, name=name).first()
    if not found:
        error = FieldError("/name", "unknown_schedule", "There is no such schedule.", place="path")
        raise Problem(404, "unknown_schedule", "There is no such schedule.", errors=[error])
    return found


def times_json(times: Iterable[DueTime]) -> list[dict[str, Any]]:
    """Return the bodies of fire times."""
    return [{"due_at": one.due_at, "fires_at": one.fires_at, "local": one.local.isoformat()} for one in times]


def backlog_json(backlog: backlogs.Backlog) -> dict[str, Any] | None:
    """Return the body of a backlog; None: nothing waits."""
    if backlog == backlogs.Backlog():
        return None
    return {"own": _lane_json(backlog.own), "backfills": _lane_json(backlog.backfills)}


def _lane_json(lane: backlogs.Lane | None) -> dict[str, Any] | None:
    if lane is None:
        return None
    running = [{"due_at": one.due_at, "job_id": one.job_id, "run_id": one.run_id} for one in lane.running]
    return {
        "waiting": lane.waiting,
        "first_due_at": lane.first_due_at,
        "waits_for": running,
        "message": lane.message,
    }


def preview_json(schedule: Schedule, request: Request, now: datetime) -> dict[str, Any]:
    """Return the body of a preview; the query's `n` says how many."""
    count = whole_parameter(request, "n", most=PREVIEW_MOST, default=SHOWN_NEXT)
    return {
        "words": times_in_words(schedule),
        "paused": is_paused(schedule, now) and schedule.paused_until is None,
        "next": times_json(fire_times_if_resumed(schedule, count, now)),
    }


def summary_json(schedule: Schedule, now: datetime) -> dict[str, Any]:
    """Return the schedule's body in a list."""
    paused = is_paused(schedule, now)
    error = None
    if schedule.error_code:
        error = {"code": schedule.error_code, "message": schedule.error_message}
    return {
        "name": schedule.name,
        "cron": schedule.cron or None,
        "timezone": schedule.timezone if schedule.cron else None,
        "every_seconds": schedule.every_seconds,
        "at": schedule.at,
        "words": times_in_words(schedule),
        "overlap": schedule.overlap,
        "catch_up": schedule.catch_up,
        "catch_up_seconds": schedule.catch_up_seconds,
        "jitter_seconds": schedule.jitter_seconds,
        "start_at": schedule.start_at,
        "end_at": schedule.end_at,
        "pause_after_failures": schedule.pause_after_failures,
        "paused": paused,
        "paused_until": schedule.paused_until if paused else None,
        "pause_reason": (schedule.pause_reason or None) if paused else None,
        "failures": schedule.failures,
        "error": error,
        "next_due_at": shown_next_due_at(schedule, now),
        "created_at": schedule.created_at,
        "updated_at": schedule.updated_at,
        "urls": {
            "self": f"/api/v1/schedules/{schedule.name}",
            "firings": f"/api/v1/schedules/{schedule.name}/firings",
        },
    }


def schedule_json(schedule: Schedule, now: datetime, *, with_payload: bool) -> dict[str, Any]:
    """Return the schedule's body."""
    (kind, part), _ = template_of(schedule.target)
    shown = dict(schedule.target[str(kind)])
    if not with_payload:
        shown[str(part)] = None
    return {
        **summary_json(schedule, now),
        "submit": None,
        "workflow": None,
        str(kind): shown,
        "next": times_json(fire_times(schedule, SHOWN_NEXT, now)),
        "backlog": backlog_json(backlogs.backlog_of(schedule, now)),
    }


def firing_json(firing: Firing) -> dict[str, Any]:
    """Return the body of a firing."""
    return {
        "firing_id": firing.id,
        "due_at": firing.due_at,
        "until_at": firing.until_at,
        "count": firing.count,
        "outcome": firing.outcome,
        "reason": firing.reason or None,
        "detail": firing.detail or None,
        "cause": "request" if firing.backfill else "timetable",
        "by": firing.by or None,
        "job_id": firing.job_id,
        "run_id": firing.run_id,
        "at": firing.at,
        "ended_at": firing.ended_at,
        "end_state": (firing.end_state or None) if firing.ended_at else None,
    }
