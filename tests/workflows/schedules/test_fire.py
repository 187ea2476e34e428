"""Due times become firings: on time, late, overlapping, paused, refused; never twice, never without a row."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from dispatcher_project.wiring import make_production_ports
from gpus.errors import LeasingUnavailable
from gpus.leasing.clock import SharedClock
from gpus.models import ModelConfig
from jobs.domain.states import JobState
from jobs.models import Job, Rollup, Tenant
from jobs.operations.erase import erase_job_data
from jobs.operations.jobs import retry_dead_letter
from tests.support.factories import make_model, make_tenant
from tests.support.schedules import SUBMIT, Stage, firings, starts
from verification.schedule_laws import check_schedules
from workflows.api.schedules import firing_json
from workflows.domain.errors import BackfillRefused, TargetInvalid, TooManyBackfilled
from workflows.execution.advancer import Advancer
from workflows.models import Run, Workflow
from workflows.operations.answers import answer_wait
from workflows.operations.definitions import put_definition
from workflows.operations.erase import erase_run_data
from workflows.operations.restart import restart_run
from workflows.schedules.backlog import Backlog, backlog_of
from workflows.schedules.execution import fire as fire_module
from workflows.schedules.execution.fire import FireLimits, Overtaken, fire
from workflows.schedules.execution.launch import Launched
from workflows.schedules.models import Firing, Schedule, reopen
from workflows.schedules.operations.backfill import backfill, cancel_backfills
from workflows.schedules.operations.fire_times import fire_times, fire_times_if_resumed, shown_next_due_at
from workflows.schedules.operations.pause import pause_schedule, resume_schedule
from workflows.schedules.operations.request_keys import RequestKey
from workflows.schedules.operations.trigger import trigger
from workflows.sweeps import due_schedules, due_waits, ended_firings, old_firings
from workflows.tasks import advance_now

pytestmark = pytest.mark.django_db(transaction=True)


def test_each_due_time_starts_one_job_and_has_a_row(stage: Stage) -> None:
    schedule = stage.put()
    stage.run_for(300)
    assert Job.objects.count() == 5
    dues = starts(schedule)
    assert [second - first for first, second in pairwise(dues)] == [timedelta(minutes=1)] * 4
    assert set(Firing.objects.values_list("job_id", flat=True)) == set(
        Job.objects.values_list("id", flat=True)
    )
    assert all(one.at - one.due_at <= timedelta(seconds=1) for one in Firing.objects.all())


@pytest.mark.database
def test_a_job_gets_the_due_time_and_the_last_output(stage: Stage) -> None:
    payload = {"at": {"$ref": "due_at"}, "seed": {"$ref": "last.output.seed", "default": 0}, "list": [1]}
    stage.put(submit={"model": "zimg", "payload": payload, "tags": ["nightly"]})
    stage.run_for(60)
    first = Job.objects.get()
    assert first.payload == {"at": "2026-01-01T00:01:00Z", "seed": 0, "list": [1]}
    assert first.tags == ["nightly"]
    stage.end_jobs(result={"seed": 7})
    stage.run_for(60)
    assert Job.objects.latest("id").payload["seed"] == 7


def test_a_reference_to_nothing_skips_the_firing_and_says_why(stage: Stage) -> None:
    schedule = stage.put(submit={"model": "zimg", "payload": {"x": {"$ref": "last.output"}}})
    stage.run_for(60)
    assert firings(schedule) == [("skipped", "unresolved_ref", 1)]
    assert Job.objects.count() == 0


@pytest.mark.parametrize("default", [{}, {"default": 5}])
def test_an_erased_output_is_no_last_output(stage: Stage, default: dict[str, Any]) -> None:
    payload = {"x": {"$ref": "last.output", **default}, "at": {"$ref": "last.due_at", "default": ""}}
    schedule = stage.put(submit={"model": "zimg", "payload": {"prompt": "x"}})
    stage.run_for(60)
    stage.end_jobs(result={"secret": 7})
    stage.put(submit={"model": "zimg", "payload": payload})
    erase_job_data(Job.objects.get().id, ports=stage.ports)
    stage.run_for(60)
    if default:
        assert Job.objects.latest("id").payload == {"x": 5, "at": "2026-01-01T00:01:00Z"}
        return
    firing = Firing.objects.filter(schedule=schedule).first()
    assert firing is not None
    assert (firing.outcome, firing.reason) == ("skipped", "last_output_erased")
    assert "was erased: last.output is null or selects nothing" in firing.detail
    with pytest.raises(TargetInvalid) as refused:
        trigger(Schedule.objects.get(), by="x", ports=stage.ports)
    assert refused.value.code == "last_output_erased"


def test_an_erased_output_of_a_run_is_no_last_output(stage: Stage) -> None:
    definition = {
        "nodes": {"a": {"timer": {"seconds": 0}}},
        "inputs": True,
        "output": {"given": {"$ref": "inputs", "default": 1}},
    }
    put_definition(stage.tenant.pk, "film", definition, ports=stage.ports)
    schedule = stage.put(workflow={"name": "film"})
    stage.run_for(60)
    run = Run.objects.get()
    Run.objects.update(state="completed", finished_at=stage.clock.now(), output={"given": 1})
    stage.put(workflow={"name": "film", "inputs": {"$ref": "last.output.given"}})
    erase_run_data(run.id, ports=stage.ports)
    stage.run_for(60)
    assert firings(schedule)[-1] == ("skipped", "last_output_erased", 1)


def test_a_due_time_starts_a_run_of_the_newest_version(stage: Stage) -> None:
    definition = {"nodes": {"a": {"model": "zimg", "payload": {}}}, "inputs": {"required": ["day"]}}
    put_definition(stage.tenant.pk, "film", definition, ports=stage.ports)
    target = {"name": "film", "inputs": {"day": {"$ref": "due_at"}}, "priority": 3, "tags": ["t"]}
    schedule = stage.put(workflow=target)
    newer = {**definition, "description": "newer"}
    put_definition(stage.tenant.pk, "film", newer, ports=stage.ports)
    stage.run_for(60)
    run = Run.objects.get()
    assert (run.inputs, run.priority, run.tags) == ({"day": "2026-01-01T00:01:00Z"}, 3, ["t"])
    assert run.version.number == 2
    assert Firing.objects.get(schedule=schedule).run_id == run.id


# -- twice, and lost ---------------------------------------------------------------------------------------


@pytest.mark.database
def test_a_due_time_has_one_firing_in_the_database(stage: Stage) -> None:
    schedule = stage.put()
    row = {"schedule": schedule, "due_at": stage.clock.now(), "outcome": "missed", "at": stage.clock.now()}
    Firing.objects.create(**row)
    with pytest.raises(IntegrityError), transaction.atomic():
        Firing.objects.create(**row)
    Firing.objects.create(**row, backfill="1")


def test_of_two_sweepers_with_one_row_one_writes(stage: Stage) -> None:
    stage.put()
    stage.clock.move(61)
    first, second = Schedule.objects.get(), Schedule.objects.get()
    launched = Launched()
    fire(first, stage.ports, launched)
    with pytest.raises(Overtaken):
        fire(second, stage.ports, launched)
    assert Job.objects.count() == Firing.objects.count() == len(launched.jobs) == 1


@pytest.mark.database
def test_an_edit_while_it_is_due_wins(stage: Stage) -> None:
    stage.put()
    stage.clock.move(61)
    as_read = Schedule.objects.get()
    edited = stage.put(every_seconds=3600.0)
    with pytest.raises(Overtaken):
        fire(as_read, stage.ports, Launched())
    assert Schedule.objects.get().next_due_at == edited.next_due_at
    assert Job.objects.count() == 0


def test_an_end_that_is_still_to_come_loses_no_due_time(stage: Stage) -> None:
    schedule = stage.put(catch_up="all")
    stage.clock.move(130)  # no sweep
    stage.put(catch_up="all", end_at=stage.clock.now() + timedelta(days=1))
    stage.sweep()
    assert firings(schedule) == [("started", "", 1)] * 2


@pytest.mark.database
def test_an_edit_during_the_sweep_wins(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.put("a")
    other = stage.put("b")
    stage.clock.move(61)
    real = fire_module.check

    def edit(*launches: Any) -> Any:
        monkeypatch.undo()
        stage.put("a", every_seconds=3600.0)
        return real(*launches)

    monkeypatch.setattr(fire_module, "check", edit)
    stage.sweep()
    assert Schedule.objects.get(name="a").every_seconds == 3600
    assert Job.objects.count() == len(starts(other)) == 1


def test_a_refused_target_does_not_stop_the_others_of_its_transaction(stage: Stage) -> None:
    Tenant.objects.update(max_queued=3)
    for number in range(5):
        stage.put(f"s{number}", catch_up="none")
    make_model("gone")
    bad = stage.put("bad", submit={"model": "gone", "payload": {}})
    ModelConfig.objects.filter(name="gone").delete()
    stage.ports.registry.clear()
    stage.run_for(61)
    assert firings(bad) == [("skipped", "unknown_model", 1)]
    assert Job.objects.count() == 3
    stage.run_for(58)
    reasons = Firing.objects.exclude(schedule=bad).values_list("outcome", "reason")
    assert sorted(reasons) == [("skipped", "tenant_queue_full")] * 2 + [("started", "")] * 3


@pytest.mark.database
def test_a_due_time_with_a_firing_is_not_started_again(stage: Stage) -> None:
    schedule = stage.put()
    stage.run_for(60)
    Schedule.objects.update(handled_at=schedule.handled_at, next_at=stage.clock.now())  # an old backup
    stage.run_for(60)
    assert len(starts(schedule)) == Job.objects.count() == 2


def test_a_clock_that_steps_back_repeats_nothing(stage: Stage) -> None:
    schedule = stage.put()
    stage.run_for(180)
    stage.clock.at -= timedelta(hours=1)
    stage.put(submit={**SUBMIT, "tags": ["edited"]})
    stage.run_for(3600)
    assert len(starts(schedule)) == 3
    stage.run_for(60)
    assert len(starts(schedule)) == Job.objects.count() == 4


def test_a_clock_that_steps_ahead_leaves_a_row_for_each_due_time(stage: Stage) -> None:
    schedule = stage.put()
    stage.run_for(60)
    stage.clock.at += timedelta(hours=1)
    stage.run_for(60)
    assert firings(schedule)[0] == ("started", "", 1)
    assert sum(count for _, _, count in firings(schedule)) == 62


@pytest.mark.parametrize(("catch_up", "expected"), [("none", 0), ("last", 1), ("all", 2)])
def test_ten_minutes_without_a_sweep(stage: Stage, catch_up: str, expected: int) -> None:
    schedule = stage.put(cron="*/4 * * * *", catch_up=catch_up)
    stage.clock.move(600)
    stage.sweep()
    assert len(starts(schedule)) == Job.objects.count() == expected
    assert sum(count for _, _, count in firings(schedule)) == 2


def test_a_long_backlog_is_handled_in_parts(stage: Stage) -> None:
    stage.due = due_schedules.DueSchedulesSweep(due_schedules.DueLimits(fire=FireLimits(dues=7, starts=3)))
    schedule = stage.put(catch_up="all", catch_up_seconds=1200.0)
    stage.clock.move(1800)
    for _ in range(12):
        stage.sweep()
    dues = starts(schedule)
    assert len(dues) == len(set(dues)) == 21  # 20 minutes, both ends
    assert sum(count for _, _, count in firings(schedule)) == 30


@pytest.mark.database
def test_one_run_passes_over_all_due_times_that_are_too_late_and_starts_one_part(stage: Stage) -> None:
    stage.due = due_schedules.DueSchedulesSweep(due_schedules.DueLimits(fire=FireLimits(dues=7, starts=3)))
    schedule = stage.put(every_seconds=60.0, catch_up="all", catch_up_seconds=300.0)
    stage.clock.move(6000)
    stage.sweep()
    assert sum(count for outcome, _, count in firings(schedule) if outcome == "missed") == 94
    assert len(starts(schedule)) == 3
    stage.sweep()
    assert len(starts(schedule)) == len(set(starts(schedule))) == 6
    rows = list(Firing.objects.filter(schedule=schedule).order_by("due_at"))
    assert sum(one.count for one in rows) == 100
    assert all((one.until_at or one.due_at) < after.due_at for one, after in pairwise(rows))


def test_due_times_that_are_too_late_take_a_bounded_part_of_a_run(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.due = due_schedules.DueSchedulesSweep(due_schedules.DueLimits(fire=FireLimits(dues=7)))
    behind = stage.put(every_seconds=60.0, catch_up="none")
    stage.clock.move(6000)
    prompt = stage.put("prompt", every_seconds=60.0)
    stage.clock.move(60)
    real = fire_module.judge

    def judge(*dues: Any, **more: Any) -> Any:
        if len(dues[0]) == 7:
            stage.clock.move(0.2)
        return real(*dues, **more)

    monkeypatch.setattr(fire_module, "judge", judge)
    stage.sweep()
    assert firings(behind) == [("missed", "late", 7)] * 4
    assert len(starts(prompt)) == 1
    stage.due = due_schedules.DueSchedulesSweep(
        due_schedules.DueLimits(missed_parts=1, fire=FireLimits(dues=7))
    )
    stage.sweep()
    assert len(firings(behind)) == 6


@pytest.mark.parametrize("place", ["insert", "statements.insert_all", "statements.update_all"])
def test_a_crash_in_the_transaction_leaves_the_due_time(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    schedule = stage.put()
    stage.clock.move(61)

    def crash(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"workflows.schedules.execution.fire.{place}", crash)
    with pytest.raises(KeyboardInterrupt):
        due_schedules.DueSchedulesSweep()(stage.ports)
    monkeypatch.undo()
    assert Job.objects.count() == Firing.objects.count() == 0
    stage.sweep()
    assert len(starts(schedule)) == 1


# -- rows that can't be fired ------------------------------------------------------------------------------


@pytest.mark.database
def test_a_row_that_raises_stops_no_other(stage: Stage) -> None:
    poison = stage.put("a")
    Schedule.objects.filter(pk=poison.pk).update(target={"nonsense": 1})
    good = stage.put("b")
    stage.run_for(180)
    assert len(starts(good)) == 3
    reasons = {reason for _, reason, _ in firings(poison)}
    assert reasons == {"internal_error"}
    assert Schedule.objects.get(pk=poison.pk).error_code == "internal_error"


def test_a_model_that_is_gone_skips_with_its_reason(stage: Stage) -> None:
    schedule, good = stage.put("a"), stage.put("b", every_seconds=60.0)
    ModelConfig.objects.all().delete()
    stage.ports.registry.clear()
    stage.run_for(60)
    assert firings(schedule) == firings(good) == [("skipped", "unknown_model", 1)]


def test_a_workflow_that_is_gone_skips_with_its_reason(stage: Stage) -> None:
    definition = {"nodes": {"a": {"model": "zimg", "payload": {}}}}
    put_definition(stage.tenant.pk, "film", definition, ports=stage.ports)
    schedule = stage.put(workflow={"name": "film"})
    Workflow.objects.all().delete()
    stage.run_for(60)
    assert firings(schedule) == [("skipped", "unknown_workflow", 1)]


def test_a_tenant_that_may_no_longer_use_the_model(stage: Stage) -> None:
    schedule = stage.put()
    Tenant.objects.update(allowed_models=["other"])
    stage.ports.limit_caches.clear()
    stage.run_for(60)
    assert firings(schedule) == [("skipped", "model_not_allowed", 1)]


def test_a_full_queue_is_waited_for_as_long_as_the_due_time_may_be_late(stage: Stage) -> None:
    Tenant.objects.update(max_queued=1)
    schedule = stage.put(cron="*/5 * * * *", catch_up="last", catch_up_seconds=120.0)
    stage.run_for(610)
    assert firings(schedule) == [("started", "", 1)]
    stage.end_jobs()
    stage.run_for(4)
    assert firings(schedule) == [("started", "", 1), ("started", "", 1)]
    stage.run_for(900)
    assert firings(schedule)[2:] == [("skipped", "tenant_queue_full", 1)] * 2
    assert Job.objects.filter(finished_at=None).count() == 1


def test_an_exhausted_quota_skips_with_its_reason(stage: Stage) -> None:
    Tenant.objects.update(daily_gpu_seconds=0.001)
    schedule = stage.put(catch_up="none")

    Rollup.objects.create(
        at=stage.clock.now(), span_seconds=3_600, tenant=stage.tenant, model="zimg", gpu_seconds=10.0
    )
    stage.ports.limit_caches.clear()
    stage.run_for(120)
    assert ("skipped", "quota_exhausted") in {(outcome, reason) for outcome, reason, _ in firings(schedule)}


def test_a_time_zone_that_is_gone_stops_and_goes_on_once_it_is_back(stage: Stage) -> None:
    schedule = stage.put(timezone="Europe/Berlin", catch_up="none")
    Schedule.objects.update(timezone="Europe/Atlantis")
    stage.run_for(120)
    row = Schedule.objects.get()
    assert row.error_code == "unknown_timezone"
    assert firings(schedule) == [("skipped", "unknown_timezone", 1)]
    Schedule.objects.update(timezone="Europe/Berlin")
    stage.run_for(600)
    row = Schedule.objects.get()
    assert row.error_code == ""
    assert row.next_at is not None
    assert ("missed", "late") in {(outcome, reason) for outcome, reason, _ in firings(schedule)}
    assert sum(count for _, _, count in firings(schedule)) == 12


# -- overlaps ----------------------------------------------------------------------------------------------


def test_skip_starts_no_second_one(stage: Stage) -> None:
    schedule = stage.put(overlap="skip")
    stage.run_for(180)
    assert firings(schedule) == [("started", "", 1), ("skipped", "overlap", 1), ("skipped", "overlap", 1)]
    stage.end_jobs()
    stage.run_for(60)
    assert len(starts(schedule)) == 2


def test_queue_one_starts_one_after_the_end(stage: Stage) -> None:
    schedule = stage.put(overlap="queue_one")
    stage.run_for(180)
    assert [outcome for outcome, _, _ in firings(schedule)] == ["started", "waiting", "skipped"]
    stage.end_jobs()
    stage.run_for(2)
    assert [outcome for outcome, _, _ in firings(schedule)] == ["started", "started", "skipped"]


def test_queue_all_starts_them_in_order(stage: Stage) -> None:
    schedule = stage.put(overlap="queue_all")
    stage.run_for(240)
    Schedule.objects.update(next_at=None)
    for expected in (2, 3, 4):
        stage.end_jobs()
        stage.run_for(2)
        assert len(starts(schedule)) == expected
        assert Job.objects.filter(finished_at=None).count() == 1
    dues = Firing.objects.order_by("at", "id").values_list("due_at", flat=True)
    assert list(dues) == sorted(dues)


def test_a_newer_one_cancels_the_one_before(stage: Stage) -> None:
    schedule = stage.put(overlap="cancel_previous")
    stage.run_for(60)
    stage.run_for(60)
    first = Job.objects.earliest("id")
    assert first.state == JobState.CANCELLED  # it was queued
    stage.run_for(2)
    assert [outcome for outcome, _, _ in firings(schedule)] == ["started", "started"]
    assert Job.objects.filter(finished_at=None).count() == 1


def test_the_newest_waits_in_place_of_an_older_one(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = stage.put(overlap="cancel_previous")
    stage.run_for(60)
    monkeypatch.setattr(fire_module, "cancel_job", lambda *_, **__: None)  # it takes until the run has ended
    stage.run_for(121)
    assert [(outcome, reason) for outcome, reason, _ in firings(schedule)] == [
        ("started", ""),
        ("skipped", "superseded"),
        ("waiting", ""),
    ]


# -- pauses ------------------------------------------------------------------------------------------------


def test_due_times_of_a_pause_have_one_row(stage: Stage) -> None:
    schedule = stage.put(catch_up="all")
    stage.run_for(60)
    pause_schedule(Schedule.objects.get(), ports=stage.ports)
    stage.run_for(600)
    assert len(firings(schedule)) == 1
    resume_schedule(Schedule.objects.get(), ports=stage.ports)
    stage.run_for(60)
    assert firings(schedule) == [
        ("started", "", 1),
        ("skipped", "paused", 9),
        ("started", "", 1),
        ("started", "", 1),
    ]


def test_a_pause_until_a_time_ends_by_itself(stage: Stage) -> None:
    schedule = stage.put()
    until = stage.clock.now() + timedelta(seconds=150)
    pause_schedule(Schedule.objects.get(), ports=stage.ports, until=until)
    stage.run_for(180)
    assert firings(schedule) == [("skipped", "paused", 2), ("started", "", 1)]


def test_failures_in_a_row_pause_it(stage: Stage) -> None:
    stage.put(pause_after_failures=2)
    for state in (JobState.FAILED, JobState.COMPLETED, JobState.FAILED, JobState.FAILED):
        assert Schedule.objects.get().paused_from is None
        stage.run_for(60)
        stage.end_jobs(state)
        ended_firings.sweep(stage.ports)
    row = Schedule.objects.get()
    assert row.next_at is None
    assert row.pause_reason == "2 failures in a row"
    stage.run_for(120)
    assert Job.objects.count() == 4
    resume_schedule(row, ports=stage.ports)
    assert Schedule.objects.get().failures == 0


def asks(stage: Stage) -> None:
    """Store a workflow whose question fails when it expires, after 10 s."""
    node = {"human": {"title": "?", "form": {}, "expires_seconds": 10}}
    put_definition(stage.tenant.pk, "w", {"nodes": {"ask": node}}, ports=stage.ports)


def expire(stage: Stage, run: Run) -> None:
    """Fail the run's question, and note the end of its firing."""
    advance_now(Advancer(stage.ports), run.id)
    stage.clock.move(11)
    due_waits.sweep(stage.ports)
    advance_now(Advancer(stage.ports), run.id)
    ended_firings.sweep(stage.ports)
    assert Firing.objects.get(run_id=run.id).end_state == "failed"


