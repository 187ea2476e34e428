"""Why a run waits, when it will end, and what it cost."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from foundation.ids import new_id
from gpus.models import Pause
from jobs.models import Attempt, Job, Rollup
from jobs.operations.tenants import create_key
from jobs.ports import Ports
from jobs.reports.history import WINDOWS, RecentHistory
from jobs.reports.rollups import BOUNDS_SECONDS, span_begin
from tests.support.fakes import ManualClock
from tests.workflows.workflow_harness import WorkflowHarness, model
from workflows.domain.plan import Plan
from workflows.domain.states import NodeState
from workflows.models import Node, Run
from workflows.operations.control import cancel_run, pause_run, resume_run
from workflows.operations.restart import restart_run
from workflows.reports.cost import cost_of
from workflows.reports.explain import Allowance, RunReason, explain_run
from workflows.reports.forecast import Forecast, Left, forecast, longest_path
from workflows.reports.graph import graph_of, plan_of

pytestmark = pytest.mark.django_db(transaction=True)


def reasons(harness: WorkflowHarness, run: Run) -> dict[str, RunReason]:
    run.refresh_from_db()
    plan = plan_of(run)
    return {one.node: one for one in explain_run(run, plan, graph_of(run, plan), harness.ports)}


@pytest.mark.database
def test_a_run_names_what_each_node_waits_for(harness: WorkflowHarness) -> None:
    harness.put("child", {"nodes": {"s": {"signal": {"name": "go"}}}})
    run = harness.start(
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
    harness.advance(run)
    harness.advance(run)
    found = reasons(harness, run)
    assert {key: one.code for key, one in found.items()} == {
        "job": "job_waiting", "ask": "answer", "sub": "sub_run", "later": "timer", "all": "map",
    }  # fmt: skip
    assert found["job"].reasons, "as the job's own explanation"
    assert found["job"].position is not None
    assert found["all"].position is not None, "of its first job"
    assert found["all"].message.startswith("0 of 3 items have ended, 3 are under way.")
    assert found["all"].job_id is not None
    assert found["ask"].until is not None
    assert found["sub"].child_run_id == Run.objects.get(parent_node__run=run).id
    pause_run(run.id, ports=harness.ports)
    assert reasons(harness, run)[""].code == "paused"
    cancel_run(run.id, ports=harness.ports)
    assert reasons(harness, run)[""].code == "cancelling"


def test_the_forecast_is_the_longest_path_over_what_is_left(harness: WorkflowHarness) -> None:
    run = harness.start(
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
    run = harness.advance(run)
    plan = plan_of(run)
    found = forecast(run, plan, graph_of(run, plan), harness.ports)
    assert found is not None
    assert found.path == ("a", "b")
    assert found.seconds is not None
    assert 25 < found.seconds <= 30
    assert (found.answers, found.unknown) == (("ask",), ("unknown",))
    assert found.unanswered_seconds is None, "the question has no expiry"


def test_the_longest_path_begins_with_what_is_left(harness: WorkflowHarness) -> None:
    run = harness.start({"nodes": {"a": model(), "b": model(needs=["a"]), "c": model(), "d": model()}})
    plan = plan_of(run)
    left = {"a": Left(10, 10), "b": Left(5, None), "c": Left(12, 40, asks=True), "d": Left(1, 1, False)}
    found = longest_path(plan, graph_of(run, plan), lambda node, start: left[node.key])
    assert (found.seconds, found.path, found.answers, found.unknown) == (15, ("a", "b"), ("c",), ("d",))
    assert found.unanswered_seconds is None


def ends_in(harness: WorkflowHarness, run: Run, *, after: float = 0.0) -> Forecast:
    """The forecast of a run, by a clock that is so many seconds ahead."""
    run.refresh_from_db()
    plan, graph = plan_of(run), graph_of(run)
    found = forecast(
        run, plan, graph, ahead(harness, after), reasons=explain_run(run, plan, graph, harness.ports)
    )
    assert found is not None
    return found


def ahead(harness: WorkflowHarness, seconds: float) -> Ports:
    clock = ManualClock(at=harness.ports.clock.now() + timedelta(seconds=seconds))
    return replace(harness.ports, clock=clock)


@pytest.mark.parametrize("seconds", [{"seconds": {"$ref": "inputs.wait"}}, {"until": {"$ref": "inputs.at"}}])
def test_a_timer_by_reference_or_until_a_time_is_known(
    harness: WorkflowHarness, seconds: dict[str, Any]
) -> None:
    until = (timezone.now() + timedelta(seconds=100)).isoformat()
    nodes = {
        "a": {"timer": seconds},
        "b": {"timer": seconds, "needs": ["a"]},
        "c": {"timer": {"seconds": {"$ref": "ask.seconds", "default": 5}}},
        "ask": {"human": {"title": "?", "form": True}},
    }
    run = harness.start({"nodes": nodes}, {"wait": 50, "at": until})
    found = ends_in(harness, run)
    assert found.seconds == pytest.approx(100, abs=5), "twice 50, or once until then"
    assert found.unknown == ("c",), "the answer says how long it takes"
    harness.advance(run)
    assert ends_in(harness, run, after=40).seconds == pytest.approx(60, abs=5)


def test_a_wait_with_an_expiry_ends_by_then(harness: WorkflowHarness) -> None:
    ask = {"human": {"title": "?", "choose_from": [1], "expires_seconds": 600}}
    nodes = {
        "ask": ask,
        "again": {**ask, "needs": ["ask"]},
        "last": {"timer": {"seconds": 7}, "needs": ["again"]},
    }
    run = harness.start({"nodes": nodes})
    harness.advance(run)
    found = ends_in(harness, run, after=100)
    assert (found.seconds, found.answers) == (7, ("ask", "again"))
    assert found.unanswered_seconds == pytest.approx(500 + 600 + 7, abs=5)


def test_a_job_that_waits_has_its_whole_time_before_it(harness: WorkflowHarness) -> None:
    run = harness.start({"nodes": {"a": model(), "b": model(needs=["a"])}})
    harness.advance(run)
    now = harness.ports.clock.now()
    runs = [0] * (len(BOUNDS_SECONDS) + 1)
    runs[BOUNDS_SECONDS.index(60.0)] = 9
    Rollup.objects.create(
        span_seconds=600, at=span_begin(now, 600), model="m", tenant=harness.tenant, completed=9, runs=runs
    )
    harness.ports = replace(harness.ports, recent_history=RecentHistory())
    learnt = harness.ports.recent_history(WINDOWS["24h"], now).line("m").run(0.5)
    assert learnt is not None
    Job.objects.update(started_at=now - timedelta(hours=1))  # of an attempt before
    waits = ends_in(harness, run, after=3000)
    assert waits.seconds is not None
    assert waits.seconds >= 2 * learnt, "however long the job has waited"
    Job.objects.update(state="running", started_at=now, live_attempt=new_id())
    assert ends_in(harness, run, after=learnt / 2).seconds == pytest.approx(1.5 * learnt, abs=1)
    assert ends_in(harness, run, after=3000).seconds == pytest.approx(learnt, abs=1), "b alone"


@pytest.mark.parametrize("kind", [Pause.Kind.MODEL, Pause.Kind.TENANT, Pause.Kind.SYSTEM])
def test_a_job_that_can_not_start_has_no_known_time(harness: WorkflowHarness, kind: Pause.Kind) -> None:
    run = harness.start({"nodes": {"a": model(), "t": {"timer": {"seconds": 60}}}})
    harness.advance(run)
    names = {Pause.Kind.MODEL: "m", Pause.Kind.TENANT: str(harness.tenant.pk), Pause.Kind.SYSTEM: ""}
    Pause.objects.create(kind=kind, name=names[kind], since=timezone.now())
    found = ends_in(harness, run)
    assert found.seconds == pytest.approx(60, abs=5), "at least"
    assert found.unknown == ("a",)
    reason = reasons(harness, run)["a"]
    assert (reason.starts, reason.reasons[0].code) == (None, f"{kind}_paused")


def test_a_map_counts_with_its_items_before_it_starts(harness: WorkflowHarness) -> None:
    pause = {"timer": {"seconds": 10}}
    nodes = {
        "first": {"timer": {"seconds": 1}},
        "listed": {**pause, "map": {"over": {"$ref": "inputs"}, "max_parallel": 2}, "needs": ["first"]},
        "counted": {**pause, "map": {"count": 3, "max_parallel": 1}, "needs": ["first"]},
        "none": {**pause, "map": {"count": 0}},
        "made": {**pause, "map": {"over": {"$ref": "counted"}}},
    }
    run = harness.start({"nodes": nodes}, [1, 2, 3, 4, 5])
    found = ends_in(harness, run)
    assert found.path == ("first", "counted", "made")
    assert found.seconds == 1 + 30 + 10, "at least: of made one item"
    assert found.unknown == ("made",)


def test_the_node_of_a_failure_counts_once_it_runs(harness: WorkflowHarness) -> None:
    spec = {
        "nodes": {"a": model(payload={"fault": "fail"}), "notify": {"timer": {"seconds": 50}}},
        "on_failure": {"node": "notify"},
    }
    run = harness.start(spec)
    harness.until(run, lambda: run.node_states["notify"] == "running")
    assert ends_in(harness, run).seconds == pytest.approx(50, abs=5)


def test_a_definition_that_this_release_can_not_read_has_no_known_end(harness: WorkflowHarness) -> None:
    run = harness.start({"nodes": {"a": model()}})
    assert longest_path(Plan(nodes={}), graph_of(run), lambda node, start: Left(1, 1)) == Forecast()


def test_a_held_run_says_so(harness: WorkflowHarness) -> None:
    run = harness.start({"nodes": {"t": {"timer": {"seconds": 60}}}})
    harness.advance(run)
    pause_run(run.id, ports=harness.ports)
    assert ends_in(harness, run) == Forecast(held="paused")
    resume_run(run.id, ports=harness.ports)
    assert ends_in(harness, run).held is None
    cancel_run(run.id, ports=harness.ports)
    assert ends_in(harness, run) == Forecast(held="cancelling")


@pytest.mark.parametrize(("deadline", "misses"), [(30.0, True), (300.0, False)])
def test_a_run_that_will_miss_its_deadline_says_so(
    harness: WorkflowHarness, deadline: float, misses: bool
) -> None:
    run = harness.start({"nodes": {"t": {"timer": {"seconds": 60}}}}, deadline_seconds=deadline)
    harness.advance(run)
    assert ends_in(harness, run).misses_deadline is misses


def test_a_sub_run_is_looked_into(harness: WorkflowHarness) -> None:
    harness.put("low", {"nodes": {"ask": {"human": {"title": "?", "form": True, "expires_seconds": 500}}}})
    harness.put("child", {"nodes": {"low": {"workflow": "low"}, "t": {"timer": {"seconds": 90}}}})
    run = harness.start(
        {"nodes": {"sub": {"workflow": "child"}, "all": {"workflow": "low", "map": {"count": 9}}}}
    )
    for _ in range(4):
        harness.advance(run)
        for below in Run.objects.filter(depth__gt=0):
            harness.advance(below)
    found = reasons(harness, run)
    text = "The run of the workflow child is under way. low: The run of the workflow low is under way."
    assert found["sub"].message == f"{text} ask: It waits for the answer of a person."
    assert found["sub"].until is not None
    assert found["all"].message.endswith("ask: It waits for the answer of a person.")
    ends = ends_in(harness, run, after=10)
    assert ends.seconds == pytest.approx(80, abs=5)
    assert ends.answers == ("sub",)
    assert ends.unknown == ("all",), "no run of low has ended yet"
    below = Run.objects.get(depth=1, parent_node__key="sub")
    pause_run(below.id, ports=harness.ports)
    assert reasons(harness, run)["sub"].message.endswith("no further node starts until it is resumed.")
    assert "sub" in ends_in(harness, run).unknown


def test_a_report_looks_into_so_many_sub_runs_and_jobs(harness: WorkflowHarness) -> None:
    harness.put("low", {"nodes": {"j": model()}})
    nodes = {f"n{number}": {"workflow": "low"} for number in range(12)}
    run = harness.start({"nodes": nodes})
    harness.advance(run)
    harness.advance(run)
    run.refresh_from_db()
    plan, graph, allowed = plan_of(run), graph_of(run), Allowance()
    found = explain_run(run, plan, graph, harness.ports, allowed)
    assert (allowed.sub_runs, allowed.jobs, len(found)) == (0, 0, 12)
    assert [bool(one.reasons) for one in found].count(True) == 5


@pytest.mark.database
def test_a_run_costs_what_the_attempts_of_its_jobs_and_sub_runs_took(harness: WorkflowHarness) -> None:
    harness.put("low", {"nodes": {"x": model(), "y": {**model(), "map": {"count": 2}}}})
    harness.put("child", {"nodes": {"z": model(), "low": {"workflow": "low", "map": {"count": 2}}}})
    run = harness.start(
        {
            "nodes": {
                "a": model(),
                "all": {**model(), "map": {"count": 3}},
                "sub": {"workflow": "child"},
            }
        }
    )
    other = harness.start({"nodes": {"a": model()}})
    harness.to_end(run)
    harness.to_end(other)
    Attempt.objects.update(gpu_seconds=2.0)
    found = cost_of(run)
    assert dict(found.by_node) == {"a": 2.0, "all": 6.0, "sub": 14.0}, "a job of child, three of each low"
    assert found.total == 22.0
    below = Run.objects.get(parent_node__run=run)
    assert dict(cost_of(below).by_node) == {"z": 2.0, "low": 12.0}
    restart_run(run.id, keys=["a"], ports=harness.ports)
    harness.to_end(run)
    Attempt.objects.update(gpu_seconds=2.0)
    assert cost_of(run).by_node["a"] == 4.0, "of both rounds"


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL needs a transaction for a setting")
def test_a_report_of_a_runs_cost_does_not_wait_for_sqlites_write_lock(harness: WorkflowHarness) -> None:
    run = harness.start({"nodes": {"a": model()}})
    with CaptureQueriesContext(connection) as queries:
        cost_of(run)
    assert len(queries) == 1, "no transaction, which takes the lock also for a read"


def test_attempts_that_have_not_ended_cost_nothing_yet(harness: WorkflowHarness) -> None:
    run = harness.to_end(harness.start({"nodes": {"a": model(), "b": model()}}))
    Attempt.objects.filter(job_id=Node.objects.get(run=run, key="a").job_id).update(gpu_seconds=None)
    assert set(cost_of(run).by_node) == {"b"}
    assert cost_of(harness.start({"nodes": {"a": model()}})).total == 0


def test_the_api_explains_a_run(harness: WorkflowHarness, client: Any) -> None:
    run = harness.start({"nodes": {"ask": {"human": {"title": "?", "choose_from": [1]}}}})
    harness.advance(run)
    _, key = create_key(harness.tenant)
    answer = client.get(f"/api/v1/runs/{run.id}/explain", headers={"Authorization": f"Bearer {key}"})
    body = answer.json()
    assert answer.status_code == 200, body
    assert body["reasons"][0] | {"message": ""} == {
        "code": "answer", "message": "", "node": "ask", "job_id": None, "child_run_id": None, "until": None,
        "position": None, "starts_in": None, "reasons": [],
    }  # fmt: skip
    assert body["cost"] == {"gpu_seconds": 0, "nodes": {}}
    assert body["ends_in"] == {
        "seconds": 0, "unanswered_seconds": None, "path": [], "answers": ["ask"], "unknown": [],
        "misses_deadline": False, "held": None,
    }  # fmt: skip


@pytest.mark.database
def test_a_restarted_map_counts_what_it_kept(harness: WorkflowHarness) -> None:
    faults = [None, "fail", None]
    spec = {
        "nodes": {
            "all": {
                **model(payload={"fault": {"$ref": "item", "default": None}}),
                "map": {"over": faults, "fail_at": 1},
            },
        }
    }
    run = harness.to_end(harness.start(spec))
    restart_run(run.id, ports=harness.ports)
    run = harness.advance(run)
    [node] = graph_of(run).nodes
    assert node.state is NodeState.RUNNING
    assert node.counts is not None
    assert node.counts.total == 3
    assert node.counts.completed >= 1
