"""The documented behaviours of queue_workflows, with its own examples on this dispatcher: each section of its
document that speaks of runs has a test here."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from jobs.models import EndNotice, Job
from tests.support.queue_workflows import PIPELINES, STREETVIEW, ask_step, node
from tests.support.waiting import wait_for
from tests.workflows.workflow_harness import WorkflowHarness, states
from workflows.definition.queue_workflows import convert
from workflows.domain.states import RunState
from workflows.models import Node, Run, RunEvent
from workflows.operations.answers import answer_wait
from workflows.operations.control import cancel_run
from workflows.operations.restart import restart_run
from workflows.sweeps.unread_notices import sweep as unread_notices

pytestmark = pytest.mark.django_db(transaction=True)


def converted(document: dict[str, Any], pipelines: dict[str, Any] = PIPELINES) -> dict[str, Any]:
    """The definition with the worker harness's model in place of each, which returns `echo`."""
    definition = copy.deepcopy(convert(document, pipelines).definition)
    definition.pop("name", None)
    for key, found in definition["nodes"].items():
        if "model" in found:
            found["payload"] = {"seconds": 0.001, "echo": {"node": key, "given": found["payload"]}}
            found["model"] = "m"
    return definition


def two_stages() -> dict[str, Any]:
    document = copy.deepcopy(STREETVIEW)
    document["steps"][1]["source"] = {"$value": ["a", "b"]}
    pipelines = copy.deepcopy(PIPELINES)
    pipelines["detect"]["nodes"][1]["inputs"] = [{"name": "image", "from": "sv_fetch.echo"}]
    return converted(document, pipelines)


def run_its_job(harness: WorkflowHarness) -> None:
    """Run the job that waits, to its end and the notice of that."""

    def ended() -> bool:
        harness.worker.work("m")
        return EndNotice.objects.exists()

    wait_for(ended)


def echo_of(run: Run, key: str) -> Any:
    job_id = Node.objects.get(run=run, key=key).job_id
    return Job.objects.get(id=job_id).result["echo"]


def test_enqueuing_is_one_transaction_and_a_lost_wake_is_repaired(harness: WorkflowHarness) -> None:
    """Inserting a row is enqueuing the work"; "no lost wake."""
    run = harness.start(two_stages(), {"parcel": {"area": "k"}})
    assert RunEvent.objects.filter(run=run, type="started").count() == 1
    assert harness.woken == [f"run:{run.id}"]
    harness.woken.clear()
    harness.advance(run)
    run_its_job(harness)
    harness.woken.clear()  # the wakes are lost
    EndNotice.objects.update(at=harness.ports.clock.now().replace(year=2020))
    unread_notices(harness.ports)
    assert states(run)["detect_sv_fetch"] == "completed"
    assert states(run)["detect_sv_detect"] == "running"


def test_two_stages_with_a_person_between_them(harness: WorkflowHarness) -> None:
    """A concrete mental model": row by row."""
    run = harness.start(two_stages(), {"parcel": {"area": "k"}})
    harness.until(run, lambda: states(run)["choose_best"] == "running")
    assert echo_of(run, "detect_sv_fetch")["given"] == {"area": "k"}
    # "$from … always reads the actual upstream result"
    assert echo_of(run, "detect_sv_detect")["given"]["image"] == echo_of(run, "detect_sv_fetch")
    # "nothing is running now: the fleet is free for other work", and the run is not stuck in a state
    assert not Job.objects.filter(finished_at=None).exists()
    assert run.state == RunState.RUNNING
    answer_wait(run, "choose_best", "b", by="someone", ports=harness.ports)
    harness.to_end(run)
    assert echo_of(run, "build_build_scene")["given"] == {"image": "b"}
    assert run.state == RunState.COMPLETED
    assert set(states(run).values()) == {"completed"}


