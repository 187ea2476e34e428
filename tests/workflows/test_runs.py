"""Runs with real jobs: a real Valkey, a real GPU server, workers, and the advancer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test.utils import CaptureQueriesContext

from foundation.ids import new_id
from gpus.models import ModelConfig
from jobs.domain.states import JobState
from jobs.models import EndNotice, Event, Job
from tests.support.waiting import wait_for
from tests.workflows.workflow_harness import WorkflowHarness, model, states
from workflows.domain.errors import AnswerInvalid, NotWaitingForAnswer
from workflows.domain.states import NodeState, RunState
from workflows.execution import advancer
from workflows.execution.advancer import Advancer, AdvancerLimits
from workflows.execution.cancelling import cancel_nodes
from workflows.execution.writes import Writes
from workflows.models import Node, Run
from workflows.operations.answers import answer_wait
from workflows.operations.control import cancel_run, pause_run, resume_run
from workflows.operations.definitions import put_definition
from workflows.operations.restart import restart_run
from workflows.operations.signals import send_signal

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_chain_passes_results_from_job_to_job(harness: WorkflowHarness) -> None:
    run = harness.start(
        {
            "nodes": {
                "a": model(payload={"echo": {"$ref": "inputs.x"}}),
                "b": model(payload={"echo": {"$ref": "a.echo"}}),
            },
            "output": {"got": {"$ref": "b.echo"}},
        },
        {"x": [1, {"y": 2}]},
    )
    harness.to_end(run)
    assert (run.state, run.output) == (RunState.COMPLETED, {"got": [1, {"y": 2}]})
    assert Job.objects.count() == 2
    assert set(map(str, Node.objects.values_list("settings", flat=True))) == {"{}"}, "payloads are kept once"
    assert EndNotice.objects.count() == 0
    assert [event.type for event in run.events.order_by("seq")] == [
        "started", "node_started", "node_ended", "node_started", "node_ended", "completed",
    ]  # fmt: skip


def test_a_map_runs_a_window_of_jobs_and_joins_their_results(harness: WorkflowHarness) -> None:
    run = harness.start(
        {
            "nodes": {
                "all": {
                    **model(payload={"echo": {"$ref": "item"}}),
                    "map": {"over": {"$ref": "inputs.xs"}, "max_parallel": 3},
                },
                "join": model(payload={"echo": {"$ref": "all[*].echo"}}),
            },
            "output": {"$ref": "join.echo"},
        },
        {"xs": list(range(10))},
    )
    most = 0

    def condition() -> bool:
        nonlocal most
        open_jobs = Job.objects.filter(finished_at=None).count()
        most = max(most, open_jobs)
        return run.state != RunState.RUNNING

    harness.until(run, condition)
    assert (run.state, run.output) == (RunState.COMPLETED, list(range(10)))
    assert Job.objects.count() == 11
    assert most <= 3


def test_a_failed_node_fails_the_run_and_a_restart_runs_only_what_failed(harness: WorkflowHarness) -> None:
    run = harness.start(
        {
            "nodes": {
                "a": model(payload={"echo": 1}),
                "b": {
                    "model": "m",
                    "payload": {"seconds": 0.001, "fault": {"$ref": "inputs.fault", "default": None}},
                    "needs": ["a"],
                },
                "c": model(payload={"echo": {"$ref": "b.seconds"}}),
            },
            "output": {"$ref": "c.echo"},
        },
        {"fault": "fail"},
    )
    harness.to_end(run)
    assert (run.state, run.error_node) == (RunState.FAILED, "b")
    assert states(run) == {"a": "completed", "b": "failed", "c": "cancelled"}
    Run.objects.filter(id=run.id).update(inputs={"fault": None})  # the cause is mended
    restart_run(run.id, ports=harness.ports)
    run.refresh_from_db()
    harness.to_end(run)
    assert (run.state, run.output, run.round) == (RunState.COMPLETED, 0.001, 2)
    assert sorted(Node.objects.filter(run=run).values_list("key", "round")) == [
        ("a", 1), ("b", 1), ("b", 2), ("c", 1), ("c", 2),
    ]  # fmt: skip
    assert Job.objects.count() == 4  # a once, b twice, c once


def test_a_restarted_map_runs_only_its_failed_items(harness: WorkflowHarness) -> None:
    run = harness.start(
        {
            "nodes": {
                "all": {
                    "model": "m",
                    "payload": {
                        "seconds": 0.001,
                        "echo": {"$ref": "index"},
                        "fault": {"$ref": "item", "default": None},
                    },
                    "map": {"over": {"$ref": "inputs.xs"}, "fail_at": 3},
                }
            },
            "output": {"$ref": "all[*].echo"},
        },
        {"xs": [None, "fail", None, "fail", "fail"]},
    )
    harness.to_end(run)
    assert run.state == RunState.FAILED
    assert Job.objects.count() == 5
    Run.objects.filter(id=run.id).update(inputs={"xs": [None] * 5})
    restart_run(run.id, ports=harness.ports)
    run.refresh_from_db()
    harness.to_end(run)
    assert (run.state, run.output) == (RunState.COMPLETED, [0, 1, 2, 3, 4])
    assert Job.objects.count() == 8


def test_a_person_chooses_once(harness: WorkflowHarness) -> None:
    run = harness.start(
        {
            "nodes": {
                "a": model(payload={"echo": ["p", "q"]}),
                "best": {"human": {"title": "Which?", "choose_from": {"$ref": "a.echo"}}},
                "b": model(payload={"echo": {"$ref": "best"}}),
            },
            "output": {"$ref": "b.echo"},
        }
    )
    harness.until(run, lambda: Node.objects.filter(run=run, key="best").exists())
    with pytest.raises(AnswerInvalid):
        answer_wait(run, "best", "z", by="ann", ports=harness.ports)
    answer_wait(run, "best", "q", by="ann", ports=harness.ports)
    with pytest.raises(NotWaitingForAnswer):
        answer_wait(run, "best", "p", by="bob", ports=harness.ports)
    harness.to_end(run)
    assert (run.state, run.output) == (RunState.COMPLETED, "q")


@pytest.mark.database
def test_a_signal_ends_every_wait_for_it(harness: WorkflowHarness) -> None:
    nodes = {"paid": {"signal": {"name": "paid", "body_schema": {"type": "object", "required": ["sum"]}}}}
    runs = [harness.start({"nodes": nodes, "output": {"$ref": "paid.sum"}}) for _ in range(2)]
    for run in runs:
        harness.advance(run)
    with pytest.raises(Exception, match="sum"):
        send_signal(harness.tenant.pk, "paid", {}, ports=harness.ports)
    assert send_signal(harness.tenant.pk, "paid", {"sum": 5}, ports=harness.ports).taken == 2
    for run in runs:
        harness.to_end(run)
        assert run.output == 5


def test_a_sub_workflow_gives_its_output_to_the_node(harness: WorkflowHarness) -> None:
    put_definition(
        harness.tenant.pk,
        "child",
        {"nodes": {"x": model(payload={"echo": {"$ref": "inputs.n"}})}, "output": {"n": {"$ref": "x.echo"}}},
        ports=harness.ports,
    )
    run = harness.start(
        {
            "nodes": {
                "sub": {"workflow": "child", "inputs": {"n": {"$ref": "item"}}, "map": {"over": [1, 2, 3]}},
            },
            "output": {"$ref": "sub[*].n"},
        }
    )
    harness.to_end(run)
    assert (run.state, run.output) == (RunState.COMPLETED, [1, 2, 3])
    assert Run.objects.count() == 4


def test_a_workflow_that_contains_itself_ends_at_the_greatest_depth(harness: WorkflowHarness) -> None:
    run = harness.start_recursive({"nodes": {"again": {"workflow": "w"}}})
    harness.to_end(run)
    assert run.state == RunState.FAILED
    assert Run.objects.count() == 9
    assert Node.objects.filter(code="too_deep").count() == 1


def test_sub_runs_that_multiply_end_at_the_limit_of_their_tenant(
    harness: WorkflowHarness, settings: Any
) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, workflow_sub_runs=10)
    run = harness.start_recursive({"nodes": {"again": {"workflow": "w", "map": {"count": 6}}}})
    most = 0

    def ended() -> bool:
        nonlocal most
        most = max(most, Run.objects.filter(depth__gt=0, finished_at=None).count())
        return run.state != RunState.RUNNING

    harness.until(run, ended)
    assert run.state == RunState.FAILED
    assert most <= 10  # a refused run may end before it is counted here
    assert Node.objects.filter(code="too_many_runs", detail__contains="10").exists()


@pytest.mark.parametrize(
    ("inputs", "code"),
    [({"x": "text"}, "payload_invalid"), ({"x": 1, "y": "y" * 300}, "inputs_too_large"), ({"x": 1}, "")],
)
def test_the_inputs_of_a_sub_run_are_checked_like_those_of_a_run(
    harness: WorkflowHarness, settings: Any, inputs: Any, code: str
) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, workflow_input_bytes=200)
    harness.put("child", {"inputs": {"properties": {"x": {"type": "integer"}}}, "nodes": {"a": model()}})
    harness.to_end(harness.start({"nodes": {"sub": {"workflow": "child", "inputs": inputs}}}))
    assert Node.objects.get(key="sub").code == code
    assert Run.objects.filter(depth=1).exists() == (not code)


def test_a_map_of_sub_runs_waits_where_its_tenant_may_have_no_more(
    harness: WorkflowHarness, settings: Any
) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, workflow_sub_runs=3)
    harness.put("child", {"nodes": {"a": model()}})
    run = harness.start({"nodes": {"all": {"workflow": "child", "map": {"count": 8}}}})
    harness.advance(run)
    assert Run.objects.filter(depth=1).count() == 3
    harness.to_end(run)
    assert run.state == RunState.COMPLETED
    assert Run.objects.filter(depth=1, state="completed").count() == 8


def test_waits_end_at_the_limit_of_their_tenant_and_a_map_waits_for_room(
    harness: WorkflowHarness, settings: Any
) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, workflow_waits=2)
    ask = {"human": {"title": "?", "form": {}}}
    run = harness.start({"nodes": {"all": {**ask, "map": {"count": 3}}}, "output": {"$ref": "all"}})
    harness.advance(run)
    assert Node.objects.filter(kind="human", index__isnull=False).count() == 2
    refused = harness.advance(harness.start({"nodes": {"more": ask}}))
    assert refused.state == RunState.FAILED
    assert Node.objects.get(base="more").code == "too_many_waits"
    for number in range(3):
        answer_wait(run, f"all[{number}]", number, by="ann", ports=harness.ports)
        harness.advance(run)
    assert (run.state, run.output) == (RunState.COMPLETED, [0, 1, 2])


def test_a_cancel_without_waits_and_sub_runs_writes_none(harness: WorkflowHarness) -> None:
    """Thousands of cancelled runs would keep SQLite's lock from all others."""
    run = harness.start({"nodes": {"a": model()}})
    harness.advance(run)
    job = Job.objects.get()
    Job.objects.update(cancel_requested_at=job.created_at)
    with CaptureQueriesContext(connection) as queries:
        assert cancel_nodes(run, None, harness.ports) == 0
    assert [query["sql"] for query in queries if not query["sql"].startswith("SELECT")] == []


