"""Outputs of maps and runs that are too long for their rows: they are artifacts, and references read them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from artifacts.models import Artifact, ArtifactUse
from artifacts.refs import ref
from artifacts.removal import announce_unused
from artifacts.store.contract import StoreUnavailable, is_blocked
from gpus.models import Process
from jobs.domain.access import Principal
from jobs.models import Callback, Job
from jobs.sweeps import retention
from tests.workflows.workflow_harness import WorkflowHarness, model, states
from workflows.api.nodes import nodes_json
from workflows.api.representations import run_json
from workflows.domain.states import RunState
from workflows.execution import long_outputs, writes
from workflows.models import Node, Run
from workflows.operations.answers import answer_wait
from workflows.operations.erase import erase_run_data
from workflows.operations.restart import restart_run
from workflows.sweeps import old_runs

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]
TEXT = "ä" * 400
OPERATOR = Principal(tenant_id=None, is_operator=True, name="user:boss")


@pytest.fixture(autouse=True)
def short_rows(settings: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, inline_result_bytes=1_000)


def long_map(**more: Any) -> dict[str, Any]:
    """A map whose output is long, and a node that needs a short part of it."""
    return {
        "nodes": {
            "all": {**model(payload={"echo": [{"$ref": "index"}, TEXT]}), "map": {"count": 3}},
            "next": model(payload={"echo": {"$ref": "all[2].echo[0]"}}),
            **more,
        },
        "output": {"last": {"$ref": "next.echo"}, "echoes": {"$ref": "all[*].echo"}},
    }


def of(harness: WorkflowHarness, artifact_id: str | None) -> Any:
    artifact = Artifact.objects.get(id=artifact_id or "")
    return json.loads(harness.ports.artifact_store.read(artifact.key, 0, artifact.bytes))


def test_later_nodes_and_the_runs_output_refer_to_parts_of_a_long_output(harness: WorkflowHarness) -> None:
    run = harness.to_end(harness.start(long_map(), callback_url="https://hooks.example.com/"))
    assert run.state == RunState.COMPLETED, run.error_message
    node = Node.objects.get(run=run, key="all")
    assert node.output is None
    assert [one["echo"] for one in of(harness, node.output_artifact)] == [[n, TEXT] for n in range(3)]
    assert Job.objects.get(id=Node.objects.get(run=run, key="next").job_id).payload["echo"] == 2
    assert run.output is None
    assert of(harness, run.output_artifact) == {"last": 2, "echoes": [[n, TEXT] for n in range(3)]}
    used = ArtifactUse.objects.filter(run=run.id, job="").values_list("artifact_id", flat=True)
    assert set(used) == {node.output_artifact, run.output_artifact}
    shown = run_json(run, OPERATOR)
    assert shown["output"] == ref(run.output_artifact or "")
    assert shown["output_url"] == f"/api/v1/artifacts/{run.output_artifact}"
    node.child_run_id = None  # type: ignore[attr-defined]
    (row,) = nodes_json([node], OPERATOR)
    assert (row["output"], row["output_url"]) == (
        ref(node.output_artifact or ""),
        f"/api/v1/artifacts/{node.output_artifact}",
    )
    body = json.loads(Callback.objects.get().body)
    assert (body["output"], body["output_url"]) == (shown["output"], shown["output_url"])


@pytest.mark.sqlite_only
def test_a_short_output_stays_in_its_row(harness: WorkflowHarness) -> None:
    run = harness.to_end(
        harness.start({"nodes": {"all": {**model(), "map": {"count": 2}}}, "output": {"$ref": "length(all)"}})
    )
    assert (run.output, run.output_artifact) == (2, None)
    assert run_json(run, OPERATOR)["output_url"] is None
    assert not Artifact.objects.exists()


def test_the_long_output_of_a_sub_run_is_used_by_the_run_above_it_too(harness: WorkflowHarness) -> None:
    harness.put("sub", long_map())
    run = harness.to_end(harness.start({"nodes": {"s": {"workflow": "sub"}}}))
    node = Node.objects.get(run=run, key="s")
    assert node.output_artifact is not None
    users = ArtifactUse.objects.filter(artifact_id=node.output_artifact).values_list("run", flat=True)
    assert set(users) == {run.id, Run.objects.get(depth=1).id}


@pytest.mark.sqlite_only
def test_an_output_in_use_by_a_run_is_not_removed(
    harness: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = harness.to_end(harness.start(long_map()))
    Artifact.objects.update(expires_at=timezone.now() - timedelta(days=1))
    assert announce_unused(timezone.now(), 100) == 0
    Run.objects.filter(id=run.id).update(finished_at=timezone.now() - timedelta(days=1_000))
    monkeypatch.setattr(retention, "summed_up_to", lambda: 2**40)  # all is counted
    assert old_runs.sweep(harness.ports).repaired == 1
    Artifact.objects.update(expires_at=timezone.now() - timedelta(days=1))
    assert announce_unused(timezone.now(), 100) == 2, "once the run is gone"


@pytest.mark.sqlite_only
def test_a_restart_reads_the_output_that_stays(harness: WorkflowHarness) -> None:
    asks = {"human": {"title": "?", "choose_from": {"$ref": "run.round > `1` && all[*].echo[0]"}}}
    run = harness.to_end(harness.start(long_map(ask=asks)))
    assert states(run) == {"all": "completed", "next": "completed", "ask": "failed"}
    restart_run(run.id, ports=harness.ports)
    harness.until(run, lambda: states(run)["ask"] == "running")
    answer_wait(run, "ask", 2, by="me", ports=harness.ports)
    harness.to_end(run)
    assert (run.state, run.round) == (RunState.COMPLETED, 2)
    assert run.output_artifact is not None


@pytest.mark.sqlite_only
def test_an_output_that_was_removed_fails_the_node_that_needs_it(harness: WorkflowHarness) -> None:
    run = harness.start(
        long_map(
            next={**model(payload={"echo": {"$ref": "all[2].echo"}}), "needs": ["ask"]},
            ask={"human": {"title": "?", "choose_from": [1]}, "needs": ["all"]},
        )
    )
    harness.until(run, lambda: states(run)["ask"] == "running")
    Artifact.objects.update(state="gone")
    answer_wait(run, "ask", 1, by="me", ports=harness.ports)
    harness.to_end(run)
    node = Node.objects.get(run=run, key="next")
    assert (node.state, node.code) == ("failed", "output_gone")
    assert str(Node.objects.get(run=run, key="all").output_artifact) in node.detail
    harness.keeps_laws = False  # the output can't be read


@pytest.fixture
def store_away(harness: WorkflowHarness, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        for name in ("write", "read"):
            patch.setattr(type(harness.ports.artifact_store), name, away)
        yield patch


@pytest.mark.sqlite_only
def test_while_the_store_is_away_an_output_stays_in_its_row(
    harness: WorkflowHarness, store_away: pytest.MonkeyPatch
) -> None:
    run = harness.to_end(harness.start(long_map()))
    assert run.state == RunState.COMPLETED
    assert run.output["last"] == 2
    assert len(Node.objects.get(run=run, key="all").output) == 3
    assert not ArtifactUse.objects.exists()


@pytest.mark.sqlite_only
def test_an_output_stays_in_its_row_if_the_webs_host_has_another_folder(harness: WorkflowHarness) -> None:
    now = harness.ports.clock.now()
    Process.objects.create(name="web-9:7:a", kind="web", layout=1, started_at=now, beat_at=now)
    run = harness.to_end(harness.start(long_map()))
    assert run.state == RunState.COMPLETED
    assert run.output["last"] == 2
    assert not Artifact.objects.exists()


@pytest.mark.sqlite_only
def test_a_step_waits_for_a_store_that_does_not_answer(
    harness: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = harness.start(
        long_map(
            next={**model(payload={"echo": {"$ref": "all[2].echo[0]"}}), "needs": ["ask"]},
            ask={"human": {"title": "?", "choose_from": [1]}, "needs": ["all"]},
        )
    )
    harness.until(run, lambda: states(run)["ask"] == "running")
    answer_wait(run, "ask", 1, by="me", ports=harness.ports)

    def away(*_: object) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(type(harness.ports.artifact_store), "read", away)
        with pytest.raises(StoreUnavailable):
            harness.advancer.advance(run.id)
    harness.to_end(run)
    assert run.state == RunState.COMPLETED


def test_a_step_that_does_not_count_leaves_no_use(
    harness: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = harness.start({"nodes": {"all": {**model(payload={"echo": TEXT}), "map": {"count": 3}}}})
    harness.advance(run)
    while Job.objects.exclude(state="completed").exists():
        harness.worker.work("m")
    with monkeypatch.context() as patch:
        patch.setattr(writes, "lock_for_use", lambda ids: set())
        assert harness.advancer.advance(run.id) is True
    assert not ArtifactUse.objects.exists()
    assert states(run) == {"all": "running"}
    harness.to_end(run)
    assert ArtifactUse.objects.get().artifact_id == Node.objects.get(key="all").output_artifact
    assert Artifact.objects.count() == 1, "the same bytes are one artifact"


@pytest.mark.sqlite_only
def test_the_long_output_of_a_sub_run_is_read_by_its_parent(harness: WorkflowHarness) -> None:
    harness.put("child", long_map())
    run = harness.start(
        {
            "nodes": {
                "sub": {"workflow": "child"},
                "subs": {"workflow": "child", "map": {"count": 2}},
                "next": model(payload={"echo": [{"$ref": "sub.last"}, {"$ref": "subs[1].echoes[0][0]"}]}),
            },
            "output": {"$ref": "subs[*].last"},
        }
    )
    harness.to_end(run)
    assert (run.state, run.output) == (RunState.COMPLETED, [2, 2]), run.error_message
    assert Job.objects.get(id=Node.objects.get(run=run, key="next").job_id).payload["echo"] == [2, 0]


def test_erasing_a_run_erases_its_long_outputs(harness: WorkflowHarness) -> None:
    run = harness.to_end(harness.start(long_map()))
    keys = [artifact.key for artifact in Artifact.objects.all()]
    erase_run_data(run.id, ports=harness.ports)
    run.refresh_from_db()
    assert "$erased" in run.output
    assert run.output_artifact is None
    assert not Node.objects.exclude(output_artifact=None).exists()
    assert "$erased" in Node.objects.get(run=run, key="all").output
    assert set(Artifact.objects.values_list("state", flat=True)) == {"gone"}
    left = [harness.ports.artifact_store.find(key) for key in keys]
    assert [one is not None and is_blocked(one) for one in left] == [True, True]


# -- larger than a value -------------------------------------------------------------------------------------


def large_map(**more: Any) -> dict[str, Any]:
    """A map whose output is too large to be a value, as are those of some of its children."""
    deep = {
        "model": "m",
        "payload": {"seconds": 0.001, "echo": [{"$ref": "index"}, TEXT]},
        "map": {"count": 3},
    }
    return {"nodes": {"all": {**deep, "map": {"count": 5}}, **more}}


@pytest.fixture
def small_values(settings: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, workflow_value_bytes=1_900)


@pytest.mark.usefixtures("small_values")
def test_the_output_of_a_map_that_is_larger_than_a_value_is_an_artifact(harness: WorkflowHarness) -> None:
    """A reference to all of it selects the artifact, for a node and for the run; one to a part of it fails
    its node alone."""
    definition = large_map(
        file=model(payload={"echo": {"$ref": "all"}}),
        part=model(payload={"echo": {"$ref": "all[0].echo"}}),
    )
    run = harness.to_end(harness.start({**definition, "output": {"$ref": "all"}}))
    assert states(run) == {"all": "completed", "file": "completed", "part": "failed"}
    assert Node.objects.get(key="part").code == "value_too_large"
    assert "(DISPATCHER_WORKFLOW_VALUE_BYTES)" in Node.objects.get(key="part").detail
    node = Node.objects.get(key="all")
    assert node.output is None
    assert [one["echo"] for one in of(harness, node.output_artifact)] == [[n, TEXT] for n in range(5)]
    job = Job.objects.get(id=Node.objects.get(key="file").job_id)
    assert job.payload["echo"] == ref(node.output_artifact or "")
    assert ArtifactUse.objects.filter(job=job.id, artifact=node.output_artifact).exists()
    run = harness.to_end(harness.start({**large_map(), "output": {"it": {"$ref": "all"}}}))
    assert (run.state, run.output) == (RunState.COMPLETED, {"it": ref(node.output_artifact or "")})


@pytest.mark.usefixtures("small_values")
def test_outputs_of_all_kinds_of_children_are_joined_in_order(harness: WorkflowHarness) -> None:
    """Also of sub-runs, whose outputs are artifacts; a failed child has null."""
    echo = model(payload={"echo": TEXT}, map={"count": {"$ref": "inputs"}})
    first = {"$ref": "all[0].echo", "default": None}
    harness.put("sub", {"nodes": {"all": echo}, "output": [first, first]})
    subs = {"workflow": "sub", "inputs": {"$ref": "item"}, "map": {"over": [1, -1, 1, 0], "fail_at": 2}}
    run = harness.start({"nodes": {"subs": subs}})
    harness.to_end(run)
    assert run.state == RunState.COMPLETED, run.error_message
    node = Node.objects.get(key="subs")
    assert of(harness, node.output_artifact) == [[TEXT] * 2, None, [TEXT] * 2, [None] * 2]


@pytest.mark.usefixtures("small_values")
def test_a_large_output_that_the_store_refuses_costs_no_result(
    harness: WorkflowHarness, settings: Any
) -> None:
    """After a restart the map joins its items again, and none of them runs again."""
    limits = settings.DISPATCHER
    settings.DISPATCHER = replace(limits, tenant_artifact_bytes=1_000)
    run = harness.to_end(harness.start(large_map()))
    node = Node.objects.get(key="all")
    assert (run.state, node.code) == (RunState.FAILED, "output_not_stored")
    assert "restart the run to join them again" in node.detail
    settings.DISPATCHER = replace(limits, max_artifact_bytes=1_000)
    restart_run(run.id, ports=harness.ports)
    harness.to_end(run)
    assert "DISPATCHER_MAX_ARTIFACT_BYTES" in Node.objects.get(key="all", round=2).detail
    settings.DISPATCHER = limits
    restart_run(run.id, ports=harness.ports)
    harness.to_end(run)
    assert run.state == RunState.COMPLETED, run.error_message
    assert Job.objects.count() == 5
    joined = of(harness, Node.objects.get(key="all", round=3).output_artifact)
    assert [one["echo"][0] for one in joined] == list(range(5))


@pytest.mark.usefixtures("small_values")
@pytest.mark.sqlite_only
def test_a_large_output_waits_for_a_store_that_does_not_answer(
    harness: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = harness.start(large_map())

    def down(*given: Any, **more: Any) -> Any:
        raise StoreUnavailable("away")

    with monkeypatch.context() as broken:
        broken.setattr(long_outputs, "keep_file", down)
        with pytest.raises(StoreUnavailable):
            harness.to_end(run)
    assert states(run) == {"all": "running"}
    harness.to_end(run)
    assert run.state == RunState.COMPLETED, run.error_message


@pytest.mark.sqlite_only
def test_an_artifact_that_is_too_large_is_not_read(
    harness: WorkflowHarness, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = harness.to_end(harness.start(long_map()))
    settings.DISPATCHER = replace(settings.DISPATCHER, workflow_value_bytes=1_000)
    with pytest.raises(long_outputs.OverBudget, match="references read parts of up to 1000 "):
        long_outputs.stored_output(run, harness.ports)
    settings.DISPATCHER = replace(settings.DISPATCHER, workflow_value_bytes=100)
    monkeypatch.setattr(harness.ports.artifact_store, "read", None)  # its bytes are not even read
    with pytest.raises(long_outputs.OverBudget, match="references read parts of up to 100 "):
        long_outputs.stored_output(run, harness.ports)
    harness.keeps_laws = False