def test_an_end_and_its_dispatch_are_one_and_are_read_once(harness: WorkflowHarness) -> None:
    """No lost edges, no double fan-out."""
    run = harness.start(two_stages(), {"parcel": {"area": "k"}})
    harness.advance(run)
    run_its_job(harness)
    (notice,) = EndNotice.objects.all()
    assert notice.ended_id == Node.objects.get(run=run, key="detect_sv_fetch").job_id
    harness.advance(run)
    EndNotice.objects.create(
        followed_by=notice.followed_by, ended_id=notice.ended_id, state=notice.state, at=notice.at
    )  # doubled
    harness.advance(run)
    assert Job.objects.filter(followed_by=notice.followed_by).count() == 2


def test_a_failed_node_fails_the_run_and_cancels_its_siblings(harness: WorkflowHarness) -> None:
    """When a node fails: cancel siblings; flip the run to failed."""
    pipeline = {"nodes": [node("fails"), node("after", "fails")]}
    document = {"name": "w", "steps": [{"id": "p", "kind": "pipeline", "pipeline": "p"}, ask_step("ask")]}
    definition = converted(document, {"p": pipeline})
    definition["nodes"]["p_fails"]["payload"] = {"fault": "fail", "seconds": 0.001}
    run = harness.to_end(harness.start(definition, {}))
    assert (run.state, run.error_node) == (RunState.FAILED, "p_fails")
    assert states(run) == {"p_fails": "failed", "p_after": "cancelled", "ask": "cancelled"}


def test_skipped_lanes_converge(harness: WorkflowHarness) -> None:
    """A node becomes ready when all its dependencies are completed (or skipped)."""
    lanes = [
        {
            "id": f"lane_{lane}",
            "kind": "pipeline",
            "pipeline": "one",
            "depends_on": ["turn"],
            "skip_if": {"$from": "turn.path", "$ne": lane},
        }
        for lane in "ab"
    ]
    merge = {
        "id": "merge",
        "kind": "pipeline",
        "pipeline": "merge",
        "depends_on": ["lane_a", "lane_b"],
        "inputs": {"of": {"$coalesce": [{"$from": "lane_a.echo.node"}, {"$from": "lane_b.echo.node"}]}},
    }
    turn = ask_step("turn", target="path", options=[{"value": "a"}, {"value": "b"}])
    pipelines = {
        "one": {"nodes": [node("work")]},
        "merge": {"nodes": [node("work", inputs=[{"name": "of", "from": "pipeline.of"}])]},
    }
    run = harness.start(converted({"name": "w", "steps": [turn, *lanes, merge]}, pipelines), {})
    harness.until(run, lambda: states(run)["turn"] == "running")
    answer_wait(run, "turn", "b", by="someone", ports=harness.ports)
    harness.to_end(run)
    assert states(run)["lane_a_work"] == "skipped"
    assert echo_of(run, "merge_work")["given"] == {"of": "lane_b_work"}


def test_a_restart_runs_only_what_failed(harness: WorkflowHarness) -> None:
    pipeline = {"nodes": [node("first"), node("second", "first")]}
    document = {"name": "w", "steps": [{"id": "p", "kind": "pipeline", "pipeline": "p"}]}
    definition = converted(document, {"p": pipeline})
    definition["nodes"]["p_second"]["payload"] = {"fault": "fail", "times": 1, "seconds": 0.001}
    run = harness.to_end(harness.start(definition, {}))
    assert run.state == RunState.FAILED
    first = Node.objects.get(run=run, key="p_first").job_id
    restart_run(run.id, ports=harness.ports)
    run.refresh_from_db()
    harness.to_end(run)
    assert Node.objects.get(run=run, key="p_first").job_id == first
    assert Node.objects.filter(run=run, key="p_second").count() == 2


def test_a_cancelled_run_starts_nothing_more(harness: WorkflowHarness) -> None:
    run = harness.start(two_stages(), {"parcel": {"area": "k"}})
    harness.until(run, lambda: states(run)["detect_sv_fetch"] == "completed")
    cancel_run(run.id, ports=harness.ports)
    harness.to_end(run)
    assert run.state == RunState.CANCELLED
    assert not Job.objects.filter(finished_at=None).exists()
    assert states(run)["build_export_glb"] == "cancelled"