def test_a_cancel_reaches_sub_runs_of_all_levels_at_once(harness: WorkflowHarness) -> None:
    """They would start further ones until it has come down to them."""
    run = harness.start_recursive({"nodes": {"wait": {"signal": {"name": "s"}}, "again": {"workflow": "w"}}})
    harness.until(run, lambda: Run.objects.filter(depth=4).exists())
    cancel_run(run.id, ports=harness.ports)
    assert not Run.objects.filter(cancel_requested_at=None).exists()
    harness.to_end(run)
    assert set(Run.objects.values_list("state", flat=True)) == {"cancelled"}


@pytest.mark.parametrize("choices", [[], "red", {"a": 1}])
def test_a_question_without_choices_fails_at_once(harness: WorkflowHarness, choices: Any) -> None:
    ask = {"human": {"title": "?", "choose_from": {"$ref": "inputs.choices"}}}
    run = harness.to_end(harness.start({"nodes": {"ask": ask}}, {"choices": choices}))
    assert (run.state, run.error_node) == (RunState.FAILED, "ask")
    assert Node.objects.get(key="ask").code == "no_choices"


def test_a_stored_definition_runs_whatever_the_limits_are_now(
    harness: WorkflowHarness, settings: Any
) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, workflow_bytes=1_000_000)
    skipped = {**model(payload={"text": "x" * 10_000}), "when": "`false`"}
    run = harness.start({"nodes": {f"n{number}": skipped for number in range(30)}})
    assert harness.advance(run).state == RunState.COMPLETED
    settings.DISPATCHER = replace(settings.DISPATCHER, workflow_bytes=1000)
    restart_run(run.id, ports=harness.ports, keys=["n0"])
    assert Advancer(harness.ports).advance(run.id) is False
    run.refresh_from_db()
    assert (run.state, run.round) == (RunState.COMPLETED, 2)


