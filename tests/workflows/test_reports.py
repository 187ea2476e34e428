"""Why a run waits, when it will end, and what it cost."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from jobs.models import Attempt
from jobs.operations.tenants import create_key
from tests.workflows.theatre import Theatre, model
from workflows import operations
from workflows.domain.states import NodeState
from workflows.models import Node, Run
from workflows.reports.cost import cost_of
from workflows.reports.explain import RunReason, explain_run
from workflows.reports.forecast import forecast, longest_path
from workflows.reports.graph import graph_of, plan_of

pytestmark = pytest.mark.django_db(transaction=True)


def reasons(theatre: Theatre, run: Run) -> dict[str, RunReason]:
    run.refresh_from_db()
    plan = plan_of(run)
    return {one.node: one for one in explain_run(run, plan, graph_of(run, plan), theatre.ports)}


@pytest.mark.database
def test_a_run_names_what_each_node_waits_for(theatre: Theatre) -> None:
    theatre.put("child", {"nodes": {"s": {"signal": {"name": "go"}}}})
    run = theatre.start(
        {
            "nodes": {
                "job": model(),
                "ask": {"human": {"title": "?", "choose_from": [1], "expires_seconds": 60}},
                "sub": {"workflow": "child"},
                "later": {"timer": {"seconds": 60}},
                "all": {**model(), "map": {"count": 3}},
                "last": model(needs=["ask"]),
            }
        }
    )
    theatre.advance(run)
    theatre.advance(run)
    found = reasons(theatre, run)
    assert {key: one.code for key, one in found.items()} == {
        "job": "job_waiting", "ask": "answer", "sub": "sub_run", "later": "timer", "all": "map",
    }  # fmt: skip
    assert found["job"].reasons, "as the job's own explanation"
    assert found["all"].message.startswith("0 of 3 items have ended, 3 are under way.")
    assert found["all"].job_id is not None
    assert found["ask"].until is not None
    assert found["sub"].child_run_id == Run.objects.get(parent_node__run=run).id
    operations.pause_run(run.id, ports=theatre.ports)
    assert reasons(theatre, run)[""].code == "paused"
    operations.cancel_run(run.id, ports=theatre.ports)
    assert reasons(theatre, run)[""].code == "cancelling"


def test_the_forecast_is_the_longest_path_over_what_is_left(theatre: Theatre) -> None:
    run = theatre.start(
        {
            "nodes": {
                "a": {"timer": {"seconds": 10}},
                "b": {"timer": {"seconds": 20}, "needs": ["a"]},
                "c": {"timer": {"seconds": 25}},
                "ask": {"human": {"title": "?", "choose_from": [1]}, "needs": ["b"]},
                "unknown": model(needs=["c"]),
            }
        }
    )
    run = theatre.advance(run)
    plan = plan_of(run)
    found = forecast(run, plan, graph_of(run, plan), theatre.ports)
    assert found is not None
    assert found.path == ["a", "b"]
    assert 25 < found.seconds <= 30
    assert (found.answers, found.unknown) == (["ask"], ["unknown"])
    later = longest_path(
        plan, graph_of(run, plan), lambda node: 100.0, timezone.now() + timedelta(seconds=40)
    )
    assert later.path[-1] == "ask"
    assert 255 < later.seconds <= 260, "60 s are left of a"


@pytest.mark.database
def test_a_run_costs_what_the_attempts_of_its_jobs_and_sub_runs_took(theatre: Theatre) -> None:
    theatre.put("low", {"nodes": {"x": model(), "y": {**model(), "map": {"count": 2}}}})
    theatre.put("child", {"nodes": {"z": model(), "low": {"workflow": "low", "map": {"count": 2}}}})
    run = theatre.start(
        {
            "nodes": {
                "a": model(),
                "all": {**model(), "map": {"count": 3}},
                "sub": {"workflow": "child"},
            }
        }
    )
    other = theatre.start({"nodes": {"a": model()}})
    theatre.to_end(run)
    theatre.to_end(other)
    Attempt.objects.update(gpu_seconds=2.0)
    found = cost_of(run)
    assert dict(found.by_node) == {"a": 2.0, "all": 6.0, "sub": 14.0}, "a job of child, three of each low"
    assert found.total == 22.0
    below = Run.objects.get(parent_node__run=run)
    assert dict(cost_of(below).by_node) == {"z": 2.0, "low": 12.0}
    operations.restart_run(run.id, keys=["a"], ports=theatre.ports)
    theatre.to_end(run)
    Attempt.objects.update(gpu_seconds=2.0)
    assert cost_of(run).by_node["a"] == 4.0, "of both rounds"


def test_attempts_that_have_not_ended_cost_nothing_yet(theatre: Theatre) -> None:
    run = theatre.to_end(theatre.start({"nodes": {"a": model(), "b": model()}}))
    Attempt.objects.filter(job_id=Node.objects.get(run=run, key="a").job_id).update(gpu_seconds=None)
    assert set(cost_of(run).by_node) == {"b"}
    assert cost_of(theatre.start({"nodes": {"a": model()}})).total == 0


def test_the_api_explains_a_run(theatre: Theatre, client: Any) -> None:
    run = theatre.start({"nodes": {"ask": {"human": {"title": "?", "choose_from": [1]}}}})
    theatre.advance(run)
    _, key = create_key(theatre.tenant)
    answer = client.get(f"/api/v1/runs/{run.id}/explain", headers={"Authorization": f"Bearer {key}"})
    body = answer.json()
    assert answer.status_code == 200, body
    assert body["reasons"][0] | {"message": ""} == {
        "code": "answer", "message": "", "node": "ask", "job_id": None, "child_run_id": None, "until": None,
        "reasons": [],
    }  # fmt: skip
    assert body["cost"] == {"gpu_seconds": 0, "nodes": {}}
    assert body["ends_in"]["answers"] == ["ask"]


@pytest.mark.database
def test_a_restarted_map_counts_what_it_kept(theatre: Theatre) -> None:
    faults = [None, "fail", None]
    spec = {
        "nodes": {
            "all": {
                **model(payload={"fault": {"$ref": "item", "default": None}}),
                "map": {"over": faults, "fail_at": 1},
            },
        }
    }
    run = theatre.to_end(theatre.start(spec))
    operations.restart_run(run.id, ports=theatre.ports)
    run = theatre.advance(run)
    [node] = graph_of(run).nodes
    assert node.state is NodeState.RUNNING
    assert node.counts is not None
    assert node.counts.total == 3
    assert node.counts.completed >= 1
