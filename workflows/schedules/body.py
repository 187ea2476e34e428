"""The JSON of a schedule: its fields, and their checks against each other. Targets are checked by
`workflows.schedules.operations`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Annotated, Any

from django.conf import settings
from pydantic import Field

from foundation.http_api.json_body import (
    Body,
    JsonObject,
    Name,
    Time,
    Whole,
    about,
    choices,
    pointer_to,
)
from foundation.http_api.problems import FieldError
from jobs.submission.request import DEFAULT_PRIORITY, CallbackUrl, Priority, Tags
from workflows.definition.limits import expression_limits
from workflows.schedules.domain.policy import CatchUp, Overlap
from workflows.schedules.domain.target import template_errors
from workflows.schedules.domain.timetable import CronRefused, UnknownTimezone, check_cron, zone_of

MAX_SECONDS = 366 * 86_400.0
_Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]
MAX_AHEAD = timedelta(days=366 * 20)
"""Longest time until `at`, `start_at` and `end_at`."""


class WorkflowTarget(Body):
    """A run to start at each due time."""

    name: Annotated[Name, about("The workflow.")]
    inputs: Annotated[Any, about("Inputs of the run: JSON with references to `due_at` and `last`.")] = None
    version: Annotated[Annotated[int, Whole(1)] | None, about("Default: the newest at the due time.")] = None
    priority: Annotated[Priority, about("Of all its jobs: 1 (first) to 9 (last); true means 2.")] = (
        DEFAULT_PRIORITY
    )
    deadline_seconds: Annotated[_Seconds | None, about("Of the run, from its start.")] = None
    tags: Annotated[
        Tags | None,
        about("Of the run and of all its jobs."),
    ] = None
    callback_url: Annotated[
        CallbackUrl | None,
        about("URL that gets a signed POST (Standard Webhooks) when the run has ended."),
    ] = None


class ScheduleBody(Body):
    """When to start what. One of `cron`, `every_seconds`, `at`; one of `submit`, `workflow`."""

    name: Annotated[Name | None, about("Unique for the tenant.")] = None
    cron: Annotated[
        Annotated[str, Field(min_length=1)] | None,
        about("Five fields: minute, hour, day of month, month, day of week; up to 200 characters."),
    ] = None
    timezone: Annotated[
        Annotated[str, Field(min_length=1, max_length=64)] | None,
        about("IANA time zone of `cron`, such as Europe/Berlin. Default: UTC."),
    ] = None
    every_seconds: Annotated[_Seconds | None, about("A period, from `start_at` or the creation on.")] = None
    at: Annotated[Time | None, about("One time.")] = None
    submit: Annotated[
        JsonObject | None,
        about(
            "The body of a submit. Its `payload` may have references to `due_at` and `last.output`; it has "
            "no `run_at`."
        ),
    ] = None
    workflow: Annotated[WorkflowTarget | None, about("A run of a workflow, in place of `submit`.")] = None
    overlap: Annotated[
        Annotated[str, choices(Overlap)] | None,
        about("What a firing does while an earlier one has not ended. Default: skip."),
    ] = None
    catch_up: Annotated[
        Annotated[str, choices(CatchUp)] | None,
        about("Which due times are started that came while the dispatcher was down. Default: last."),
    ] = None
    catch_up_seconds: Annotated[
        _Seconds | None, about("Due times that are more than this late are missed. Default: 3600.")
    ] = None
    jitter_seconds: Annotated[
        Annotated[float, Field(ge=0, le=86_400)] | None,
        about("Longest delay of a start; computed from the name, so the same for all of a schedule."),
    ] = None
    start_at: Annotated[Time | None, about("No due times before.")] = None
    end_at: Annotated[Time | None, about("No due times after.")] = None
    pause_after_failures: Annotated[
        Annotated[int, Whole(1, 1_000)] | None,
        about("Failures in a row after which the schedule is paused."),
    ] = None


class NewSchedule(ScheduleBody):
    """A schedule to create."""

    name: Annotated[Name, about("Unique for the tenant; not `preview`.")]


class Backfill(Body):
    """A time span whose due times are started now."""

    from_: Annotated[Time, Field(alias="from"), about("First due time, inclusive.")]
    to: Annotated[Time, about("Last due time, inclusive.")]
    parallel: Annotated[
        bool, about("Start them without waiting for each other. Default: one after the other.")
    ] = False
    dry_run: Annotated[bool, about("Only count the due times.")] = False


class SchedulePause(Body):
    """How to pause a schedule."""

    until: Annotated[Time | None, about("When it goes on by itself. Default: when it is resumed.")] = None
    reason: Annotated[Annotated[str, Field(max_length=200)] | None, about("Is shown.")] = None


def target_of(body: ScheduleBody) -> dict[str, Any]:
    """Return the target as it is stored."""
    if body.submit is not None:
        return {"submit": body.submit}
    assert body.workflow is not None
    return {"workflow": body.workflow.model_dump(exclude_none=True)}


def body_errors(body: ScheduleBody, now: datetime) -> Iterator[FieldError]:
    """Yield the errors of a schedule's fields, without those of its target's content."""
    kinds = [name for name in ("cron", "every_seconds", "at") if getattr(body, name) is not None]
    if len(kinds) != 1:
        place = f"/{kinds[1]}" if kinds else ""
        yield FieldError(place, "one_of", "Give one of cron, every_seconds and at.")
    if (body.submit is None) == (body.workflow is None):
        place = "/workflow" if body.submit is not None else ""
        yield FieldError(place, "one_of", "Give either submit or workflow: what the schedule starts.")
    yield from _time_errors(body, now)
    if body.submit is not None and body.submit.get("run_at") is not None:
        yield FieldError("/submit/run_at", "not_allowed", "The schedule decides when the job starts.")
    if (body.submit is None) != (body.workflow is None):
        for error in template_errors(target_of(body), expression_limits()):
            yield FieldError(pointer_to(*error.path), "invalid_reference", str(error))


def _time_errors(body: ScheduleBody, now: datetime) -> Iterator[FieldError]:
    limits = settings.DISPATCHER
    if body.cron is not None:
        try:
            check_cron(body.cron)
        except CronRefused as refused:
            yield FieldError("/cron", "invalid_cron", str(refused))
    if body.timezone is not None:
        if body.cron is None:
            yield FieldError("/timezone", "not_allowed", "Only cron has a time zone.")
        try:
            zone_of(body.timezone)
        except UnknownTimezone as unknown:
            yield FieldError("/timezone", "unknown_timezone", str(unknown))
    least = limits.schedule_min_seconds
    if body.every_seconds is not None and body.every_seconds < least:
        setting = "DISPATCHER_SCHEDULE_MIN_SECONDS"
        yield FieldError("/every_seconds", "out_of_range", f"Must be at least {least:g} ({setting}).")
    most = limits.schedule_catch_up_seconds
    if body.catch_up_seconds is not None and body.catch_up_seconds > most:
        setting = "DISPATCHER_SCHEDULE_CATCH_UP_SECONDS"
        yield FieldError("/catch_up_seconds", "out_of_range", f"Must be at most {most:g} ({setting}).")
    for name in ("at", "start_at", "end_at"):
        time = getattr(body, name)
        if time is not None and time > now + MAX_AHEAD:
            yield FieldError(f"/{name}", "out_of_range", "Must be at most 20 years ahead.")
    if body.at is not None and (body.start_at is not None or body.end_at is not None):
        place = "/start_at" if body.start_at is not None else "/end_at"
        yield FieldError(place, "not_allowed", "One time has no start and no end.")
    if body.start_at is not None and body.end_at is not None and body.end_at < body.start_at:
        yield FieldError("/end_at", "out_of_range", "Must not be before start_at.")
