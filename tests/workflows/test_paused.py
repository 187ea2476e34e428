"""Pausing a model or a tenant, and draining a server, act on the nodes of runs as on other jobs."""

from __future__ import annotations

import pytest

from gpus.models import Pause, Server
from gpus.protocol import DesiredState
from gpus.registry.controls import pause, resume, switch_server
from jobs.models import Job
from jobs.operations.tenants import pause_tenant, resume_tenant
from tests.workflows.workflow_harness import WorkflowHarness, model
from workflows.domain.states import RunState
from workflows.models import Run
from workflows.reports.explain import explain_run
from workflows.reports.graph import graph_of, plan_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]
BOSS = "user:boss"


def hold(harness: WorkflowHarness, what: str) -> None:
    if what == "model":
        pause(Pause.Kind.MODEL, "m", by=BOSS, leases=harness.ports.leases)
    elif what == "tenant":
        pause_tenant(harness.tenant, by=BOSS, ports=harness.ports)
    else:
        switch_server(Server.objects.get().name, DesiredState.DRAINING, by=BOSS, leases=harness.ports.leases)


def release(harness: WorkflowHarness, what: str) -> None:
    if what == "model":
        resume(Pause.Kind.MODEL, "m", by=BOSS, leases=harness.ports.leases)
    elif what == "tenant":
        resume_tenant(harness.tenant, by=BOSS, ports=harness.ports)
    else:
        switch_server(Server.objects.get().name, DesiredState.ON, by=BOSS, leases=harness.ports.leases)


def first_reason(harness: WorkflowHarness, run: Run) -> str:
    plan = plan_of(run)
    [reason] = explain_run(run, plan, graph_of(run, plan), harness.ports)
    return reason.reasons[0].code


@pytest.mark.parametrize("what", ["model", "tenant", "server"])
def test_a_node_waits_as_a_job_does_and_the_run_says_why(harness: WorkflowHarness, what: str) -> None:
    hold(harness, what)
    run = harness.start({"nodes": {"a": model(), "b": model(needs=["a"])}})
    for _ in range(3):
        harness.worker.work("m")
        harness.advance(run)
    assert list(Job.objects.values_list("state", flat=True)) == ["queued"]
    expected = {"model": "model_paused", "tenant": "tenant_paused", "server": "draining"}[what]
    assert first_reason(harness, run) == expected
    release(harness, what)
    assert harness.to_end(run).state == RunState.COMPLETED
