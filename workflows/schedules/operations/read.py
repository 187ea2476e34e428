"""Reads and checks the body of a schedule."""

from __future__ import annotations

from typing import Any

from django.conf import settings

from foundation.http_api.problems import FieldError, Problem, validation_problem
from jobs.callbacks.guard import check_callback_url, refused_origins
from jobs.domain.errors import ModelNotAllowed, PayloadInvalid, Refused
from jobs.ports import Ports
from jobs.submission.request import Allowed, check_request, read_request
from workflows.definition.read import read_definition
from workflows.domain.errors import UnknownSchedule, UnknownWorkflow
from workflows.domain.template import Unresolved
from workflows.execution.model_access import KeyModels, refuse_models, stored_models
from workflows.execution.runs import check_inputs, find_version
from workflows.schedules.body import ScheduleBody, body_errors, target_of
from workflows.schedules.domain.policy import CatchUp, Overlap
from workflows.schedules.domain.target import DUE_AT, LAST, SUBMIT, WORKFLOW, names_used, resolved
from workflows.schedules.execution.fire import next_look
from workflows.schedules.execution.launch import text_of
from workflows.schedules.models import Schedule

_CATCH_UP_SECONDS = 3600.0
"""Where a schedule does not say: at most the limit of the settings."""


def find_schedule(tenant_id: int, name: str) -> Schedule:
    """Return a tenant's schedule. Raises UnknownSchedule."""
    found = Schedule.objects.filter(tenant_id=tenant_id, name=name).first()
    if found is None:
        raise UnknownSchedule
    return found


def read_schedule(
    tenant_id: int,
    name: str,
    body: ScheduleBody,
    *,
    ports: Ports,
    key_models: KeyModels = None,
) -> Schedule:
    """Return the row of a body, not saved, with its next due time.

    key_models: models that the API key may submit to, and the schedule may use; None: all of the tenant's.
    Raises Problem 422 with all errors.
    """
    now, limits = ports.clock.now(), settings.DISPATCHER
    errors = list(body_errors(body, now))
    if errors:
        raise validation_problem(sorted(errors, key=lambda error: error.pointer))
    schedule = Schedule(
        tenant_id=tenant_id,
        name=name,
        cron=body.cron or "",
        timezone=body.timezone or "UTC",
        every_seconds=body.every_seconds,
        at=body.at,
        anchor_at=now.replace(microsecond=0),
        target=target_of(body),
        key_models=stored_models(key_models),
        overlap=body.overlap or Overlap.SKIP.value,
        catch_up=body.catch_up or CatchUp.LAST.value,
        catch_up_seconds=body.catch_up_seconds or min(_CATCH_UP_SECONDS, limits.schedule_catch_up_seconds),
        jitter_seconds=body.jitter_seconds or 0.0,
        start_at=body.start_at,
        end_at=body.end_at,
        pause_after_failures=body.pause_after_failures,
        handled_at=now,
        created_at=now,
        updated_at=now,
    )
    set_next_due(schedule)
    _check_target(schedule, ports, key_models)
    return schedule


def set_next_due(schedule: Schedule) -> None:
    schedule.next_due_at = schedule.timetable.next_after(schedule.handled_at)
    schedule.next_at = next_look(schedule, schedule.next_due_at)


def refuse_without_due_time(schedule: Schedule) -> None:
    if schedule.next_due_at is None:
        place = "at" if schedule.at else "end_at" if schedule.end_at else "cron"
        error = FieldError(f"/{place}", "never", "The schedule has no due time from now on: it never starts.")
        raise validation_problem([error])


def _check_target(schedule: Schedule, ports: Ports, key_models: KeyModels) -> None:
    """Check a target as its submit or start would be, as far as its references allow. Raises Problem 422."""
    target = schedule.target
    due_at = schedule.next_due_at or schedule.handled_at
    body: dict[str, Any] | None
    try:
        body = resolved(target, {DUE_AT: text_of(due_at), LAST: None})
    except Unresolved:
        body = None  # of `last`, without a default: its first firing is skipped
    try:
        if SUBMIT in target:
            _check_submit(schedule, body, ports, key_models)
        else:
            _check_workflow(schedule, body, ports, key_models)
    except Refused as refused:
        kind = SUBMIT if SUBMIT in target else WORKFLOW
        error = FieldError(f"/{kind}{refused.pointer or ''}", refused.code, str(refused))
        raise validation_problem([error]) from None


def _check_submit(
    schedule: Schedule, body: dict[str, Any] | None, ports: Ports, key_models: KeyModels
) -> None:
    try:
        request = read_request(body or {**schedule.target[SUBMIT], "payload": {}})
    except Problem as problem:
        errors = [
            FieldError(f"/{SUBMIT}{error.pointer}", error.code, error.detail) for error in problem.errors
        ]
        raise validation_problem(errors) from None
    try:
        check_request(request, tenant=schedule.tenant_id, ports=ports, key_models=key_models)
    except PayloadInvalid:
        if body is not None and LAST not in names_used(schedule.target):
            raise


def _check_workflow(
    schedule: Schedule, body: dict[str, Any] | None, ports: Ports, key_models: KeyModels
) -> None:
    target = schedule.target[WORKFLOW]
    version = find_version(schedule.tenant_id, target["name"], target.get("version"))
    if version is None:
        raise UnknownWorkflow(pointer="/name")
    if url := target.get("callback_url"):
        check_callback_url(url, refused_origins(ports.registry))
    plan = read_definition(version.spec)
    try:
        refuse_models(schedule.tenant_id, plan, key_models)
    except ModelNotAllowed as refused:
        raise ModelNotAllowed(str(refused), pointer="/name") from None
    if body is not None and LAST not in names_used(schedule.target):
        check_inputs(plan.inputs, body.get("inputs"), ports)


def refuse_models_of_target(schedule: Schedule, key_models: KeyModels) -> None:
    """Check that a key may submit to the models of a schedule's target. Raises ModelNotAllowed."""
    if SUBMIT in schedule.target:
        Allowed(None, key_models).check(schedule.target[SUBMIT]["model"])
        return
    target = schedule.target[WORKFLOW]
    version = find_version(schedule.tenant_id, target["name"], target.get("version"))
    if version is not None:
        refuse_models(schedule.tenant_id, read_definition(version.spec), key_models)
