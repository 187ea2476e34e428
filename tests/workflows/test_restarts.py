"""What a restart, a new version and a restart of all processes leave as it was. Larger sizes by hand:
`python3 manage.py test tests/workflows/test_restarts.py -m by_hand`."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from django.db import connection

from foundation.json_text import canonical_json
from jobs.domain.errors import Refused
from jobs.models import Attempt, Callback, Job
from tests.support.waiting import wait_for
from tests.workflows.workflow_harness import WorkflowHarness, model, states
from workflows.domain.errors import NothingToRestart
from workflows.domain.states import NodeState, RunState
from workflows.execution.advancer import Advancer
from workflows.models import Node, Run, RunEvent, Wait
from workflows.operations.answers import answer_wait
from workflows.operations.control import cancel_run
from workflows.operations.restart import restart_run
from workflows.tasks import advance_now

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_run_that_failed_at_its_fourth_node_keeps_the_first_three(harness: WorkflowHarness) -> None:
    chain = {
        f"n{n}": model(payload={"echo": {"of": n, "was": {"$ref": f"n{n - 1}.echo" if n > 1 else "inputs"}}})
        for n in range(1, 6)
    }
    chain["n4"]["payload"]["fault"] = "fail"
    run = harness.start({"nodes": chain}, {"text": "ä\u2028", "numbers": [1.5, 2**53]})
    harness.to_end(run)

    def stored() -> list[tuple[str, str, int]]:
        nodes = Node.objects.filter(run=run, key__in=["n1", "n2", "n3"]).order_by("key")
        jobs = [Job.objects.get(id=node.job_id) for node in nodes]
        return [(job.id, canonical_json(job.result), Attempt.objects.filter(job=job).count()) for job in jobs]

    before = stored()
    assert states(run) == {
        "n1": "completed",
        "n2": "completed",
        "n3": "completed",
        "n4": "failed",
        "n5": "cancelled",
    }
    restart_run(run.id, ports=harness.ports)
    run.refresh_from_db()
    harness.to_end(run)
    assert stored() == before
    assert [attempts for _, _, attempts in before] == [1, 1, 1]
    assert Node.objects.filter(run=run, key="n4").count() == 2


@pytest.mark.parametrize(("items", "failing"), [(40, 7), pytest.param(10_000, 37, marks=pytest.mark.by_hand)])
def test_a_restarted_map_makes_as_many_jobs_as_had_failed(
    harness: WorkflowHarness, items: int, failing: int
) -> None:
    each = items // failing
    fails = {
        items - 1,
        *range(1, each * (failing - 1), each),
    }  # the last one: none is left when the map fails
    xs = ["fail" if n in fails else None for n in range(items)]
    wanted = {"fault": {"$ref": "item", "default": None}, "echo": {"$ref": "index"}}
    node = {**model(payload=wanted), "map": {"over": {"$ref": "inputs"}, "fail_at": failing}}
    run = harness.start({"nodes": {"all": node}, "output": {"$ref": "all[*].echo"}}, xs)
    harness.until(run, lambda: run.state != RunState.RUNNING, seconds=60.0 + items / 5)
    assert (run.state, Job.objects.count(), xs.count("fail")) == (RunState.FAILED, items, failing)
    Run.objects.filter(id=run.id).update(inputs=[None] * items)
    restart_run(run.id, ports=harness.ports)
    run.refresh_from_db()
    harness.until(run, lambda: run.state != RunState.RUNNING, seconds=60.0 + items / 5)
    assert (run.state, run.output) == (RunState.COMPLETED, list(range(items)))
    assert Job.objects.count() == items + failing


@pytest.mark.parametrize("runs", [12, pytest.param(500, marks=pytest.mark.by_hand)])
def test_runs_under_way_end_by_the_version_that_they_began_with(harness: WorkflowHarness, runs: int) -> None:
    def version(number: int) -> dict[str, Any]:
        nodes = {
            "a": model(payload={"echo": number}),
            "b": {**model(payload={"echo": {"$ref": "a.echo"}}), "needs": ["a"]},
        }
        return {"nodes": nodes, "output": {"echo": {"$ref": "b.echo"}, "version": number}}

    begun = {}
    for number in range(runs):
        run = harness.start(version(number // 3), None)
        begun[run.id] = number // 3
    harness.put("w", {"nodes": {"other": model()}})

    def are_over() -> bool:
        for run_id in Run.objects.filter(finished_at=None).values_list("id", flat=True):
            advance_now(harness.advancer, run_id)
        return not Run.objects.filter(finished_at=None).exists()

    harness.until(run, are_over)
    ended = {run.id: (run.state, run.output) for run in Run.objects.all()}
    assert ended == {
        run_id: ("completed", {"echo": number, "version": number}) for run_id, number in begun.items()
    }


@pytest.mark.parametrize("waits", [20, pytest.param(1000, marks=pytest.mark.by_hand)])
def test_waits_outlive_all_processes_and_each_takes_one_answer(harness: WorkflowHarness, waits: int) -> None:
    ask = {
        "human": {"title": "?", "form": {"type": "integer"}},
        "map": {"count": waits, "max_parallel": waits},
    }
    run = harness.start({"nodes": {"ask": ask}, "output": {"$ref": "ask"}})
    harness.advance(run)
    assert Wait.objects.filter(answered_at=None).count() == waits
    harness.worker.interrupt()
    harness.worker.stop(30)
    harness.advancer = Advancer(harness.ports)  # of a new process: its caches are empty
    harness.worker = harness.worker_harness.worker()
    for number in range(waits - 1):
        answer_wait(run, f"ask[{number}]", number, by="me", ports=harness.ports)
    harness.advance(run)
    assert Wait.objects.filter(answered_at=None).count() == 1

    outcomes: Counter[str] = Counter()
    taken: list[int] = []

    def answer(number: int) -> None:
        try:
            answer_wait(run, f"ask[{waits - 1}]", number, by=str(number), ports=harness.ports)
            taken.append(number)
            outcomes["200"] += 1
        except Refused as refused:
            outcomes[str(refused.status)] += 1
        finally:
            connection.close()

    threads = [threading.Thread(target=answer, args=(number,)) for number in range(1000, 1050)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == {"200": 1, "409": 49}
    harness.to_end(run)
    assert (run.state, run.output) == (RunState.COMPLETED, [*range(waits - 1), *taken])
    assert set(Node.objects.filter(run=run).values_list("state", flat=True)) == {NodeState.COMPLETED.value}


def test_an_output_of_the_round_before_is_not_that_of_a_node_which_did_not_run_again(
    harness: WorkflowHarness,
) -> None:
    """`last` starts in the step that cancels `between`."""
    fault = {"$ref": "run.round > `1` && inputs || `null`", "default": None}
    spec = {
        "nodes": {
            "first": model(payload={"fault": fault}),
            "between": model(payload={"echo": "of round 1"}, needs=["first"]),
            "last": model(
                payload={"echo": {"$ref": "between.echo", "default": "nothing"}}, needs_rule="all_done"
            ),
        }
    }
    run = harness.to_end(harness.start(spec, "fail"))
    assert run.state == RunState.COMPLETED
    restart_run(run.id, ports=harness.ports, keys=["first"])
    harness.to_end(run)
    assert states(run) == {"first": "failed", "between": "cancelled", "last": "completed"}
    jobs = Job.objects.filter(id__in=Node.objects.filter(run=run, key="last").values("job_id"))
    assert [job.payload["echo"] for job in jobs.order_by("id")] == ["of round 1", "nothing"]


def test_a_run_without_a_failed_node_is_not_restarted(harness: WorkflowHarness) -> None:
    run = harness.to_end(harness.start({"nodes": {"a": model()}}, callback_url="https://hooks.example.com/"))
    before = Run.objects.values().get()
    for keys in (None, []):
        with pytest.raises(NothingToRestart):
            restart_run(run.id, ports=harness.ports, keys=keys)
    assert Run.objects.values().get() == before
    assert RunEvent.objects.filter(type="restarted").count() == 0
    assert Callback.objects.count() == 1
    assert restart_run(run.id, ports=harness.ports, keys=["a"]).round == 2
    harness.to_end(run)


def test_a_run_that_was_cancelled_before_its_nodes_started_is_restarted(harness: WorkflowHarness) -> None:
    run = harness.start({"nodes": {"a": model()}})
    cancel_run(run.id, ports=harness.ports)
    run = harness.advance(run)
    assert run.state == RunState.CANCELLED
    restart_run(run.id, ports=harness.ports)
    assert harness.to_end(run).state == RunState.COMPLETED


def test_a_sub_run_that_was_restarted_before_its_parent_saw_its_end_gives_its_next_output(
    harness: WorkflowHarness,
) -> None:
    harness.put("child", {"nodes": {"x": model(payload={"echo": 7})}, "output": {"$ref": "x.echo"}})
    spec = {"nodes": {"sub": {"workflow": "child"}}, "output": {"$ref": "sub", "default": "none"}}
    run = harness.start(spec)
    harness.advance(run)
    child = Run.objects.get(depth=1)

    def has_ended() -> bool:
        harness.worker.work("m")
        advance_now(harness.advancer, child.id)
        child.refresh_from_db()
        return child.state == RunState.COMPLETED

    wait_for(has_ended)
    restart_run(child.id, ports=harness.ports, keys=["x"])
    harness.to_end(run)
    assert run.output == 7


def test_a_restarted_map_keeps_no_items_of_a_list_of_another_length(harness: WorkflowHarness) -> None:
    over = {"$ref": "(run.round == `1` && inputs.first) || inputs.second"}
    each = {
        **model(payload={"fault": {"$ref": "item.fault", "default": None}}),
        "map": {"over": over, "max_parallel": 1},
    }
    good, bad = {"is": 1}, {"fault": "fail"}
    run = harness.start({"nodes": {"all": each}}, {"first": [good, good, bad], "second": [good]})
    assert harness.to_end(run).state == RunState.FAILED
    restart_run(run.id, ports=harness.ports)
    run.refresh_from_db()
    assert harness.to_end(run).state == RunState.COMPLETED
    assert Node.objects.filter(run=run, round=2, index=0, state="completed").exists()
