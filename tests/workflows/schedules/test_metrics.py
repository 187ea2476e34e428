"""Metrics of schedules: states, due times by outcome, lag, the one that is due longest."""

from __future__ import annotations

import pytest

from tests.support.schedules import Stage
from workflows.schedules.metrics import collect
from workflows.schedules.models import Schedule
from workflows.schedules.operations.pause import pause_schedule

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


def samples(stage: Stage) -> dict[str, float]:
    """The samples that are not 0."""
    found = collect(stage.clock.now(), name_tenants=True)
    return {
        f"{one.name}{{{','.join(one.labels.values())}}}": one.value
        for metric in found
        for one in metric.samples
        if one.value
    }


def test_schedules_and_their_due_times_are_counted(stage: Stage) -> None:
    stage.put("a", overlap="skip")
    stage.put("b", catch_up="none", cron="*/2 * * * *")
    pause_schedule(stage.put("c"), ports=stage.ports)
    broken = stage.put("d")
    Schedule.objects.filter(pk=broken.pk).update(error_code="x", next_at=None)
    stage.run_for(120)
    stage.clock.move(180)
    overdue = samples(stage)["dispatcher_schedules_overdue_seconds{}"]
    assert overdue == 120
    stage.sweep()
    found = samples(stage)
    assert found["dispatcher_schedules{active}"] == 2
    assert found["dispatcher_schedules{paused}"] == found["dispatcher_schedules{error}"] == 1
    assert found["dispatcher_firings_total{started,}"] == 2
    assert found["dispatcher_firings_total{skipped,overlap}"] == 2
    assert found["dispatcher_firings_total{missed,late}"] == 3
    assert found["dispatcher_firing_lag_seconds_bucket{1.0}"] == 2
    assert "dispatcher_schedules_overdue_seconds{}" not in found
