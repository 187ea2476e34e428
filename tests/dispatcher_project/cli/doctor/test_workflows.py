"""`doctor` on runs: old notices, stalled runs, unanswered waits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dispatcher_project.cli.doctor import workflows
from dispatcher_project.cli.doctor.finding import Level
from jobs.models import EndNotice
from tests.dispatcher_project.cli.doctor.patient import Patient, patient
from tests.support.factories import make_model, make_tenant
from tests.support.queue_harness import queue
from tests.support.terminal import terminal
from workflows.execution.advancer import Advancer
from workflows.models import Run
from workflows.operations.definitions import put_definition
from workflows.operations.start import start_run
from workflows.schedules.body import ScheduleBody
from workflows.schedules.models import Schedule
from workflows.schedules.operations.read import read_schedule
from workflows.schedules.operations.store import put_schedule
from workflows.tasks import advance_now

__all__ = ["patient", "queue", "terminal"]
pytestmark = pytest.mark.django_db

ASKS = {"nodes": {"best": {"human": {"title": "?", "choose_from": [1, 2]}}}}


def start(patient: Patient, definition: Any = ASKS) -> Run:
    ports = patient.queue.ports
    tenant = make_tenant()
    put_definition(tenant.pk, "w", definition, ports=ports)
    run = start_run(tenant.pk, "w", None, ports=ports).run
    advance_now(Advancer(ports), run.id)
    return run


def found(patient: Patient) -> dict[str, Any]:
    checks = (
        workflows.end_notices,
        workflows.stalled_runs,
        workflows.failing_runs,
        workflows.unanswered,
        workflows.silent_schedules,
    )
    return {one.check: one for check in checks for one in check(patient.view())}


def test_a_fresh_run_has_no_findings(patient: Patient) -> None:
    start(patient)
    assert found(patient) == {}
    assert {one.level for one in patient.findings()} == {Level.OK}


def test_a_run_whose_step_raises_is_named(patient: Patient) -> None:
    run = start(patient)
    Run.objects.update(step_failures=2, failing_step=run.steps)
    assert found(patient) == {}, "an earlier step did"
    run.refresh_from_db()
    Run.objects.update(failing_step=run.steps)
    (one,) = found(patient).values()
    assert (one.check, one.level) == ("runs", Level.ERROR)
    assert run.id in one.summary


def test_an_unanswered_question_is_named_after_a_day(patient: Patient) -> None:
    run = start(patient)
    patient.queue.clock.advance(90_000)
    (one,) = found(patient).values()
    assert (one.check, one.level) == ("answers", Level.WARNING)
    assert f"{run.id} best" in one.summary
    assert "`" in one.advice


def test_a_notice_that_no_worker_reads(patient: Patient) -> None:
    at = patient.queue.clock.now()
    EndNotice.objects.create(followed_by="run:x", ended_id="y", state="completed", at=at)
    assert found(patient) == {}
    patient.queue.clock.advance(90)
    (one,) = found(patient).values()
    assert (one.check, one.level) == ("ends of nodes", Level.ERROR)
    assert "queue_worker --queues callbacks,workflows" in one.advice


def test_a_run_in_which_nothing_is_under_way(patient: Patient) -> None:
    run = start(patient)
    run.nodes.update(state="completed", finished_at=patient.queue.clock.now())
    assert found(patient) == {}
    patient.queue.clock.advance(timedelta(minutes=4).total_seconds())
    (one,) = found(patient).values()
    assert (one.check, one.level) == ("runs", Level.ERROR)
    assert "1 run is running, with no node" in one.summary
    Run.objects.update(paused_at=patient.queue.clock.now())
    assert found(patient) == {}


def test_a_schedule_that_a_wrong_clock_made_silent_is_named(patient: Patient) -> None:
    ports = patient.queue.ports
    make_model("zimg")
    body = ScheduleBody.model_validate(
        {"cron": "* * * * *", "submit": {"model": "zimg", "payload": {"prompt": "x"}}}
    )
    row = read_schedule(make_tenant().pk, "nightly", body, ports=ports)
    schedule = put_schedule(row).schedule
    assert found(patient) == {}
    Schedule.objects.update(handled_at=patient.queue.clock.now() + timedelta(days=366))
    (one,) = found(patient).values()
    assert (one.check, one.level) == ("schedules", Level.WARNING)
    assert f"{schedule.tenant.name}/nightly" in one.summary
    assert "schedule resume" in one.advice