def test_a_restarted_run_counts_as_running(stage: Stage) -> None:
    asks(stage)
    schedule = stage.put(workflow={"name": "w"}, overlap="skip")
    stage.run_for(60)
    run = Run.objects.get()
    expire(stage, run)
    restart_run(run.id, ports=stage.ports)
    advance_now(Advancer(stage.ports), run.id)
    stage.run_for(55)
    assert firings(schedule) == [("started", "", 1), ("skipped", "overlap", 1)]
    assert (shown := firing_json(Firing.objects.get(run_id=run.id)))["ended_at"] is None
    assert shown["end_state"] is None, "that of the end before"


def test_a_firing_that_fails_again_after_a_restart_counts_once_and_its_success_ends_the_row(
    stage: Stage,
) -> None:
    asks(stage)
    stage.put(workflow={"name": "w"}, pause_after_failures=2)
    stage.run_for(60)
    run = Run.objects.get()
    expire(stage, run)
    restart_run(run.id, ports=stage.ports)
    expire(stage, run)
    schedule = Schedule.objects.get()
    assert (schedule.failures, schedule.paused_from) == (1, None)
    restart_run(run.id, ports=stage.ports)
    advance_now(Advancer(stage.ports), run.id)
    answer_wait(run, "ask", 1, by="me", ports=stage.ports)
    advance_now(Advancer(stage.ports), run.id)
    ended_firings.sweep(stage.ports)
    assert Firing.objects.get(run_id=run.id).end_state == "completed"
    assert Schedule.objects.get().failures == 0


