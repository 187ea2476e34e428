"""Nodes that take the result of an earlier job with the same content."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from artifacts.models import Artifact, ArtifactUse
from gpus.models import ModelConfig
from jobs.models import Job
from tests.support.factories import make_tenant
from tests.workflows.workflow_harness import WorkflowHarness, model
from workflows.domain.states import RunState
from workflows.models import CachedOutput, Node, Run
from workflows.operations import erase
from workflows.sweeps import old_runs

pytestmark = pytest.mark.django_db(transaction=True)


def cached(**more: Any) -> dict[str, Any]:
    return {**model(payload={"echo": {"$ref": "inputs.x"}}), "cache": {"ttl_seconds": 3600}, **more}


CHAIN = {
    "nodes": {"a": cached(), "b": {"timer": {"seconds": {"$ref": "a.echo"}}}},
    "output": {"$ref": "a.echo"},
}


def ran(harness: WorkflowHarness, x: Any = 0, definition: Any = CHAIN) -> Run:
    run = harness.start(definition, {"x": x})

    def ended() -> bool:
        from workflows.sweeps import due_waits

        due_waits.sweep(harness.ports)
        return run.state != RunState.RUNNING

    harness.until(run, ended)
    return run


def test_the_same_content_runs_once(harness: WorkflowHarness) -> None:
    first, second = ran(harness), ran(harness)
    assert [first.output, second.output] == [0, 0]
    assert Job.objects.count() == 1
    node = Node.objects.get(run=second, key="a")
    assert (node.state, node.cached_from, node.job_id) == ("completed", Job.objects.get().id, None)
    assert second.node_states == {"a": "completed", "b": "completed"}


def test_other_content_another_configuration_and_another_tenant_run_anew(harness: WorkflowHarness) -> None:
    ran(harness, 0)
    ran(harness, 0.001)
    assert Job.objects.count() == 2
    config = ModelConfig.objects.get(name="m")
    config.max_retries = 1
    config.save()
    ran(harness, 0)
    assert Job.objects.count() == 3
    harness.tenant = make_tenant("other")
    ran(harness, 0)
    assert Job.objects.count() == 4
    assert CachedOutput.objects.count() == 4, "no tenant replaces the entry of another"


def test_a_result_that_is_too_old_erased_or_removed_is_not_taken(harness: WorkflowHarness) -> None:
    run = ran(harness)
    CachedOutput.objects.update(expires_at=run.created_at - timedelta(seconds=1))
    run = ran(harness)
    assert Job.objects.count() == 2
    erase.erase_run_data(run.id, ports=harness.ports)
    run = ran(harness)
    assert Job.objects.count() == 3
    CachedOutput.objects.update(job_id="0" * 26)  # retention removed it
    ran(harness)
    assert Job.objects.count() == 4


@pytest.mark.database
def test_a_result_whose_artifact_is_gone_is_not_taken(harness: WorkflowHarness) -> None:
    run = ran(harness)
    artifact = Artifact.objects.create(
        id="A" * 26, tenant_id=harness.tenant.pk, bytes=1, sha256="0" * 64, created_at=run.created_at,
        expires_at=run.created_at + timedelta(days=1), state=Artifact.State.STORED,
    )  # fmt: skip
    Job.objects.update(result={"echo": 0, "image": {"$artifact": artifact.id}})
    ran(harness)
    assert Job.objects.count() == 1
    Artifact.objects.update(state=Artifact.State.GONE)
    ran(harness)
    assert Job.objects.count() == 2


@pytest.mark.database
def test_a_result_that_names_an_artifact_of_another_tenant_is_not_taken(harness: WorkflowHarness) -> None:
    """A use of it by the run would keep it there, also from its erasure."""
    run = ran(harness)
    artifact = Artifact.objects.create(
        id="A" * 26, tenant_id=make_tenant("other").pk, bytes=1, sha256="0" * 64, created_at=run.created_at,
        expires_at=run.created_at + timedelta(days=1), state=Artifact.State.STORED,
    )  # fmt: skip
    Job.objects.update(result={"echo": 0, "image": {"$artifact": artifact.id}})
    ran(harness)
    assert Job.objects.count() == 2
    assert not ArtifactUse.objects.exists()


def test_a_map_takes_cached_results_of_its_children_in_order(harness: WorkflowHarness) -> None:
    each = {
        "nodes": {
            "all": {
                **cached(payload={"echo": {"$ref": "item"}}),
                "map": {"over": {"$ref": "inputs.x"}, "max_parallel": 2},
            }
        },
        "output": {"$ref": "all[*].echo"},
    }
    assert ran(harness, [1, 2, 3], each).output == [1, 2, 3]
    assert ran(harness, [3, 4, 1, 1], each).output == [3, 4, 1, 1]
    assert Job.objects.count() == 4
    assert ran(harness, [4, 2], each).output == [4, 2]
    assert Job.objects.count() == 4, "a map of cached results alone ends, too"


def test_entries_that_have_expired_are_deleted(harness: WorkflowHarness) -> None:
    run = ran(harness)
    old_runs.sweep(harness.ports)
    assert CachedOutput.objects.count() == 1
    CachedOutput.objects.update(expires_at=run.created_at - timedelta(seconds=1))
    old_runs.sweep(harness.ports)
    assert CachedOutput.objects.count() == 0
