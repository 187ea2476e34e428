"""A dead letter of a run that an operator retries: with its success the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from artifacts.models import ArtifactUse
from jobs.domain.errors import NotDeadLetter, RunWasCancelled
from jobs.models import Callback, EndNotice, Job
from jobs.operations.bulk import BulkAction, count, retry_jobs
from jobs.operations.jobs import cancel_job, retry_dead_letter
from jobs.reports.jobs import JobFilter
from tests.support.waiting import wait_for
from tests.workflows.workflow_harness import WorkflowHarness, model, states
from workflows.domain.errors import OutputNotWanted
from workflows.domain.states import RunState
from workflows.execution.notices import delete_of_ended
from workflows.execution.retried import end_postponed, postponed_of, take_retried
from workflows.models import MapState, Node, Run, Wait
from workflows.operations import control
from workflows.operations.answers import answer_wait
from workflows.operations.control import cancel_run
from workflows.operations.restart import restart_run
from workflows.sweeps import cancelling_runs, lost_ends

pytestmark = pytest.mark.django_db(transaction=True)


def faulty(fault: Any = "fail", **more: Any) -> dict[str, Any]:
    return model(payload={"fault": fault}, **more)


Repair = Callable[..., None]


@pytest.fixture
def repair(harness: WorkflowHarness) -> Iterator[Repair]:
    """Retries dead letters; this time the model does its work. The payloads are put back before the laws of
    runs are checked."""
    payloads: dict[str, Any] = {}

    def held() -> list[str | None]:
        return [view.job_id for view in harness.worker_harness.leases.slots("gpu-1") if view.job_id]

    def retry(*job_ids: str) -> None:
        for job_id in job_ids:
            payloads[job_id] = Job.objects.get(id=job_id).payload
            wait_for(lambda: not held())  # its ticket is refused while its lease ends; a sweep would push it
            Job.objects.filter(id=job_id).update(payload={"seconds": 0.001})
            retry_dead_letter(job_id, by="user:boss", ports=harness.ports)

    yield retry
    for job_id, payload in payloads.items():
        Job.objects.filter(id=job_id).update(payload=payload)


def failed_jobs() -> list[str]:
    return list(Job.objects.filter(state="failed").order_by("id").values_list("id", flat=True))


def test_the_nodes_after_a_retried_dead_letter_run(harness: WorkflowHarness, repair: Repair) -> None:
    run = harness.to_end(
        harness.start(
            {"nodes": {"a": model(), "b": faulty(needs=["a"]), "c": model(needs=["b"])}},
            callback_url="https://hooks.example.com/",
        )
    )
    assert (run.state, states(run)["c"]) == (RunState.FAILED, "cancelled")
    [letter] = failed_jobs()
    repair(letter)
    harness.until(run, lambda: run.state == RunState.COMPLETED)
    assert run.round == 2
    assert states(run) == {"a": "completed", "b": "completed", "c": "completed"}
    assert Node.objects.get(run=run, key="b").job_id == letter, "it did not run a third time"
    assert Job.objects.count() == 3
    assert sorted(Callback.objects.values_list("round", flat=True)) == [1, 2]
    assert not EndNotice.objects.exists()


def test_other_failed_nodes_stay_failed(harness: WorkflowHarness, repair: Repair) -> None:
    run = harness.to_end(harness.start({"nodes": {"a": faulty(), "b": faulty(), "c": model(needs=["a"])}}))
    letter = Node.objects.get(run=run, key="a").job_id or ""
    repair(letter)
    harness.until(run, lambda: run.round == 2 and run.state != RunState.RUNNING)
    assert states(run) == {"a": "completed", "b": "failed", "c": "completed"}
    assert run.state == RunState.FAILED
    assert Job.objects.filter(state="failed").count() == 1


@pytest.mark.database
def test_a_map_goes_on_once_few_enough_of_its_items_fail(harness: WorkflowHarness, repair: Repair) -> None:
    items = ["fail", None, "fail"]
    spec = {
        "nodes": {
            "all": {
                **model(payload={"fault": {"$ref": "item", "default": None}}),
                "map": {"over": items, "fail_at": 1},
            },
            "next": model(needs=["all"]),
        }
    }
    run = harness.to_end(harness.start(spec))
    assert run.state == RunState.FAILED
    first, *others = failed_jobs()
    repair(first)
    harness.until(run, lambda: Job.objects.get(id=first).state == "completed")
    harness.advance(run)
    if others:
        assert (run.state, run.round) == (RunState.FAILED, 1), "another item still fails"
        repair(*others)
    harness.until(run, lambda: run.state == RunState.COMPLETED)
    assert states(run) == {"all": "completed", "next": "completed"}


def test_a_retried_job_without_success_changes_nothing(harness: WorkflowHarness) -> None:
    run = harness.to_end(harness.start({"nodes": {"a": faulty()}}))
    [letter] = failed_jobs()
    retry_dead_letter(letter, by="user:boss", ports=harness.ports)
    cancel_job(letter, ports=harness.ports)
    harness.advance(run)
    assert (run.state, run.round) == (RunState.FAILED, 1)
    assert not EndNotice.objects.exists()


def test_a_success_whose_hint_was_lost_is_found_by_the_sweep(
    harness: WorkflowHarness, repair: Repair
) -> None:
    run = harness.to_end(harness.start({"nodes": {"a": faulty(), "b": model(needs=["a"])}}))
    [letter] = failed_jobs()
    repair(letter)
    while Job.objects.get(id=letter).state != "completed":
        harness.worker.work("m")
    harness.woken.clear()
    EndNotice.objects.update(at=timezone.now() - timedelta(hours=1))
    lost_ends.sweep(harness.ports)
    harness.until(run, lambda: run.state == RunState.COMPLETED)


@pytest.mark.database
def test_a_success_that_arrives_while_notices_are_deleted_stays(
    harness: WorkflowHarness, repair: Repair
) -> None:
    run = harness.to_end(harness.start({"nodes": {"a": faulty()}}))
    repair(*failed_jobs())
    while not EndNotice.objects.filter(state="completed").exists():
        harness.worker.work("m")
    delete_of_ended([run.id])  # the rest of a step that did not see it
    harness.until(run, lambda: run.state == RunState.COMPLETED)


def test_in_a_running_run_the_nodes_that_waited_for_it_start(
    harness: WorkflowHarness, repair: Repair
) -> None:
    spec = {
        "nodes": {
            "a": faulty(),
            "b": model(needs=["a"]),
            "ask": {"human": {"title": "?", "choose_from": [1]}},
        }
    }
    run = harness.start(spec)
    harness.until(run, lambda: states(run)["b"] == "cancelled")
    [letter] = failed_jobs()
    repair(letter)
    harness.until(run, lambda: states(run)["b"] == "completed")
    assert (run.state, run.round) == (RunState.RUNNING, 1)


def one_of_three(**more: Any) -> dict[str, Any]:
    """A map whose first item fails before the others start, and a question that keeps the run going."""
    return {
        "nodes": {
            "all": {
                **model(payload={"fault": {"$ref": "item", "default": None}}),
                "map": {"over": ["fail", None, None], "max_parallel": 1},
            },
            "next": model(payload={"got": {"$ref": "length(all)"}}),
            "last": model(needs=["next"]),
            "ask": {"human": {"title": "?", "choose_from": [1]}},
            **more,
        },
        "output": {"count": {"$ref": "length(all)"}},
    }


@pytest.mark.database
def test_in_a_running_run_a_map_goes_on_with_its_other_items(
    harness: WorkflowHarness, repair: Repair
) -> None:
    run = harness.start(one_of_three())
    harness.until(run, lambda: states(run)["last"] == "cancelled")
    assert Job.objects.count() == 1, "the map failed before its other items started"
    repair(*failed_jobs())
    harness.until(run, lambda: states(run)["last"] == "completed")
    assert (run.state, run.round) == (RunState.RUNNING, 1)
    assert states(run)["all"] == "completed"
    assert Node.objects.get(run=run, key="next").state == "completed"
    answer_wait(run, "ask", 1, by="key:me", ports=harness.ports)
    harness.until(run, lambda: run.state == RunState.COMPLETED)
    assert run.output == {"count": 3}


def test_in_a_later_round_a_map_that_failed_in_an_earlier_one_goes_on(
    harness: WorkflowHarness, repair: Repair
) -> None:
    choices = {"$ref": "run.round > `1` && inputs"}
    run = harness.start(one_of_three(ask={"human": {"title": "?", "choose_from": choices}}), [1])
    harness.to_end(run)
    assert run.state == RunState.FAILED, "in the first round the question has no choices"
    restart_run(run.id, ports=harness.ports, keys=["ask"])
    harness.until(run, lambda: states(run)["ask"] == "running")
    repair(*failed_jobs())
    harness.until(run, lambda: states(run)["last"] == "completed")
    assert (run.state, run.round) == (RunState.RUNNING, 2)
    assert Node.objects.filter(run=run, base="all", state="completed").count() == 4


def test_a_retry_of_a_maps_item_makes_a_step_under_way_begin_anew(
    harness: WorkflowHarness, repair: Repair
) -> None:
    """The step has read counts of the map that are old now."""
    run = harness.start({
        "nodes": {
            "all": {
                **model(payload={"fault": {"$ref": "item", "default": None}}),
                "map": {"over": ["fail", None, None, None, None], "max_parallel": 1, "fail_at": 5},
            },
            "ask": {"human": {"title": "?", "choose_from": [1]}},
        }
    })  # fmt: skip
    harness.until(run, lambda: MapState.objects.filter(completed=1).exists())
    before = run.steps
    EndNotice.objects.create(
        followed_by=f"run:{run.id}", ended_id=failed_jobs()[0], round=2, state="completed", at=timezone.now()
    )
    take_retried(run.id, harness.ports)
    run.refresh_from_db()
    assert run.steps == before + 1
    assert MapState.objects.get().failed == 0
    Job.objects.filter(state="failed").update(state="completed", result={}, error_code="")
    harness.until(run, lambda: states(run)["all"] == "completed")


@pytest.mark.database
@pytest.mark.parametrize("limit", [1_000_000, 10])
def test_a_sub_run_that_goes_on_lets_its_parent_go_on_with_its_output(
    harness: WorkflowHarness, repair: Repair, settings: Any, limit: int
) -> None:
    """limit: bytes of an output that stays in the row of its run; a longer one is an artifact."""
    settings.DISPATCHER = replace(settings.DISPATCHER, inline_result_bytes=limit)
    harness.put(
        "child", {"nodes": {"x": faulty()}, "output": {"took": {"$ref": "x.seconds"}, "text": "long"}}
    )
    nodes = {"sub": {"workflow": "child"}, "last": model(payload={"echo": {"$ref": "sub.text"}})}
    run = harness.to_end(harness.start({"nodes": nodes, "output": {"$ref": "last.echo"}}))
    assert run.state == RunState.FAILED
    repair(*failed_jobs())
    harness.until(run, lambda: run.state == RunState.COMPLETED)
    assert set(Run.objects.values_list("state", "round")) == {("completed", 2)}
    assert run.output == "long"
    of_run = ArtifactUse.objects.filter(run=run.id)
    assert of_run.count() == Run.objects.exclude(output_artifact=None).count() == (limit == 10)


def asked_after_a_failure() -> dict[str, Any]:
    """`b` needs `a`, which fails; a question is asked as soon as both have ended."""
    return {
        "nodes": {
            "a": faulty(),
            "b": model(needs=["a"]),
            "ask": {
                "human": {"title": "?", "choose_from": {"$ref": "b.list", "default": [1]}},
                "needs": ["b"],
                "needs_rule": "all_done",
            },
        }
    }


@pytest.mark.database
def test_a_success_waits_for_the_end_of_a_run_that_has_gone_on_without_it(
    harness: WorkflowHarness, repair: Repair
) -> None:
    run = harness.start(asked_after_a_failure())
    harness.until(run, lambda: states(run)["ask"] == "running")
    repair(*failed_jobs())
    harness.until(run, lambda: EndNotice.objects.filter(followed_by=f"later:{run.id}").exists())
    assert states(run) == {"a": "failed", "b": "cancelled", "ask": "running"}
    answer_wait(run, "ask", 1, by="key:me", ports=harness.ports)
    harness.until(run, lambda: run.round == 2 and states(run)["ask"] == "running")
    assert states(run) == {"a": "completed", "b": "completed", "ask": "running"}
    answer_wait(run, "ask", 1, by="key:me", ports=harness.ports)
    harness.until(run, lambda: run.state == RunState.COMPLETED)


@pytest.mark.database
def test_a_success_that_waited_is_found_by_the_sweep(harness: WorkflowHarness, repair: Repair) -> None:
    """The process may die between the end of the run and the look for such successes."""
    run = harness.to_end(harness.start({"nodes": {"a": faulty(), "b": model(needs=["a"])}}))
    repair(*failed_jobs())
    while not EndNotice.objects.filter(state="completed").exists():
        harness.worker.work("m")
    EndNotice.objects.update(followed_by=f"later:{run.id}")
    lost_ends.sweep(harness.ports)
    harness.until(run, lambda: run.state == RunState.COMPLETED)


@pytest.mark.database
def test_a_success_that_waited_does_not_begin_a_cancelled_run_anew(
    harness: WorkflowHarness, repair: Repair
) -> None:
    run = harness.start(asked_after_a_failure())
    harness.until(run, lambda: states(run)["ask"] == "running")
    repair(*failed_jobs())
    harness.until(run, lambda: EndNotice.objects.filter(followed_by=f"later:{run.id}").exists())
    cancel_run(run.id, ports=harness.ports)
    harness.until(run, lambda: run.state == RunState.CANCELLED and not EndNotice.objects.exists())
    harness.advance(run)
    assert (run.state, run.round) == (RunState.CANCELLED, 1)


def test_a_success_of_a_round_before_the_restart_changes_nothing(
    harness: WorkflowHarness, repair: Repair
) -> None:
    run = harness.to_end(harness.start({"nodes": {"a": faulty(), "b": model(needs=["a"])}}))
    [first] = failed_jobs()
    restart_run(run.id, ports=harness.ports)
    harness.to_end(run)
    assert len(failed_jobs()) == 2
    repair(first)
    while not EndNotice.objects.filter(state="completed").exists():
        harness.worker.work("m")
    harness.until(run, lambda: not EndNotice.objects.exists())
    assert (run.state, run.round) == (RunState.FAILED, 2)
    assert states(run) == {"a": "failed", "b": "cancelled"}


@pytest.mark.database
def test_the_handler_of_failures_does_not_run_again_for_its_own_success(
    harness: WorkflowHarness, repair: Repair
) -> None:
    spec = {"nodes": {"a": faulty(), "notify": faulty()}, "on_failure": {"node": "notify"}}
    run = harness.to_end(harness.start(spec))
    letter = Node.objects.get(run=run, key="notify").job_id or ""
    repair(letter)
    harness.until(run, lambda: states(run)["notify"] == "completed")
    harness.advance(run)
    assert (run.state, run.round) == (RunState.FAILED, 1)


def work_until(harness: WorkflowHarness, condition: Callable[[], bool]) -> None:
    """Run jobs, and advance no run."""

    def met() -> bool:
        harness.worker.work("m")
        return condition()

    wait_for(met)


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_failure_that_the_run_had_not_seen_before_the_retry_does_not_count(
    harness: WorkflowHarness, repair: Repair, has_ended: bool
) -> None:
    """Nothing advanced runs for a while."""
    run = harness.start({"nodes": {"a": faulty(), "b": model(needs=["a"])}})
    harness.advance(run)
    work_until(harness, lambda: bool(failed_jobs()))
    [letter] = failed_jobs()
    repair(letter)
    if has_ended:
        work_until(harness, lambda: Job.objects.get(id=letter).state == "completed")
    harness.advance(run)
    assert run.state == RunState.RUNNING
    harness.until(run, lambda: run.state != RunState.RUNNING)
    assert (run.state, run.round) == (RunState.COMPLETED, 1)


def test_a_success_does_not_begin_a_run_anew_that_was_cancelled_before_it(
    harness: WorkflowHarness, repair: Repair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "cancel_retried", lambda *_: 0)  # Redis is away
    ask = {"human": {"title": "?", "choose_from": [1]}}
    run = harness.start({"nodes": {"a": faulty(), "b": model(needs=["a"]), "ask": ask}})
    harness.until(run, lambda: states(run)["b"] == "cancelled")
    [letter] = failed_jobs()
    repair(letter)
    cancel_run(run.id, ports=harness.ports)
    cancelling_runs.sweep(harness.ports)
    harness.advance(run)
    assert run.state == RunState.CANCELLED
    work_until(harness, lambda: Job.objects.get(id=letter).state == "completed")
    harness.advance(run)
    assert (run.state, run.round) == (RunState.CANCELLED, 1)
    assert not EndNotice.objects.exists()


def test_a_success_that_waited_outlasts_a_restart_of_other_nodes(
    harness: WorkflowHarness, repair: Repair
) -> None:
    """The restart comes between the end of the run and the look for such successes."""
    spec = asked_after_a_failure()
    spec["nodes"]["other"] = model()
    run = harness.start(spec)
    harness.until(run, lambda: states(run)["ask"] == "running")
    repair(*failed_jobs())
    later = EndNotice.objects.filter(followed_by=postponed_of(run.id))
    harness.until(run, later.exists)
    Run.objects.filter(id=run.id).update(state="failed", finished_at=timezone.now())
    Run.objects.filter(id=run.id).update(state="running", finished_at=None)  # restarted
    assert end_postponed([run.id]) == []
    assert later.exists()
    answer_wait(run, "ask", 1, by="key:me", ports=harness.ports)
    harness.until(run, lambda: run.round == 2 and states(run)["ask"] == "running")
    assert states(run)["a"] == "completed"
    answer_wait(run, "ask", 1, by="key:me", ports=harness.ports)
    harness.until(run, lambda: run.state == RunState.COMPLETED)


def test_a_map_that_goes_on_with_a_retried_item_gets_the_list_of_a_retried_node(
    harness: WorkflowHarness, repair: Repair
) -> None:
    """Both succeed at once: its completed items are those of another list."""
    every = {
        **model(payload={"fault": {"$ref": "item", "default": None}}),
        "map": {"over": {"$ref": "a.echo", "default": [None, None, "fail"]}},
        "needs_rule": "all_done",
    }
    run = harness.to_end(harness.start({"nodes": {"a": faulty(), "all": every}}))
    assert states(run) == {"a": "failed", "all": "failed"}
    repair(*failed_jobs())
    work_until(harness, lambda: Job.objects.filter(state="completed", round=2).count() == 2)
    a = Node.objects.get(run=run, key="a").job_id
    Job.objects.filter(id=a).update(result={"echo": [None]})
    harness.until(run, lambda: run.state != RunState.RUNNING and run.round == 2)
    assert states(run) == {"a": "completed", "all": "completed"}
    assert MapState.objects.get(node__round=2).first_round == 2


@pytest.mark.database
@pytest.mark.parametrize("has_ended", [True, False])
def test_a_sub_run_of_a_cancelled_run_does_not_go_on(
    harness: WorkflowHarness, repair: Repair, has_ended: bool
) -> None:
    harness.put("child", {"nodes": {"x": faulty(), "y": model(needs=["x"])}})
    ask = {"human": {"title": "?", "choose_from": [1]}, "needs": ["sub"], "needs_rule": "all_done"}
    run = harness.start({"nodes": {"sub": {"workflow": "child"}, "ask": ask}})
    harness.until(run, lambda: states(run)["ask"] == "running")
    cancel_run(run.id, ports=harness.ports)
    if has_ended:
        cancelling_runs.sweep(harness.ports)
        harness.advance(run)
        assert run.state == RunState.CANCELLED
    [letter] = failed_jobs()
    harness.ports = replace(
        harness.ports, retryable=lambda letters: letters
    )  # as if it came before the cancel
    repair(letter)
    work_until(harness, lambda: Job.objects.get(id=letter).state == "completed")
    child = Run.objects.get(depth=1)
    harness.advance(child)
    assert (child.state, child.round) == (RunState.FAILED, 1)


def retried_while_running(harness: WorkflowHarness, repair: Repair) -> tuple[Run, str]:
    """Return a running run, and its dead letter that was retried and waits."""
    ask = {"human": {"title": "?", "choose_from": [1]}}
    run = harness.start({"nodes": {"a": faulty(), "b": model(needs=["a"]), "ask": ask}})
    harness.until(run, lambda: states(run)["b"] == "cancelled")
    [letter] = failed_jobs()
    repair(letter)
    return run, letter


def test_a_cancel_reaches_a_retried_dead_letter(harness: WorkflowHarness, repair: Repair) -> None:
    run, letter = retried_while_running(harness, repair)
    cancel_run(run.id, ports=harness.ports)
    assert Job.objects.get(id=letter).state == "cancelled"
    cancelling_runs.sweep(harness.ports)
    harness.advance(run)
    assert run.state == RunState.CANCELLED


@pytest.mark.database
def test_a_cancel_reaches_a_retried_dead_letter_later_if_redis_was_away(
    harness: WorkflowHarness, repair: Repair, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, letter = retried_while_running(harness, repair)
    with monkeypatch.context() as patched:
        patched.setattr(control, "cancel_retried", lambda *_: 0)
        cancel_run(run.id, ports=harness.ports)
    cancelling_runs.sweep(harness.ports)
    harness.advance(run)
    assert (run.state, Job.objects.get(id=letter).state) == (RunState.CANCELLED, "queued")
    lost_ends.sweep(harness.ports)
    assert Job.objects.get(id=letter).state == "cancelled"


@pytest.mark.database
def test_a_retry_in_a_cancelled_run_is_refused(harness: WorkflowHarness) -> None:
    ask = {"human": {"title": "?", "choose_from": [1]}}
    run = harness.start({"nodes": {"a": faulty(), "ask": ask}})
    harness.until(run, lambda: states(run)["a"] == "failed")
    other = harness.to_end(harness.start({"nodes": {"a": faulty()}}))
    letter = Node.objects.get(run=run, key="a").job_id or ""
    cancel_run(run.id, ports=harness.ports)
    everything = JobFilter()
    for is_over in (False, True):
        if is_over:
            cancelling_runs.sweep(harness.ports)
            harness.advance(run)
            assert run.state == RunState.CANCELLED
        with pytest.raises(RunWasCancelled, match=run.id) as refused:
            retry_dead_letter(letter, by="user:boss", ports=harness.ports)
        assert (refused.value.code, refused.value.status) == ("run_cancelled", 409)
        assert count(everything, BulkAction.RETRY, harness.ports) == 1
    assert count(everything, BulkAction.DISMISS, harness.ports) == 2
    outcome = retry_jobs(everything, by="user:boss", ports=harness.ports)
    assert (outcome.done, outcome.remaining, outcome.refused) == (1, 0, 0)
    assert Job.objects.get(followed_by=f"run:{other.id}").round == 2
    with pytest.raises(NotDeadLetter):
        retry_dead_letter("0" * 26, ports=harness.ports)


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_retry_in_a_sub_run_of_a_cancelled_run_is_refused(
    harness: WorkflowHarness, has_ended: bool
) -> None:
    """On each level: the failed sub-run has ended before the cancel, which does not reach it."""
    harness.put("grandchild", {"nodes": {"x": faulty()}})
    harness.put("child", {"nodes": {"sub": {"workflow": "grandchild"}}})
    ask = {"human": {"title": "?", "choose_from": [1]}, "needs": ["sub"], "needs_rule": "all_done"}
    run = harness.start({"nodes": {"sub": {"workflow": "child"}, "ask": ask}})
    harness.until(run, lambda: states(run)["ask"] == "running")
    [letter] = failed_jobs()
    assert count(JobFilter(), BulkAction.RETRY, harness.ports) == 1
    cancel_run(run.id, ports=harness.ports)
    if has_ended:
        cancelling_runs.sweep(harness.ports)
        harness.advance(run)
        assert run.state == RunState.CANCELLED
    with pytest.raises(RunWasCancelled):
        retry_dead_letter(letter, by="user:boss", ports=harness.ports)
    assert count(JobFilter(), BulkAction.RETRY, harness.ports) == 0
    assert Job.objects.get(id=letter).round == 1


def test_a_dead_letter_of_a_run_past_its_deadline_is_retried(
    harness: WorkflowHarness, repair: Repair
) -> None:
    """The run was not cancelled: it failed."""
    run = harness.start({"nodes": {"a": faulty(), "ask": {"human": {"title": "?", "choose_from": [1]}}}})
    harness.until(run, lambda: states(run)["a"] == "failed")
    Run.objects.filter(id=run.id).update(deadline_at=timezone.now() - timedelta(seconds=1))
    cancelling_runs.sweep(harness.ports)
    [letter] = failed_jobs()
    repair(letter)
    assert Job.objects.get(id=letter).round == 2
    harness.until(run, lambda: run.round == 2 or run.state != RunState.RUNNING)


def with_sub_run(harness: WorkflowHarness, **more: Any) -> tuple[Run, Run]:
    """Return a run and its sub-run, which wait for an answer to the sub-run's question."""
    ask = {"human": {"title": "?", "choose_from": [1, 2]}}
    harness.put("child", {"nodes": {"ask": ask}, "output": {"$ref": "ask"}})
    sub = {"workflow": "child", **more}
    last = model(payload={"echo": {"$ref": "sub"}})
    run = harness.start({"nodes": {"sub": sub, "last": last}, "output": {"$ref": "last.echo"}})
    harness.until(run, Wait.objects.exists)
    return run, Run.objects.get(depth=1)