def test_a_retried_dead_letter_counts_as_running(stage: Stage) -> None:
    schedule = stage.put(overlap="skip")
    stage.run_for(60)
    job = Job.objects.get()
    stage.end_jobs(JobState.FAILED)
    ended_firings.sweep(stage.ports)
    retry_dead_letter(job.id, ports=stage.ports)
    stage.run_for(60)
    assert firings(schedule) == [("started", "", 1), ("skipped", "overlap", 1)]
    stage.end_jobs()
    ended_firings.sweep(stage.ports)
    assert Firing.objects.get(job_id=job.id).end_state == "completed"


def test_a_restart_beside_the_sweep_that_closes_its_firing_reopens_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep has read that the run has ended, when it is restarted."""
    asks(stage)
    stage.put(workflow={"name": "w"}, overlap="skip")
    stage.run_for(60)
    run = Run.objects.get()
    expire(stage, run)
    reopen([run.id])
    close = ended_firings._close

    def restart_and_close(*given: Any) -> bool:
        restart_run(run.id, ports=stage.ports)
        return close(*given)

    monkeypatch.setattr(ended_firings, "_close", restart_and_close)
    assert ended_firings.sweep(stage.ports).repaired == 0
    assert Firing.objects.get(run_id=run.id).ended_at is None


def test_the_ports_of_production_reopen_firings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedClock, "keep_comparing", lambda self, after: None)
    assert make_production_ports().reopened is reopen


# -- triggers, backfills, retention --------------------------------------------------------------------------


def test_a_trigger_starts_now_also_during_a_pause(stage: Stage) -> None:
    schedule = pause_schedule(stage.put(overlap="skip"), ports=stage.ports)
    key = RequestKey("k")
    first = trigger(schedule, by="me", ports=stage.ports, idempotency_key=key)
    again = trigger(schedule, by="me", ports=stage.ports, idempotency_key=key)
    assert (first.firing.id, first.firing.job_id) == (again.firing.id, again.firing.job_id)
    assert (first.replayed, again.replayed) == (False, True)
    trigger(schedule, by="me", ports=stage.ports)
    assert Job.objects.count() == 2


def test_a_backfill_starts_its_due_times_one_after_the_other(stage: Stage) -> None:
    schedule = stage.put(cron="0 * * * *")
    now = stage.clock.now()
    done = backfill(
        schedule,
        now - timedelta(hours=3),
        now,
        by="me",
        ports=stage.ports,
        idempotency_key=RequestKey("k"),
    )
    assert len(done.dues) == 4
    backfill(
        schedule,
        now - timedelta(hours=3),
        now,
        by="me",
        ports=stage.ports,
        idempotency_key=RequestKey("k"),
    )
    for expected in (1, 2, 3, 4):
        stage.run_for(2)
        assert Job.objects.count() == expected
        stage.end_jobs()
    assert starts(schedule) == list(done.dues)


def test_a_repeated_backfill_is_answered_as_the_first_time(stage: Stage) -> None:
    """Also when another due time of its span has come, or the timetable was changed."""
    schedule = stage.put(cron="0 * * * *")
    span = stage.clock.now() - timedelta(hours=3), stage.clock.now() + timedelta(hours=2)
    key = RequestKey("k")
    done = backfill(schedule, *span, by="me", ports=stage.ports, idempotency_key=key)
    stage.clock.move(3600)
    assert backfill(schedule, *span, by="me", ports=stage.ports, idempotency_key=key) == done
    schedule = stage.put(cron="30 11 31 7 *")
    assert backfill(schedule, *span, by="me", ports=stage.ports, idempotency_key=key) == done


def test_a_backfill_leaves_due_times_to_come_to_the_timetable(stage: Stage) -> None:
    schedule = stage.put(cron="0 * * * *")
    now = stage.clock.now()
    day = timedelta(days=1)
    done = backfill(schedule, now - timedelta(hours=3), now + day, by="me", ports=stage.ports)
    assert len(done.dues) == 4
    assert max(done.dues) <= now
    with pytest.raises(BackfillRefused, match="No due time in this span has come"):
        backfill(schedule, now + timedelta(minutes=1), now + day, by="me", ports=stage.ports)


def test_a_parallel_backfill_starts_all_at_once(stage: Stage) -> None:
    schedule = stage.put(cron="0 * * * *")
    now = stage.clock.now()
    backfill(schedule, now - timedelta(hours=3), now, by="me", ports=stage.ports, parallel=True)
    stage.run_for(1)
    assert Job.objects.count() == 4


@pytest.mark.database
def test_old_firings_are_deleted_except_those_under_way(stage: Stage) -> None:
    stage.put()
    stage.run_for(120)
    stage.end_jobs(id=Job.objects.earliest("id").id)
    ended_firings.sweep(stage.ports)
    Schedule.objects.update(next_at=None)
    stage.clock.move(31 * 86_400)
    assert old_firings.sweep(stage.ports).repaired == 1
    assert Firing.objects.get().ended_at is None


def test_a_firing_whose_job_was_deleted_ends(stage: Stage) -> None:
    stage.put()
    stage.run_for(60)
    Job.objects.all().delete()
    ended_firings.sweep(stage.ports)
    assert Firing.objects.get().end_state == "gone"


def test_a_one_time_schedule_fires_once(stage: Stage) -> None:
    schedule = stage.put(at=stage.clock.now() + timedelta(seconds=30))
    stage.run_for(90)
    assert len(starts(schedule)) == 1
    assert Schedule.objects.get().next_at is None


def test_jitter_delays_the_firing_and_keeps_its_due_time(stage: Stage) -> None:
    schedule = stage.put(jitter_seconds=30.0)
    jitter = schedule.jitter.total_seconds()
    assert 0 < jitter < 30
    stage.run_for(60 + int(jitter) - 1)
    assert not starts(schedule)
    stage.run_for(2)
    assert starts(schedule) == [datetime(2026, 1, 1, 0, 1, tzinfo=UTC)]


def test_lost_tickets_of_a_firing_are_pushed_by_the_reconciler_alone(stage: Stage) -> None:
    ports = replace(stage.ports, send_wakes=lambda wakes: 0)
    stage.put()
    stage.clock.move(61)
    due_schedules.DueSchedulesSweep()(ports)
    assert Job.objects.get().state == JobState.QUEUED


# -- edits and pauses of due times that have come ----------------------------------------------------------


def move_to(stage: Stage, schedule: Schedule, seconds: float) -> None:
    """Move the clock to so many seconds after the next due time, without a sweep."""
    assert schedule.next_due_at is not None
    stage.clock.move((schedule.next_due_at - stage.clock.now()).total_seconds() + seconds)


def test_an_edit_keeps_a_due_time_that_has_come(stage: Stage) -> None:
    schedule = stage.put(cron="0 12 * * *", jitter_seconds=3600.0)
    move_to(stage, schedule, schedule.jitter.total_seconds() / 2)
    stage.put(cron="0 12 * * *", jitter_seconds=3600.0, submit={**SUBMIT, "tags": ["new"]})
    stage.run_for(3600)
    assert firings(schedule) == [("started", "", 1)]
    assert Job.objects.get().tags == ["new"]


def test_an_edit_of_the_times_leaves_a_row_for_what_it_drops(stage: Stage) -> None:
    schedule = stage.put()
    stage.clock.move(185)
    stage.put(cron="0 12 * * *")
    stage.run_for(60)
    assert firings(schedule) == [("skipped", "changed", 3)]
    stage.clock.move(185)
    stage.put(cron="0 13 * * *")
    assert len(firings(schedule)) == 1


def test_a_second_pause_begins_with_the_first_one(stage: Stage) -> None:
    schedule = stage.put(cron="0 12 * * *")
    move_to(stage, schedule, -60)
    pause_schedule(schedule, ports=stage.ports)
    stage.run_for(120)
    paused = pause_schedule(Schedule.objects.get(), ports=stage.ports, reason="again")
    resume_schedule(paused, ports=stage.ports)
    stage.clock.move(1)
    pause_schedule(Schedule.objects.get(), ports=stage.ports)  # before a sweep
    resume_schedule(Schedule.objects.get(), ports=stage.ports)
    stage.run_for(60)
    assert firings(schedule) == [("skipped", "paused", 1)]


# -- errors, limits and neighbours of firings that wait ----------------------------------------------------


def backfilled(stage: Stage, schedule: Schedule, hours: int, **how: Any) -> None:
    now = stage.clock.now()
    backfill(schedule, now - timedelta(hours=hours), now, by="x", ports=stage.ports, **how)


@pytest.mark.database
def test_a_waiting_firing_that_raises_costs_no_other_due_time(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = stage.put(cron="30 * * * *", overlap="queue_all")
    backfilled(stage, schedule, 2)
    real, broken = fire_module._start, Firing.objects.latest("-id")

    def start(schedule: Schedule, firing: Firing, *rest: Any) -> None:
        if firing.id == broken.id:
            raise ValueError("broken")
        real(schedule, firing, *rest)

    monkeypatch.setattr(fire_module, "_start", start)
    stage.run_for(30)
    assert firings(schedule) == [("skipped", "internal_error", 1), ("started", "", 1)]
    later = Schedule.objects.get()
    assert later.next_due_at == stage.clock.now().replace(minute=30, second=0)


def test_a_newer_one_waits_out_an_outage_of_the_leases(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = stage.put(overlap="cancel_previous")
    stage.run_for(60)
    real = fire_module.cancel_job

    def away(*_: Any, **__: Any) -> None:
        raise LeasingUnavailable("away")

    monkeypatch.setattr(fire_module, "cancel_job", away)
    stage.run_for(90)
    assert firings(schedule) == [("started", "", 1), ("waiting", "", 1)]
    monkeypatch.setattr(fire_module, "cancel_job", real)
    stage.run_for(20)
    assert firings(schedule) == [("started", "", 1), ("started", "", 1)]


@pytest.mark.database
def test_schedules_that_may_not_start_keep_no_other_tenant_waiting(stage: Stage) -> None:
    stage.due = due_schedules.DueSchedulesSweep(due_schedules.DueLimits(with_next=5, refused=2))
    Tenant.objects.update(max_queued=0)
    for number in range(12):
        backfilled(stage, stage.put(f"s{number}", cron="0 * * * *"), 0, parallel=True)
    for number in range(6):
        paused = stage.put(f"p{number}", cron="0 * * * *", overlap="queue_one")
        now = stage.clock.now()
        Firing.objects.create(schedule=paused, due_at=now, outcome="waiting", at=now)
        pause_schedule(paused, ports=stage.ports)
    stage.tenant = make_tenant("neighbour")
    other = stage.put("other", cron="0 * * * *")
    backfilled(stage, other, 0)
    stage.run_for(5)
    assert firings(other) == [("started", "", 1)]
    assert Job.objects.count() == 1


def test_more_due_schedules_than_a_run_handles_are_taken_in_turn_by_tenant(stage: Stage) -> None:
    stage.due = due_schedules.DueSchedulesSweep(due_schedules.DueLimits(schedules=4))
    for number in range(12):
        stage.put(f"s{number}", overlap="skip")
    stage.tenant = make_tenant("neighbour")
    other = stage.put("other")
    stage.clock.move(61)
    stage.sweep()
    assert firings(other) == [("started", "", 1)]
    assert Job.objects.count() == 4
    stage.run_for(3)
    assert Job.objects.count() == 13


def test_a_backlog_of_large_payloads_is_started_in_parts(stage: Stage) -> None:
    stage.due = due_schedules.DueSchedulesSweep(due_schedules.DueLimits(fire=FireLimits(weight=200_000)))
    large = {"model": "zimg", "payload": {"list": [[]] * 2_000}}  # about 100 KB in memory
    for name in ("a", "b", "c"):
        stage.put(name, submit=large, catch_up="all")
    stage.clock.move(310)
    counts = []
    for _ in range(4):
        stage.sweep()
        counts.append(Job.objects.count())
    assert counts == [6, 12, 15, 15]
    assert all(len(starts(one)) == 5 for one in Schedule.objects.all())


def test_a_tenant_whose_starts_take_long_keeps_no_other_tenant_waiting(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.due = due_schedules.DueSchedulesSweep(due_schedules.DueLimits(fire=FireLimits(weight=1)))
    for number in range(10):
        stage.put(f"s{number}", catch_up="all")
    stage.tenant = make_tenant("neighbour")
    other = stage.put("other")
    stage.clock.move(130)
    real = fire_module.prepare

    def prepare(*start: Any) -> Any:
        stage.clock.move(0.5)
        return real(*start)

    monkeypatch.setattr(fire_module, "prepare", prepare)
    stage.sweep()
    assert len(starts(other)) == 1
    assert Job.objects.count() <= 5
    monkeypatch.undo()
    stage.run_for(5)
    assert Job.objects.count() == 21


def test_waiting_backfills_of_a_tenant_have_a_limit(stage: Stage, settings: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, schedule_backfills=5)
    first, second = stage.put("a", cron="0 * * * *"), stage.put("b", cron="0 * * * *")
    backfilled(stage, first, 2)
    with pytest.raises(TooManyBackfilled, match="5 due times"):
        backfilled(stage, second, 2)
    assert Firing.objects.count() == 3
    backfilled(stage, second, 1)


@pytest.mark.database
def test_a_cancel_stops_the_backfills_that_wait_and_nothing_else(stage: Stage) -> None:
    schedule = stage.put(overlap="queue_all")
    stage.run_for(120)  # one of the timetable runs, one waits for it
    now = stage.clock.now()
    backfill(schedule, now - timedelta(minutes=5), now, by="x", ports=stage.ports)
    stage.sweep()  # the first one of the backfill runs
    assert cancel_backfills(schedule, ports=stage.ports) == 5
    assert cancel_backfills(schedule, ports=stage.ports) == 0
    assert Job.objects.filter(finished_at=None).count() == 2, "what was started goes on"
    assert Firing.objects.filter(backfill="", outcome="waiting").exists()
    stage.end_jobs()
    stage.run_for(10)
    of_backfill = Firing.objects.exclude(backfill="").order_by("due_at")
    assert list(of_backfill.values_list("outcome", "reason")) == [("started", "")] + [
        ("skipped", "cancelled")
    ] * (of_backfill.count() - 1)


# -- backfills beside the timetable ------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", ["skip", "queue_one", "queue_all", "cancel_previous"])
def test_a_backfill_under_way_costs_no_due_time(stage: Stage, overlap: str) -> None:
    schedule = stage.put(overlap=overlap)
    now = stage.clock.now()
    backfill(schedule, now - timedelta(minutes=5), now, by="x", ports=stage.ports)
    stage.run_for(2)
    [backfilled] = Job.objects.all()
    stage.run_for(60)
    own = Firing.objects.get(backfill="")
    assert (own.outcome, own.reason) == ("started", "")
    backfilled.refresh_from_db()
    assert backfilled.finished_at is None, "nor is it cancelled"
    stage.end_jobs(id=backfilled.id)
    stage.run_for(3)
    assert Firing.objects.exclude(backfill="").filter(outcome="started").count() == 2, "nor waits it for them"
    assert Firing.objects.exclude(backfill="").filter(outcome="started", ended_at=None).count() == 1


def test_a_trigger_is_an_earlier_firing_for_the_timetable(stage: Stage) -> None:
    schedule = stage.put(overlap="skip")
    stage.clock.move(0.5)
    trigger(schedule, by="x", ports=stage.ports)
    stage.run_for(60)
    assert firings(schedule) == [("started", "", 1), ("skipped", "overlap", 1)]


def test_a_backfill_in_parallel_passes_one_that_waits(stage: Stage) -> None:
    stage.due = due_schedules.DueSchedulesSweep(due_schedules.DueLimits(fire=FireLimits(starts=2)))
    schedule = stage.put(cron="0 * * * *")
    backfilled(stage, schedule, 5)
    stage.run_for(2)
    backfilled(stage, schedule, 2, parallel=True)
    stage.run_for(2)
    assert Firing.objects.filter(may_overlap=True, outcome="started").count() == 2
    assert Firing.objects.filter(may_overlap=False, outcome="started").count() == 1


# -- what waits, and for what ------------------------------------------------------------------------------


def test_a_backfill_says_that_it_waits_for_a_person(stage: Stage) -> None:
    asks = {"nodes": {"best": {"human": {"title": "?", "choose_from": [1]}}}}
    put_definition(stage.tenant.pk, "asks", asks, ports=stage.ports)
    schedule = stage.put(cron="0 * * * *", workflow={"name": "asks"})
    assert backlog_of(schedule, stage.clock.now()) == Backlog()
    backfilled(stage, schedule, 3)
    lane = backlog_of(schedule, stage.clock.now()).backfills
    assert lane is not None
    assert (lane.waiting, "start within seconds" in lane.message) == (4, True)
    stage.run_for(2)
    run = Run.objects.get()
    advance_now(Advancer(stage.ports), run.id)
    lane = backlog_of(schedule, stage.clock.now()).backfills
    assert lane is not None
    assert [one.run_id for one in lane.running] == [run.id]
    assert lane.first_due_at == Firing.objects.filter(outcome="waiting").earliest("due_at").due_at
    assert lane.message == (
        f"3 firings of a backfill wait for the end of run {run.id}, which waits for an answer or a signal: "
        "best; a backfill with `parallel` does not wait for its earlier ones"
    )


def test_own_firings_say_what_they_wait_for(stage: Stage) -> None:
    schedule = stage.put(overlap="queue_one")
    stage.run_for(120)
    job = Job.objects.get()
    backlog = backlog_of(schedule, stage.clock.now())
    assert backlog.messages == [f"1 firing by the timetable waits for the end of job {job.id}"]
    stage.end_jobs()
    paused = pause_schedule(Schedule.objects.get(), ports=stage.ports)
    [message] = backlog_of(paused, stage.clock.now()).messages
    assert message == "1 firing by the timetable waits until the schedule is resumed"


# -- one truth about a pause -------------------------------------------------------------------------------


def test_a_paused_schedule_has_no_next_due_time_until_it_is_resumed(stage: Stage) -> None:
    schedule = stage.put(cron="0 * * * *", catch_up="all", catch_up_seconds=86_400.0)
    shown = shown_next_due_at
    assert shown(schedule, stage.clock.now()) == schedule.next_due_at
    paused = pause_schedule(schedule, ports=stage.ports)
    stage.run_for(3 * 3600 + 600)
    now = stage.clock.now()
    on_the_hour = now - timedelta(minutes=10)
    assert shown(paused, now) is None
    assert fire_times(paused, 3, now) == []
    if_resumed = fire_times_if_resumed(paused, 3, now)
    assert [one.due_at for one in if_resumed] == [on_the_hour + timedelta(hours=hour) for hour in (1, 2, 3)]
    resumed = resume_schedule(paused, ports=stage.ports)
    due = on_the_hour + timedelta(hours=1)
    assert shown(resumed, now) == due
    stage.sweep()
    assert Schedule.objects.get().next_due_at == due
    until = on_the_hour + timedelta(hours=5, minutes=30)
    paused = pause_schedule(Schedule.objects.get(), ports=stage.ports, until=until)
    assert shown(paused, stage.clock.now()) == on_the_hour + timedelta(hours=6)


def test_a_due_time_that_has_come_before_a_pause_is_still_next(stage: Stage) -> None:
    schedule = stage.put(jitter_seconds=3600.0)
    stage.clock.move(90)
    paused = pause_schedule(schedule, ports=stage.ports)
    assert shown_next_due_at(paused, stage.clock.now()) == schedule.next_due_at


def on_a_wrong_day(stage: Stage, schedule: Schedule) -> datetime:
    """Let the clock be three days ahead for five minutes; return the right time."""
    stage.run_for(90)
    right = stage.clock.now()
    stage.clock.at += timedelta(days=3)
    stage.run_for(300)
    stage.clock.at = right
    stage.run_for(600)
    assert Schedule.objects.get(pk=schedule.pk).handled_at > right + timedelta(days=3), "it is silent"
    return stage.clock.now()


def test_a_schedule_that_a_wrong_clock_made_silent_is_resumed(stage: Stage) -> None:
    schedule = stage.put()
    now = on_a_wrong_day(stage, schedule)
    before = starts(schedule)
    resume_schedule(Schedule.objects.get(), ports=stage.ports)
    rows = Firing.objects.filter(outcome="missed")
    assert all((row.until_at or row.due_at) <= now for row in rows), "these due times are still to come"
    stage.run_for(180)
    new = [due for due in starts(schedule) if due not in before]
    assert len(new) == 3
    assert all(now <= due <= stage.clock.now() for due in new)
    minutes = int((stage.clock.now() - schedule.created_at).total_seconds() / 60)
    counts = Firing.objects.filter(due_at__lte=stage.clock.now()).values_list("count", flat=True)
    assert sum(counts) == minutes, "each due time has one row"


def test_a_due_time_that_a_wrong_clock_started_is_not_started_again(stage: Stage) -> None:
    schedule = stage.put(catch_up="all", catch_up_seconds=86400)
    right = stage.clock.now() + timedelta(seconds=30)
    stage.clock.at += timedelta(seconds=200)
    stage.sweep()
    ahead = starts(schedule)
    assert len(ahead) == 3
    stage.clock.at = right
    resume_schedule(Schedule.objects.get(), ports=stage.ports)
    stage.run_for(300)
    assert starts(schedule)[:3] == ahead
    assert len(starts(schedule)) == len(set(starts(schedule))) == 5
    assert not list(check_schedules())


def test_a_clock_that_steps_back_by_seconds_winds_nothing_back(stage: Stage) -> None:
    schedule = stage.put(every_seconds=10)
    stage.run_for(120)
    handled_at = Schedule.objects.get().handled_at
    stage.clock.at -= timedelta(seconds=50)
    resume_schedule(Schedule.objects.get(), ports=stage.ports)
    assert Schedule.objects.get(pk=schedule.pk).handled_at == handled_at
