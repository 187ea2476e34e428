"""A run's data is erased with that of its jobs and sub-runs; a job's alone is not."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.core import serializers

from jobs.domain.errors import JobOfRun
from jobs.models import Job
from jobs.operations.erase import erase_job_data
from tests.workflows.workflow_harness import WorkflowHarness, model
from workflows.domain.errors import PartOfRun, RunErased, RunNotOver
from workflows.models import Run, Version
from workflows.operations import erase
from workflows.operations.answers import answer_wait
from workflows.operations.restart import restart_run
from workflows.sweeps import erasing_runs

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]
SECRET = "a secret of the tenant"

ALL_COPIES = {
    "nodes": {
        "a": model(payload={"echo": {"$ref": "inputs.x"}}),
        "all": {
            **model(payload={"echo": {"$ref": "item"}}),
            "map": {"over": [{"$ref": "a.echo"}, {"$ref": "inputs.x"}]},
        },
        "best": {"human": {"title": "?", "choose_from": {"$ref": "all[*].echo"}}},
        "sub": {"workflow": "child", "inputs": {"x": {"$ref": "best"}}},
        "bad": {"timer": {"seconds": {"$ref": "a.echo"}}, "needs": ["sub"]},
    },
    "output": {"x": {"$ref": "sub.x"}},
}


def everything() -> str:
    """All rows but definitions, as text."""
    rows: list[Any] = []
    for model_of in (
        *apps.get_app_config("workflows").get_models(),
        *apps.get_app_config("jobs").get_models(),
    ):
        if model_of is not Version:
            rows += model_of.objects.all()
    return str(serializers.serialize("json", rows))


def ended(harness: WorkflowHarness) -> Run:
    harness.put(
        "child",
        {"nodes": {"c": model(payload={"echo": {"$ref": "inputs.x"}})}, "output": {"x": {"$ref": "c.echo"}}},
    )
    run = harness.start(ALL_COPIES, {"x": SECRET})

    def answered() -> bool:
        if run.node_states["best"] == "running":
            answer_wait(run, "best", SECRET, by="ann", ports=harness.ports)
        return run.state != "running"

    harness.until(run, answered)
    assert run.node_states["sub"] == "completed"
    return run


def test_no_row_keeps_what_a_run_was_given_or_made(harness: WorkflowHarness) -> None:
    run = ended(harness)
    assert everything().count(SECRET) > 10
    run = erase.erase_run_data(run.id, ports=harness.ports)
    assert SECRET not in everything()
    assert run.erased_at is not None
    assert run.inputs["$erased"]["sha256"]
    assert Run.objects.filter(erased_at=None).count() == 0, "sub-runs, too"
    assert run.node_states["a"] == "completed", "states stay"
    with pytest.raises(RunErased):
        restart_run(run.id, ports=harness.ports)
    assert erase.erase_run_data(run.id, ports=harness.ports).erased_at is not None, "it may be repeated"


def test_a_job_of_a_run_is_not_erased_alone(harness: WorkflowHarness) -> None:
    run = ended(harness)
    job = Job.objects.filter(followed_by=f"run:{run.id}").first()
    assert job is not None
    with pytest.raises(JobOfRun, match=run.id):
        erase_job_data(job.id, ports=harness.ports)
    job.refresh_from_db()
    assert SECRET in str(job.payload)


def test_a_sub_run_is_not_erased_alone(harness: WorkflowHarness) -> None:
    run = ended(harness)
    child = Run.objects.get(depth=1)
    with pytest.raises(PartOfRun, match=run.id):
        erase.erase_run_data(child.id, ports=harness.ports)
    child.refresh_from_db()
    assert SECRET in str(child.output)
    assert child.erase_requested_at is None


def test_the_data_of_many_jobs_is_erased_by_a_sweep(harness: WorkflowHarness) -> None:
    run = ended(harness)
    assert erase.erase_run_data(run.id, ports=harness.ports, jobs_at_once=2).erased_at is None
    sweep = erasing_runs.ErasingRunsSweep()
    for _ in range(5):
        assert erasing_runs.is_needed(harness.ports)
        sweep(harness.ports, jobs_at_once=2)
        if not erasing_runs.is_needed(harness.ports):
            break
    run.refresh_from_db()
    assert run.erased_at is not None
    assert SECRET not in everything()
    assert sweep(harness.ports, jobs_at_once=2).looked == 0


def test_runs_that_can_not_be_erased_yet_do_not_delay_others(harness: WorkflowHarness) -> None:
    first, second = (harness.to_end(harness.start({"nodes": {"a": model()}}, {"x": SECRET})) for _ in "ab")
    for run in (first, second):
        erase.erase_run_data(run.id, ports=harness.ports, jobs_at_once=0)
    Job.objects.filter(followed_by=f"run:{first.id}").update(state="queued", finished_at=None)
    harness.keeps_laws = False
    sweep = erasing_runs.ErasingRunsSweep(max_runs=1)
    assert [sweep(harness.ports).repaired for _ in range(2)] == [0, 1]
    assert list(Run.objects.filter(erased_at=None)) == [first]


def test_a_run_under_way_keeps_its_data(harness: WorkflowHarness) -> None:
    run = harness.start({"nodes": {"a": model()}}, {"x": SECRET})
    with pytest.raises(RunNotOver):
        erase.erase_run_data(run.id, ports=harness.ports)
    run.refresh_from_db()
    assert run.inputs == {"x": SECRET}


@pytest.mark.parametrize("mark", [SECRET, {"at": SECRET}, {"at": "2026-01-01T00:00:00Z", "sha256": SECRET}])
def test_data_that_looks_erased_is_erased_too(harness: WorkflowHarness, mark: Any) -> None:
    look = {"$erased": mark}
    spec = {"nodes": {"a": model(payload={"echo": {"$ref": "inputs"}})}, "output": {"$ref": "a.echo"}}
    run = harness.to_end(harness.start(spec, look))
    Job.objects.update(payload=look, result=look)
    assert run.output == look
    erase.erase_run_data(run.id, ports=harness.ports)
    assert SECRET not in everything()
