"""Metrics of runs, nodes, waits and steps."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import OperationalError

from jobs.models import EndNotice
from jobs.reports import counters
from tests.workflows.workflow_harness import WorkflowHarness, model
from workflows.metrics import collect
from workflows.models import Run
from workflows.operations.control import pause_run

pytestmark = pytest.mark.django_db(transaction=True)


def samples(harness: WorkflowHarness, *, name_tenants: bool = True) -> dict[str, float]:
    """Return the samples that are not 0, as ``name{label,…}``."""
    found = collect(harness.ports.clock.now(), name_tenants=name_tenants)
    return {
        f"{one.name}{{{','.join(one.labels.values())}}}": one.value
        for metric in found
        for one in metric.samples
        if one.value
    }


def test_runs_nodes_steps_and_waits_are_counted(harness: WorkflowHarness) -> None:
    cached = {**model(payload={"echo": 1}), "cache": {"ttl_seconds": 60}}
    for _ in range(2):
        harness.to_end(harness.start({"nodes": {"a": cached, "b": {**model(), "when": "a == `2`"}}}))
    waiting = harness.start({"nodes": {"ask": {"human": {"title": "?", "form": {}}}, "c": model()}})
    harness.advance(waiting)
    pause_run(waiting.id, ports=harness.ports)
    harness.advancer.counts.write()
    found = samples(harness)
    assert found["dispatcher_runs{w,paused}"] == 1
    assert found["dispatcher_runs_finished_total{w,completed}"] == 2
    assert found["dispatcher_nodes_total{model,completed}"] == 1
    assert found["dispatcher_nodes_total{model,cached}"] == 1
    assert found["dispatcher_nodes_total{model,skipped}"] == 2
    assert found["dispatcher_waits_open{human}"] == 1
    assert found["dispatcher_workflow_run_seconds_bucket{w,+Inf}"] == 2
    assert found["dispatcher_advance_seconds_bucket{+Inf}"] >= 4
    assert "dispatcher_runs_finished_total{,completed}" in samples(harness, name_tenants=False)
    assert not any("{w," in name for name in samples(harness, name_tenants=False))


@pytest.mark.database
def test_counts_are_kept_while_the_database_is_away(
    harness: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.to_end(harness.start({"nodes": {"a": model()}}))

    def away(*_: object) -> None:
        raise OperationalError

    with monkeypatch.context() as patch:
        patch.setattr(counters, "add", away)
        harness.advancer.counts.write()
    assert "dispatcher_nodes_total{model,completed}" not in samples(harness)
    harness.advancer.counts.write()
    assert samples(harness)["dispatcher_nodes_total{model,completed}"] == 1
    harness.advancer.counts.write()
    assert samples(harness)["dispatcher_nodes_total{model,completed}"] == 1


def test_an_end_that_no_run_read_has_an_age(harness: WorkflowHarness) -> None:
    run = harness.start({"nodes": {"a": model()}})
    assert "dispatcher_end_notices_oldest_seconds{}" not in samples(harness)
    at = harness.ports.clock.now() - timedelta(seconds=100)
    EndNotice.objects.create(followed_by=f"run:{run.id}", ended_id="x", state="completed", at=at)
    assert samples(harness)["dispatcher_end_notices_oldest_seconds{}"] >= 100
    assert Run.objects.count() == 1