def test_a_cancelled_run_cancels_its_jobs_and_waits(harness: WorkflowHarness) -> None:
    ask_step = {"ask": {"human": {"title": "?", "form": {}}}}
    put_definition(harness.tenant.pk, "w2", {"nodes": ask_step}, ports=harness.ports)
    run = harness.start(
        {
            "nodes": {
                "many": {**model(payload={"seconds": 0.01}), "map": {"count": 20, "max_parallel": 5}},
                **ask_step,
                "sub": {"workflow": "w2"},
                "after": {**model(), "needs": ["many"]},
            }
        }
    )
    harness.advance(run)
    harness.advance(run)
    cancel_run(run.id, ports=harness.ports)
    harness.until(run, lambda: run.state != RunState.RUNNING)
    assert run.state == RunState.CANCELLED
    assert set(states(run).values()) == {NodeState.CANCELLED}
    assert Job.objects.filter(finished_at=None).count() == 0
    assert Job.objects.count() <= 5
    assert set(Run.objects.values_list("state", flat=True)) == {"cancelled"}


@pytest.mark.database
def test_a_paused_run_starts_nothing_until_it_is_resumed(harness: WorkflowHarness) -> None:
    run = harness.start({"nodes": {"a": model(), "b": {**model(), "needs": ["a"]}}})
    harness.advance(run)
    pause_run(run.id, ports=harness.ports)
    harness.until(run, lambda: states(run)["a"] == "completed")
    assert Job.objects.count() == 1
    resume_run(run.id, ports=harness.ports)
    harness.to_end(run)
    assert run.state == RunState.COMPLETED


