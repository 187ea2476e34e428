"""The error of a failed run says why its node failed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dispatcher_client.workflow_simulation import Failure, simulate
from foundation.ids import new_id
from jobs.domain.access import TEXTS
from jobs.models import Callback, Job
from jobs.operations.jobs import cancel_job
from tests.workflows.workflow_harness import WorkflowHarness, model
from workflows.api.representations import summary_json
from workflows.domain.states import NodeState, RunState
from workflows.execution.reasons import MAX_REASON, reason_of
from workflows.models import Node, Run, RunEvent

pytestmark = pytest.mark.django_db(transaction=True)
FAULT = {"fault": "fail"}
FAILED = "run_failed: The model failed with RuntimeError."
"""As tenants read it: without the text of the model's code."""
SECRET = "http://10.0.0.7:9000/secret"


def failed(harness: WorkflowHarness, nodes: dict[str, Any], **more: Any) -> Run:
    run = harness.to_end(harness.start({"nodes": nodes}, **more))
    assert run.state == RunState.FAILED
    return run


def test_a_run_quotes_the_error_of_its_node_everywhere(harness: WorkflowHarness) -> None:
    run = failed(
        harness,
        {"a": model(), "b": model(payload=FAULT, needs=["a"])},
        callback_url="https://hooks.example.com/",
    )
    assert "simulated" in Job.objects.exclude(error_code="").get().error_message
    message = f"b failed: {FAILED}"
    assert (run.error_code, run.error_node, run.error_message) == ("node_failed", "b", message)
    assert summary_json(Run.objects.get(id=run.id))["error"]["message"] == message
    assert json.loads(Callback.objects.get().body)["error"]["message"] == message
    assert RunEvent.objects.get(run=run, type="failed").data["error"]["message"] == message


def test_of_several_failed_nodes_the_first_is_quoted_and_the_others_are_counted(
    harness: WorkflowHarness,
) -> None:
    bad = {"model": "m", "payload": {"x": {"$ref": "inputs.none"}}}
    run = failed(harness, {"ok": model(), "a": bad, "b": model(payload=FAULT), "c": bad})
    assert run.error_message.startswith("a failed: unresolved_ref: /payload/x: ")
    assert run.error_message.endswith(" (2 more nodes failed)")


def test_the_error_names_the_node_for_which_the_others_were_cancelled(harness: WorkflowHarness) -> None:
    """The job of one node was cancelled by a client: `a` comes first, and is cancelled because of it."""
    waits = {"signal": {"name": "s"}}
    slow = model(payload={"seconds": 30})
    run = harness.start({"nodes": {"a": waits, "b": slow, "c": waits}, "on_failure": {"running": "cancel"}})
    harness.advance(run)
    cancel_job(Node.objects.get(key="b").job_id or "", ports=harness.ports)
    harness.to_end(run)
    assert set(run.node_states.values()) == {"cancelled"}
    assert (run.error_node, run.error_message.split(":")[0]) == ("b", "b failed")


def test_a_failed_map_quotes_its_first_failed_item(harness: WorkflowHarness) -> None:
    many = model(
        payload={"fault": {"$ref": "item", "default": None}}, map={"over": {"$ref": "inputs"}, "fail_at": 2}
    )
    run = failed(harness, {"many": many}, inputs=[None, "fail", None, "fail"])
    assert run.error_message == f"many failed: map_failed: 2 of 4 items failed; many[1] failed: {FAILED}"


def test_a_parent_quotes_the_error_of_its_sub_run(harness: WorkflowHarness) -> None:
    harness.put("sub", {"nodes": {"deep": model(payload=FAULT)}})
    run = failed(harness, {"below": {"workflow": "sub"}})
    assert run.error_message.startswith(f"below failed: node_failed: deep failed: {FAILED}")


@pytest.mark.parametrize(
    ("nodes", "node"),
    [
        ({"a": model(), "b": model(payload=FAULT, needs=["a"])}, "b"),
        ({"a": model(payload={"x": [{"$ref": "inputs.none"}]}), "b": model(payload=FAULT)}, "a"),
        ({"b": model(payload=FAULT), "a": model(payload={"x": {"$ref": "inputs.none"}})}, "b"),
        ({"late": model(needs=["b"], payload=FAULT), "b": model(payload=FAULT)}, "b"),
        ({"late": model(payload=FAULT, needs=["ok"]), "ok": model(), "b": model(payload=FAULT)}, "b"),
        ({"a": model(when="length(inputs.n) > `1`")}, "a"),
        ({"a": model(map={"over": {"$ref": "inputs.n"}})}, "a"),
        ({"a": model(map={"count": {"$ref": "inputs.none"}})}, "a"),
        ({"a": model(map={"count": 2, "max_parallel": 1}, payload={"x": {"$ref": "inputs.none"}})}, "a"),
        ({"a": model(map={"count": 2, "max_parallel": 1}, payload=FAULT)}, "a"),
        ({"below": {"workflow": "sub"}}, "below"),
        ({"a": {"timer": {"seconds": {"$ref": "inputs.none"}}}}, "a"),
        ({"a": {"human": {"title": "?", "choose_from": {"$ref": "inputs.none"}}}}, "a"),
        ({"a": model(payload=FAULT), "b": model(needs=["a"], needs_rule="all_done")}, None),
    ],
)
def test_a_simulated_run_has_the_same_error(
    harness: WorkflowHarness, nodes: dict[str, Any], node: str | None
) -> None:
    """As its `on_failure` node gets it."""
    harness.put("sub", {"nodes": {"deep": model(payload=FAULT)}})
    handler = model(payload={"echo": {"$ref": "error"}})
    spec = {
        "nodes": {**nodes, "handler": handler},
        "on_failure": {"node": "handler"},
        "output": {"x": {"$ref": "inputs.none"}},
    }
    harness.to_end(harness.start(spec, {"n": 1}))

    def fake(payload: Any) -> Any:
        if payload.get("fault"):
            raise Failure("The model failed with RuntimeError.")
        return {"echo": payload.get("echo")}

    def sub(inputs: Any) -> Any:
        raise Failure(f"deep failed: {FAILED}")

    found = simulate(spec, {"n": 1}, {"m": fake, "sub": sub})
    echoed = Job.objects.get(id=Node.objects.get(key="handler").job_id).result["echo"]
    assert (found.error, echoed["node"]) == (echoed, node)
    assert found.nodes["handler"].output == {"echo": echoed}


def test_a_reason_is_bounded_and_shows_a_tenant_no_text_of_a_server() -> None:
    def node(**values: Any) -> Node:
        return Node(state=NodeState.FAILED.value, **values)

    said = reason_of(node(code="server_error", detail=f"{SECRET}\n\nTraceback", job_id=new_id(0.0)))
    assert said == f"server_error: {TEXTS['server_error']}"
    long = reason_of(node(code="bad_line", detail="line 7:\n" + "x" * 2_000))
    assert (long[:18], long[-1], len(long)) == ("bad_line: line 7: ", "…", MAX_REASON)
    assert reason_of(node(code="", detail="")) == ""