def answer_again(harness: WorkflowHarness, run: Run, child: Run) -> None:
    """Restart a sub-run, and answer its question."""
    restart_run(child.id, ports=harness.ports)
    harness.until(run, lambda: Wait.objects.filter(node__run=child, answered_at=None).exists())
    answer_wait(child, "ask", 2, by="key:me", ports=harness.ports)


@pytest.mark.database
@pytest.mark.parametrize("more", [{}, {"map": {"count": 1}}])
def test_a_restarted_sub_run_that_was_cancelled_alone_lets_its_parent_go_on(
    harness: WorkflowHarness, more: dict[str, Any]
) -> None:
    run, child = with_sub_run(harness, **more)
    cancel_run(child.id, ports=harness.ports)
    harness.until(run, lambda: run.state != RunState.RUNNING)
    assert (run.state, states(run)["last"]) == (RunState.FAILED, "cancelled")
    answer_again(harness, run, child)
    harness.until(run, lambda: run.state == RunState.COMPLETED)
    assert (run.round, run.output) == (2, [2] if more else 2)


def test_a_restarted_sub_run_that_was_cancelled_alone_lets_a_running_parent_go_on(
    harness: WorkflowHarness,
) -> None:
    ask = {"human": {"title": "?", "choose_from": [1, 2]}}
    harness.put("child", {"nodes": {"ask": ask}})
    nodes = {"sub": {"workflow": "child"}, "last": model(needs=["sub"]), "other": ask}
    run = harness.start({"nodes": nodes})
    harness.until(run, lambda: Wait.objects.count() == 2)
    child = Run.objects.get(depth=1)
    cancel_run(child.id, ports=harness.ports)
    harness.until(run, lambda: states(run)["last"] == "cancelled")
    answer_again(harness, run, child)
    harness.until(run, lambda: states(run)["last"] == "completed")
    assert (run.state, run.round) == (RunState.RUNNING, 1)


