"""The calls about workflows, against the real web process; runs are advanced when a test asks for it."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher_client import (
    Client,
    Conflict,
    Invalid,
    MapItems,
    NotFound,
    RunFailed,
    RunNotOver,
    Workflow,
    WorkflowSummary,
)
from tests.dispatcher_client.scripted import Scripted, drop, says, streams
from tests.support.api_harness import Account, ApiHarness, api
from tests.support.live_web import redis_url, tenant, web
from tests.support.new_client import NewClient
from tests.support.servers.web import Web
from workflows.execution.advancer import Advancer
from workflows.sweeps.cancelling_runs import sweep as cancelling_runs
from workflows.tasks import advance_now

__all__ = ["api", "redis_url", "tenant", "web"]

CHOICE: dict[str, Any] = {
    "inputs": {"type": "object", "required": ["images"]},
    "nodes": {
        "best": {
            "map": {"over": {"$ref": "inputs.images"}},
            "human": {"title": "Choose", "choose_from": [{"$ref": "item"}, "none"]},
        },
        "paid": {"signal": {"name": "payment"}, "needs": ["best"]},
    },
    "output": {"best": {"$ref": "best"}, "paid": {"$ref": "paid"}},
}
FAILING = {"nodes": {"ask": {"human": {"title": "?", "choose_from": {"$ref": "inputs"}}}}}


@pytest.fixture
def client(web: Web, tenant: Account, new_client: NewClient) -> Client:
    return new_client(web.url, tenant.key)


def test_a_definition_has_versions(client: Client) -> None:
    first, again = client.workflows.put("choice", CHOICE), client.workflows.put("choice", CHOICE)
    assert (first.name, first.version, again.version) == ("choice", 1, 1)
    second = client.workflows.put("choice", {**CHOICE, "output": None})
    assert [found.version for found in client.workflows.versions("choice")] == [2, 1]
    assert [found.sha256 for found in client.workflows.versions("choice")] == [second.sha256, first.sha256]
    assert client.workflows.get("choice") == second
    assert client.workflows.get("choice", 1).definition == CHOICE
    assert list(client.workflows.list()) == [WorkflowSummary("choice", 2)]
    with pytest.raises(Invalid) as refused:
        client.workflows.put("choice", {"nodes": {"a": {"model": "zimg", "needs": ["b"]}}})
    assert refused.value.pointer == "/nodes/a/needs/0"
    with pytest.raises(NotFound):
        client.workflows.get("other")


def test_a_run_is_answered_signalled_and_waited_for(client: Client, api: ApiHarness) -> None:
    client.workflows.put("choice", CHOICE)
    inputs = {"images": ["x", "y"]}
    run = client.workflows.start("choice", inputs, tags=["a"], priority=2, idempotency_key="k")
    assert (
        client.workflows.start("choice", inputs, tags=["a"], priority=2, idempotency_key="k").run_id
        == run.run_id
    )
    assert (run.status, run.inputs, run.tags, run.priority) == ("running", inputs, ("a",), 2)
    advance_now(Advancer(api.ports), run.run_id)
    waiting = client.workflows.wait(run.run_id, 30, for_answer=True)
    assert waiting.waiting_for == ("best[0]", "best[1]")
    node = client.workflows.node(run.run_id, "best", 1)
    assert (node.key, node.kind, node.state) == ("best[1]", "human", "running")
    assert node.question is not None
    asked = (node.question.choose_from, node.question.answer_by, node.question.may_answer)
    assert asked == (("y", "none"), None, True)
    with pytest.raises(Invalid):
        client.workflows.answer(run.run_id, "best[1]", "z")
    for index, choice in enumerate(["none", "y"]):
        client.workflows.answer(run.run_id, f"best[{index}]", choice)
    client.workflows.answer(run.run_id, "best[1]", "y")  # a second try after a lost response
    for value, given in (("y", 2), ("none", None)):
        with pytest.raises(Conflict):
            client.workflows.answer(run.run_id, "best[1]", value, round=given)
    with pytest.raises(RunNotOver):
        client.workflows.wait(run.run_id, 0.05)
    advance_now(Advancer(api.ports), run.run_id)
    assert [client.workflows.signal("payment", {"euro": 3}), client.workflows.signal("payment")] == [1, 0]
    advance_now(Advancer(api.ports), run.run_id)
    ended = client.workflows.wait(run.run_id, 30)
    assert (ended.is_over, ended.output) == (True, {"best": ["none", "y"], "paid": {"euro": 3}})
    types = [event.type for event in client.workflows.events(run.run_id)]
    assert types[0] == "started"
    assert types.count("node_ended") == 2
    assert types[-2:] == ["completed", "done"]
    assert {(node.key, node.state) for node in client.workflows.nodes(run.run_id, state="completed")} == {
        ("best", "completed"),
        ("best[0]", "completed"),
        ("best[1]", "completed"),
        ("paid", "completed"),
    }
    assert [found.run_id for found in client.workflows.runs(workflow="choice", status="completed")] == [
        run.run_id
    ]
    filtered = client.workflows.runs(parent="none", tag="a", paused=False, waiting=False)
    assert [(found.run_id, found.parent, found.erased_at) for found in filtered] == [(run.run_id, None, None)]
    assert list(client.workflows.runs(waiting=True)) == list(client.workflows.runs(paused=True)) == []
    with pytest.raises(NotFound, match="no node other"):
        client.workflows.node(run.run_id, "other")
    items = client.workflows.node(run.run_id, "best").items
    assert items == MapItems(total=2, completed=2, failed=0, running=0, left=0)
    assert client.workflows.node(run.run_id, "paid").items is None
    of_map = client.workflows.items(run.run_id, "best")
    assert {index: node.output for index, node in of_map.items()} == {0: "none", 1: "y"}
    assert (of_map[1].key, str(of_map[1].answered_by)[:4]) == ("best[1]", "key:")
    assert client.workflows.items(run.run_id, "paid") == {}
    assert str(ended.urls["page"]).endswith(f"/workflows/run/{run.run_id}/change/")
    with pytest.raises(Conflict) as refused:
        client.workflows.restart(run.run_id)
    assert refused.value.code == "nothing_to_restart"
    assert client.workflows.erase(run.run_id).erased_at is not None
    assert "$erased" in client.workflows.get_run(run.run_id).output


def test_a_definition_runs_without_being_stored(client: Client, api: ApiHarness) -> None:
    wf = Workflow("pause")
    wf.output(pause=wf.timer(seconds=0.001))
    for workflow in (wf, wf.definition()):
        run = client.workflows.start(workflow, priority=2)
        assert (run.workflow, run.version, run.priority) == ("_pause", 1, 2)
    assert list(client.workflows.list()) == []
    assert [run.workflow for run in client.workflows.runs(workflow="_pause")] == ["_pause", "_pause"]
    with pytest.raises(Invalid) as refused:
        client.workflows.run({"nodes": {"a": {"model": "none"}}})
    assert refused.value.pointer == "/definition/nodes/a/model"
    with pytest.raises(ValueError, match="a definition has no version"):
        client.workflows.start(wf, version=1)


def test_a_run_is_explained(client: Client, api: ApiHarness) -> None:
    client.workflows.put("choice", CHOICE)
    run_id = client.workflows.start("choice", {"images": ["x"]}).run_id
    advance_now(Advancer(api.ports), run_id)
    why = client.workflows.explain(run_id)
    assert why.ends_in is not None
    assert (why.status, why.ends_in.answers, why.ends_in.held) == ("running", ("best", "paid"), None)
    assert (why.cost.gpu_seconds, why.cost.nodes) == (0, {})
    assert (why.reasons[0].code, why.reasons[0].node, why.reasons[0].position) == ("map", "best", None)
    client.workflows.pause(run_id)
    held = client.workflows.explain(run_id).ends_in
    assert held is not None
    assert (held.held, held.seconds) == ("paused", None)


def test_a_run_is_paused_resumed_cancelled_and_restarted(client: Client, api: ApiHarness) -> None:
    client.workflows.put("choice", CHOICE)
    run_id = client.workflows.start("choice", {"images": ["x"]}).run_id
    assert client.workflows.pause(run_id).paused
    assert not client.workflows.resume(run_id).paused
    advance_now(Advancer(api.ports), run_id)
    with pytest.raises(Conflict):
        client.workflows.restart(run_id)
    client.workflows.cancel(run_id)
    cancelling_runs(api.ports)
    advance_now(Advancer(api.ports), run_id)
    assert client.workflows.wait(run_id, 30).status == "cancelled"
    for call in (client.workflows.cancel, client.workflows.pause, client.workflows.resume):
        with pytest.raises(Conflict):
            call(run_id)
    again = client.workflows.restart(run_id, ["best"])
    assert (again.status, again.round) == ("running", 2)
    advance_now(Advancer(api.ports), run_id)
    assert client.workflows.node(run_id, "best[0]").round == 2
    assert client.workflows.items(run_id, "best")[0].round == 2, "of its newest round"


def test_run_raises_the_failure_of_its_run(
    client: Client, api: ApiHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.workflows.put("failing", FAILING)
    run = client.workflows.start("failing", "text", idempotency_key="k")
    advance_now(Advancer(api.ports), run.run_id)
    with pytest.raises(RunFailed) as failed:
        client.workflows.run("failing", "text", idempotency_key="k", timeout_seconds=30)
    assert (failed.value.node, failed.value.code) == ("ask", "node_failed")
    assert failed.value.run.run_id == run.run_id


def test_events_that_come_again_after_a_reconnect_are_yielded_once(
    server: Scripted, new_client: NewClient
) -> None:
    def job_event(seq: int) -> bytes:
        return b'id: 1.%d\nevent: job_started\ndata: {"job_id": "J", "seq": %d}\n\n' % (seq, seq)

    done = b'event: done\ndata: {"status": "completed"}\n\n'
    server.will(streams(b"retry: 1\n\n", job_event(1), job_event(2)))
    server.will(streams(job_event(2), job_event(3), done))
    found = [
        event.data.get("seq")
        for event in new_client(server.url, "the-key", retry_seconds=20).workflows.events("R")
    ]
    assert found == [1, 2, 3, None]
    assert server.asked[1].headers["last-event-id"] == "1.2"
    assert server.asked[1].path == "/runs/R/events"


def test_all_tries_of_a_signal_carry_one_key(server: Scripted, new_client: NewClient) -> None:
    server.will(drop, drop, says(200, {"taken": 2}))
    assert new_client(server.url, "the-key", retry_seconds=20).workflows.signal("paid", {"euro": 3}) == 2
    assert len(server.asked) == 3
    assert len(set(server.keys)) == 1


def test_an_answer_for_a_round_carries_only_a_key_that_is_given(
    server: Scripted, new_client: NewClient
) -> None:
    client = new_client(server.url, "the-key", retry_seconds=20)
    server.will(drop, *[says(409, {"code": "not_waiting"})] * 3)
    for given in ({}, {"round": 2}, {"round": 2, "idempotency_key": "k"}):
        with pytest.raises(Conflict):
            client.workflows.answer("R", "best", 1, **given)
    lost, *keys = [asked.headers.get("idempotency-key") for asked in server.asked]
    assert keys == [lost, None, "k"]
    assert lost


def test_all_tries_of_a_start_carry_one_key(server: Scripted, new_client: NewClient) -> None:
    server.will(drop, drop, says(404, {"code": "unknown_workflow"}))
    with pytest.raises(NotFound):
        new_client(server.url, "the-key", retry_seconds=20).workflows.start("film")
    assert len(server.asked) == 3
    assert len(set(server.keys)) == 1