def test_two_advancers_start_each_node_once(
    harness: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one reads before the first one writes."""
    run = harness.start({"nodes": {"a": model(), "b": model()}})
    other = Advancer(harness.ports)
    write = Advancer._write
    overtaken: list[bool] = []

    def overtake(self: Advancer, steps: Any) -> None:
        if not overtaken:
            overtaken.append(True)
            other.advance(run.id)
        write(self, steps)

    monkeypatch.setattr(Advancer, "_write", overtake)
    assert harness.advancer.advance(run.id) is True  # another process was faster: the step must be repeated
    assert Job.objects.count() == 2
    harness.to_end(run)
    assert run.state == RunState.COMPLETED
    assert Job.objects.count() == 2


def test_runs_are_advanced_together_and_an_overtaken_one_does_not_hold_up_the_others(
    harness: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = {"nodes": {"a": model(), "b": {**model(), "needs": ["a"]}}}
    runs = [harness.start(chain) for _ in range(3)]
    other, write, overtaken = Advancer(harness.ports), Advancer._write, list[bool]()

    def overtake(self: Advancer, steps: Any) -> None:
        if not overtaken:
            overtaken.append(True)
            other.advance(runs[1].id)
        write(self, steps)

    monkeypatch.setattr(Advancer, "_write", overtake)
    ids = [*(run.id for run in runs), "0" * 26]
    assert harness.advancer.advance_together(ids) == dict.fromkeys(ids, False)
    assert Job.objects.count() == 3
    monkeypatch.undo()
    with CaptureQueriesContext(connection) as together:
        harness.advancer.advance_together(ids)
    assert not together.captured_queries[-1]["sql"].startswith("COMMIT"), "nothing was due"
    for run in runs:
        harness.to_end(run)
    assert Job.objects.count() == 6


@pytest.mark.database
@pytest.mark.parametrize("most", [0, AdvancerLimits().members], ids=["all states", "changed states"])
def test_a_step_writes_the_states_that_it_changes(harness: WorkflowHarness, most: int) -> None:
    """Of a large run an event writes two states instead of all."""
    harness.advancer = Advancer(harness.ports, AdvancerLimits(members=most))
    others = {f"other_{number}": {**model(), "needs": ["a"]} for number in range(20)}
    run = harness.start(
        {
            "nodes": {
                "a": {"human": {"title": "?", "form": {}}},
                "b": model(),
                "c": {**model(), "needs": ["b"]},
                **others,
            }
        }
    )
    harness.advance(run)
    harness.worker.work("m")
    wait_for(EndNotice.objects.exists)
    with CaptureQueriesContext(connection) as queries:
        harness.advance(run)
    assert states(run) == {
        "a": "running",
        "b": "completed",
        "c": "running",
        **dict.fromkeys(others, "pending"),
    }
    [written] = [one["sql"] for one in queries if one["sql"].startswith('UPDATE "workflows_run"')]
    assert ("other_7" in written) is (most == 0)
    cancel_run(run.id, ports=harness.ports)
    harness.to_end(run)
    assert set(states(run).values()) == {"completed", "cancelled"}


def test_a_step_starts_so_many_nodes_at_most_over_all_its_runs(harness: WorkflowHarness) -> None:
    harness.advancer = Advancer(harness.ports, AdvancerLimits(starts=3))
    runs = [harness.start({"nodes": {"a": model(), "b": model()}}) for _ in range(3)]
    more = harness.advancer.advance_together([run.id for run in runs])
    assert Job.objects.count() == 3
    assert sorted(more.values()) == [False, True, True]
    for run in runs:
        assert harness.to_end(run).state == RunState.COMPLETED
    assert Job.objects.count() == 6


def test_the_first_run_of_a_step_does_not_wait_for_the_long_steps_of_others(harness: WorkflowHarness) -> None:
    harness.advancer = Advancer(harness.ports, AdvancerLimits(decide_seconds=-1.0))
    runs = [harness.start({"nodes": {"a": model()}}).id for _ in range(3)]
    first, *others = reversed(runs)
    assert harness.advancer.advance_together([first, *others]) == {
        first: False,
        **dict.fromkeys(others, True),
    }
    assert Job.objects.get().followed_by == f"run:{first}"


@pytest.mark.database
def test_the_database_refuses_a_node_that_starts_twice(harness: WorkflowHarness) -> None:
    run = harness.start({"nodes": {"a": model()}})
    harness.advance(run)
    node = Node.objects.get()
    node.pk, node.job_id = new_id(), None
    with pytest.raises(IntegrityError), transaction.atomic():
        node.save(force_insert=True)


def test_a_step_that_fails_keeps_its_notices(
    harness: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = harness.start({"nodes": {"a": model(), "b": {**model(), "needs": ["a"]}}})
    harness.advance(run)
    harness.worker.work("m")
    wait_for(EndNotice.objects.exists)

    def fail(self: Writes, now: Any) -> None:
        raise OperationalError("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(Writes, "write", fail)
        with pytest.raises(OperationalError):
            harness.advancer.advance(run.id)
    assert EndNotice.objects.count() == 1
    harness.to_end(run)
    assert run.state == RunState.COMPLETED


def test_an_end_and_its_notice_are_one_commit(
    harness: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies right after the commit of the end."""
    run = harness.start({"nodes": {"a": model()}})
    harness.advance(run)
    monkeypatch.setattr(BaseDatabaseWrapper, "run_and_clear_commit_hooks", lambda self: None)
    harness.worker.work("m")
    wait_for(lambda: Job.objects.filter(state=JobState.COMPLETED).exists())
    assert EndNotice.objects.count() == 1


def test_a_lost_hint_leaves_the_notice_for_the_sweep(harness: WorkflowHarness) -> None:
    run = harness.start({"nodes": {"a": model()}})
    harness.advance(run)
    harness.worker.work("m")
    wait_for(lambda: Job.objects.filter(state=JobState.COMPLETED).exists())
    notice = EndNotice.objects.get()
    assert (notice.followed_by, notice.state) == (f"run:{run.id}", "completed")
    assert Event.objects.filter(type="completed").count() == 1


def test_a_payload_that_the_models_schema_refuses_fails_the_node(harness: WorkflowHarness) -> None:
    ModelConfig.objects.filter(name="m").update(payload_schema={"required": ["seconds"]})
    harness.ports.registry.clear()
    run = harness.start(
        {"nodes": {"a": {"model": "m", "payload": {"$ref": "inputs"}}, "b": {**model(), "needs": ["a"]}}},
        {"x": 1},
    )
    harness.advance(run)
    assert (run.state, run.error_node) == (RunState.FAILED, "a")
    assert Node.objects.get(key="a").code == "payload_invalid"
    assert Job.objects.count() == 0


def test_a_step_starts_children_with_large_payloads_in_parts(harness: WorkflowHarness) -> None:
    harness.advancer = Advancer(harness.ports, AdvancerLimits(payload_bytes=3_000))
    large = model(payload={"text": {"$ref": "inputs.text"}}, map={"count": 10, "max_parallel": 10})
    run = harness.start({"nodes": {"a": large}}, {"text": "x" * 1_000})
    counts = []
    for _ in range(6):
        harness.advancer.advance(run.id)
        counts.append(Job.objects.count())
    assert counts == [0, 3, 6, 9, 10, 10]
    assert harness.to_end(run).state == "completed"


@pytest.mark.parametrize("expression", ["sum(inputs.x)", "ceil(sum(inputs.x))"])
def test_a_sum_that_no_json_number_can_be_fails_its_node(harness: WorkflowHarness, expression: str) -> None:
    spec = {"nodes": {"a": model(), "b": model(payload={"echo": {"$ref": expression}})}}
    run = harness.to_end(harness.start(spec, {"x": [1e308, 1e308]}))
    assert states(run) == {"a": "completed", "b": "failed"}
    assert Node.objects.get(run=run, key="b").code == "unresolved_ref"


def test_a_step_under_way_does_not_use_up_the_notice_of_a_resume(
    harness: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the run as paused; the hint may be lost, and a question keeps the run from being idle."""
    ask = {"human": {"title": "?", "choose_from": [1]}}
    run = harness.start({"nodes": {"a": model(), "b": model(needs=["a"]), "ask": ask}})
    harness.until(run, lambda: states(run)["ask"] == "running")
    pause_run(run.id, ports=harness.ports)
    harness.until(run, lambda: states(run)["a"] == "completed")
    read = advancer.reads.notices_among

    def after_a_resume(names: list[str]) -> list[EndNotice]:
        monkeypatch.setattr(advancer.reads, "notices_among", read)
        resume_run(run.id, ports=harness.ports)
        return list(read(names))

    monkeypatch.setattr(advancer.reads, "notices_among", after_a_resume)
    harness.advancer.advance(run.id)
    assert EndNotice.objects.filter(followed_by=f"run:{run.id}").exists()
    harness.until(run, lambda: states(run)["b"] == "completed")


def test_an_answer_is_one_of_the_choices_by_value(harness: WorkflowHarness) -> None:
    """JavaScript writes 1.0 as 1."""
    run = harness.start({"nodes": {"ask": {"human": {"title": "?", "choose_from": [1.0, 2]}}}})
    harness.advance(run)
    with pytest.raises(AnswerInvalid):
        answer_wait(run, "ask", True, by="me", ports=harness.ports)
    answer_wait(run, "ask", 1, by="me", ports=harness.ports)
    harness.to_end(run)
    assert run.state == RunState.COMPLETED