def test_a_sub_run_whose_output_its_parent_would_drop_is_not_restarted(harness: WorkflowHarness) -> None:
    run, child = with_sub_run(harness)

    def refusal() -> str:
        with pytest.raises(OutputNotWanted) as refused:
            restart_run(child.id, keys=["ask"], ports=harness.ports)
        assert (refused.value.code, refused.value.status) == ("output_not_wanted", 409)
        child.refresh_from_db()
        assert child.round == 1
        return str(refused.value)

    cancel_run(child.id, ports=harness.ports)
    harness.until(run, lambda: run.state != RunState.RUNNING)
    restart_run(run.id, ports=harness.ports)
    assert "restart the newest sub-run" in refusal()
    harness.until(run, lambda: Wait.objects.filter(answered_at=None).exists())
    cancel_run(run.id, ports=harness.ports)
    assert "is being cancelled; once it has ended, restart that run" in refusal()
    cancelling_runs.sweep(harness.ports)
    harness.until(run, lambda: run.state == RunState.CANCELLED)
    assert 'was cancelled; restart that run with {"nodes": ["sub"]}' in refusal()


def test_a_sub_run_whose_output_was_taken_is_not_restarted(harness: WorkflowHarness) -> None:
    """On any level: the run between them would open a new round, too."""
    harness.put("grandchild", {"nodes": {"x": faulty()}})
    sub = {"workflow": "grandchild"}
    after = model(needs=["sub"], needs_rule="all_done")
    harness.put("child", {"nodes": {"sub": sub, "after": after}, "output": 1})
    run = harness.to_end(harness.start({"nodes": {"sub": {"workflow": "child"}}}))
    assert run.state == RunState.COMPLETED
    grandchild = Run.objects.get(depth=2)
    with pytest.raises(OutputNotWanted, match=f"{run.id}.* took its output"):
        restart_run(grandchild.id, ports=harness.ports)
