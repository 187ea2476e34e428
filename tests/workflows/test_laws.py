"""Each law of runs, (9) to (13), is noticed when it is broken: a judge that sees nothing proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.db import transaction

from artifacts.models import Artifact, ArtifactUse
from foundation.ids import new_id
from jobs.models import EndNotice, Job
from tests.support.worker_harness import WorkerHarness
from tests.workflows.workflow_harness import WorkflowHarness, model
from verification.laws import check_laws
from verification.workflow_laws import check_runs
from workflows.domain.states import NodeState, RunState
from workflows.models import MapState, Node, Run, RunEvent, follower_of
from workflows.operations.answers import answer_wait
from workflows.operations.erase import erase_run_data
from workflows.operations.restart import restart_run

pytestmark = pytest.mark.django_db(transaction=True)
DEFINITION: dict[str, Any] = {
    "nodes": {
        "a": model(payload={"echo": {"$ref": "inputs.x"}}),
        "all": {**model(payload={"echo": {"$ref": "item"}}), "map": {"over": {"$ref": "a.echo"}}},
        "no": {**model(), "needs": ["a"], "when": "a.echo == `null`"},
        "b": {**model(payload={"echo": {"$ref": "all[0].echo"}})},
        "ask": {"human": {"title": "?", "form": {}, "expires_seconds": 1000}, "needs": ["b"]},
        "mail": model(),
    },
    "on_failure": {"node": "mail"},
}


def node(key: str, **changes: Any) -> None:
    assert Node.objects.filter(key=key).update(**changes) == 1


def map_state(**changes: Any) -> None:
    assert MapState.objects.update(**changes) == 1


def second_job() -> None:
    job = Job.objects.get(id=Node.objects.get(key="b").job_id)
    job.pk = new_id()
    job.save(force_insert=True)


def notice() -> None:
    run = Run.objects.get()
    job = Job.objects.get(id=Node.objects.get(key="b").job_id)
    EndNotice.objects.create(
        followed_by=follower_of(run.id), ended_id=job.id, state="completed", at=run.created_at
    )


def unended(key: str) -> None:
    node(key, state="running", finished_at=None)
    run = Run.objects.get()
    Run.objects.update(node_states={**run.node_states, key: "running"})


def resulted(key: str, result: Any) -> None:
    Job.objects.filter(id=Node.objects.get(key=key).job_id).update(result=result)


def moved(key: str, state: NodeState, code: str) -> None:
    run = Run.objects.get()
    Run.objects.update(node_states={**run.node_states, key: state.value})
    node(key, state=state.value, code=code)


Plants = dict[str, tuple[str, Callable[[], object]]]
PLANTS: Plants = {
    "a running run without its started event is over once too often": (
        "(9)",
        lambda: RunEvent.objects.filter(type="started").update(type="completed"),
    ),
    "a run and the row of its node disagree": ("(9)", lambda: node("no", state="cancelled")),
    "a notice is unread": ("(9)", notice),
    "the end of a job is lost": ("(9)", lambda: unended("b")),
    "a job belongs to no node": ("(10)", second_job),
    "a node that ran has no job": ("(10)", lambda: node("b", job_id=None)),
    "the job of a node is gone": ("(10)", lambda: node("b", job_id=new_id())),
    "a node was skipped although its needs completed": (
        "(10)",
        lambda: moved("b", NodeState.SKIPPED, "needs_skipped"),
    ),
    "a node ran although what it needs failed": ("(10)", lambda: moved("a", NodeState.FAILED, "x")),
    "a node was skipped although its `when` is true": ("(10)", lambda: resulted("a", {"echo": None})),
    "a payload is not what its reference selects": ("(11)", lambda: resulted("all[0]", {"echo": 9})),
    "an item was given another payload": (
        "(11)",
        lambda: Job.objects.filter(id=Node.objects.get(key="all[1]").job_id).update(payload={"echo": 1}),
    ),
    "an item never ran": ("(12)", lambda: Node.objects.filter(key="all[2]").delete()),
    "an item ran twice": ("(12)", lambda: node("all[2]", index=1)),
    "a map completed without its last item": ("(12)", lambda: map_state(next_index=2, completed=2)),
    "a map counts another number of failures": ("(12)", lambda: map_state(completed=2, failed=1)),
}


def broken(harness: WorkflowHarness) -> set[str]:
    return {line.partition(" ")[0] for line in check_runs(harness.ports, drained=True)}


def missed(harness: WorkflowHarness, plants: Plants) -> dict[str, set[str]]:
    """Plant each violation and take it back. Return those that broke another law than theirs, or none."""
    found = {}
    for name, (law, plant) in plants.items():
        with transaction.atomic():
            plant()
            if law not in (laws := broken(harness)):
                found[name] = laws
            transaction.set_rollback(True)
    return found


def test_each_planted_violation_is_noticed(harness: WorkflowHarness, worker_harness: WorkerHarness) -> None:
    """One run, which waits for an answer in the end; each violation is taken back."""
    run = harness.start(DEFINITION, {"x": [1, 2, 3]})
    harness.until(run, lambda: Node.objects.filter(key="ask").exists())
    assert check_laws(drained=True, ports=worker_harness.ports) == []
    assert missed(harness, PLANTS) == {}
    answer_wait(run, "ask", 1, by="me", ports=harness.ports)
    harness.to_end(run)
    assert broken(harness) == set()
    for change in (
        {"state": RunState.RUNNING.value, "finished_at": None},
        {"node_states": {**run.node_states, "b": "running"}},
    ):
        with transaction.atomic():
            Run.objects.update(**change)
            assert "(9)" in broken(harness)
            transaction.set_rollback(True)
    with transaction.atomic():
        RunEvent.objects.filter(type="completed").delete()
        assert broken(harness) == {"(9)"}
        transaction.set_rollback(True)
    with transaction.atomic():
        Run.objects.update(callback_url="https://x.example/")
        assert broken(harness) == {"(9)"}, "no callback was sent"
        transaction.set_rollback(True)


def test_a_restarted_map_that_keeps_what_never_completed_is_noticed(harness: WorkflowHarness) -> None:
    failing = {
        **model(payload={"fault": {"$ref": "item", "default": None}}),
        "map": {"over": {"$ref": "inputs"}},
    }
    run = harness.start({"nodes": {"all": failing}}, [None, "fail", None])
    harness.to_end(run)
    restart_run(run.id, ports=harness.ports)
    harness.until(run, lambda: run.round == 2 and run.state == RunState.FAILED)
    assert broken(harness) == set()
    with transaction.atomic():
        Node.objects.filter(key="all[1]", round=2).update(state="completed")
        MapState.objects.filter(node__round=2).update(failed=0, completed=1)
        lines = list(check_runs(harness.ports, drained=True))
        assert any(line.startswith("(12)") and "failed, and only 0" in line for line in lines)
        transaction.set_rollback(True)
    with transaction.atomic():
        Node.objects.filter(key="all[0]").update(state="cancelled")
        assert "(12)" in broken(harness)
        transaction.set_rollback(True)


def test_each_planted_violation_after_a_failure_is_noticed(harness: WorkflowHarness) -> None:
    """One run that a failure ended beside a question, with a handler."""
    nodes = {
        "a": model(),
        "bad": model(payload={"x": {"$ref": "a.nothing"}}),
        "ask": {"human": {"title": "?", "form": {}}},
        "say": {"human": {"title": "?", "form": {}}},
        "mail": model(),
    }
    definition = {"nodes": nodes, "on_failure": {"running": "cancel", "node": "mail"}}
    run = harness.start(definition)
    harness.advance(run)
    answer_wait(run, "say", 1, by="me", ports=harness.ports)
    harness.to_end(run)
    assert broken(harness) == set()
    last = RunEvent.objects.latest("id")
    plants: Plants = {
        "the handler did not run": ("(9)", lambda: moved("mail", NodeState.SKIPPED, "when_false")),
        "a node started after the failure": (
            "(10)",
            lambda: RunEvent.objects.create(
                run=run, seq=last.seq + 1, type="node_started", at=last.at, data={"node": "ask"}
            ),
        ),
        "an answer is not the output": ("(11)", lambda: node("say", output=2)),
        "a cancelled question completed": ("(11)", lambda: moved("ask", NodeState.COMPLETED, "")),
        "a handler ran in a run that completed": (
            "(9)",
            lambda: Run.objects.update(state=RunState.COMPLETED.value),
        ),
    }
    assert missed(harness, plants) == {}


def test_a_failed_job_is_no_node_that_was_cancelled_with_its_run(harness: WorkflowHarness) -> None:
    """Both have the code run_failed."""
    bad = model(payload={"fault": "fail"})
    nodes = {"a": bad, "b": {**model(), "needs": ["a"]}, "mail": bad}
    harness.to_end(harness.start({"nodes": nodes, "on_failure": {"node": "mail"}}))
    assert Node.objects.get(key="mail").code == "run_failed"
    assert broken(harness) == set(), "the handler has run, and failed"
    plants: Plants = {"its rule was not met": ("(10)", lambda: moved("b", NodeState.FAILED, "run_failed"))}
    assert missed(harness, plants) == {}


def test_data_that_an_erasure_left_is_noticed(harness: WorkflowHarness) -> None:
    harness.put("child", {"nodes": {"x": model()}})
    run = harness.start({"nodes": {"a": model(), "sub": {"workflow": "child"}}, "output": 1}, {"x": 1})
    harness.to_end(run)
    erase_run_data(run.id, ports=harness.ports)
    assert broken(harness) == set()
    for plant in (
        lambda: Run.objects.filter(id=run.id).update(inputs={"x": 1}),
        lambda: Run.objects.filter(id=run.id).update(erased_at=None),
        lambda: Run.objects.filter(depth=1).update(erase_requested_at=None),
        lambda: node("sub", settings={"inputs": {}}),
        lambda: resulted("a", {"echo": 1}),
    ):
        with transaction.atomic():
            plant()
            assert "run" in broken(harness)
            transaction.set_rollback(True)


def test_a_node_without_the_output_of_its_sub_run_is_noticed(harness: WorkflowHarness) -> None:
    harness.put("child", {"nodes": {"x": model()}, "output": 7})
    harness.to_end(harness.start({"nodes": {"sub": {"workflow": "child"}}}))
    assert broken(harness) == set()
    node("sub", output=None)
    assert broken(harness) == {"(11)"}
    harness.keeps_laws = False


def test_planted_violations_of_a_long_output_are_noticed(harness: WorkflowHarness, settings: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, inline_result_bytes=100)
    nodes = {"all": {**model(payload={"echo": [{"$ref": "index"}, "x" * 100]}), "map": {"count": 2}}}
    run = harness.to_end(harness.start({"nodes": nodes, "output": {"$ref": "all[*].echo"}}))
    assert None not in (run.output_artifact, Node.objects.get(key="all").output_artifact)
    assert broken(harness) == set()
    plants: dict[str, Callable[[], object]] = {
        "(13)": lambda: ArtifactUse.objects.filter(artifact_id=run.output_artifact).delete(),
        "(13) ": lambda: Artifact.objects.update(state=Artifact.State.GONE),
        "(11)": lambda: resulted("all[1]", {"echo": 9}),
        "(11) ": lambda: Run.objects.update(output=[1], output_artifact=None),
    }
    for law, plant in plants.items():
        with transaction.atomic():
            plant()
            assert broken(harness) == {law.strip()}
            transaction.set_rollback(True)
    artifact = Artifact.objects.get(id=run.output_artifact or "")
    harness.ports.artifact_store.remove(artifact.key)
    assert broken(harness) == {"(13)"}
    harness.keeps_laws = False
