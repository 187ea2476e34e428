"""Steps of runs that raise what no rule foresees: exceptions planted in the code that decides or writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, ProgrammingError, connection
from django.utils import timezone

from artifacts.store.contract import StoreUnavailable
from jobs.models import Callback, Job
from jobs.reports import counters
from jobs.reports.counters import Name
from tests.support.waiting import wait_for
from tests.workflows.workflow_harness import WorkflowHarness, model, states
from verification.workflow_laws import check_runs
from workflows.domain.states import RunState
from workflows.execution.advancer import Advancer, AdvancerLimits, _Advance
from workflows.execution.due_runs import DueRuns
from workflows.execution.writes import Writes
from workflows.metrics import collect
from workflows.models import Node, Run
from workflows.operations.answers import answer_wait
from workflows.operations.control import cancel_run
from workflows.operations.restart import restart_run
from workflows.reports.explain import explain_run
from workflows.reports.graph import graph_of, plan_of
from workflows.sweeps import cancelling_runs, stalled_runs, unread_notices

pytestmark = pytest.mark.django_db(transaction=True)
LONG = timedelta(hours=1)


class Poison:
    """The steps of these runs raise. tried: their ids, at each try."""

    def __init__(self) -> None:
        self.run_ids: set[str] = set()
        self.error: Exception = KeyError("planted \0")
        self.tried: list[str] = []

    def taste(self, run_id: str) -> None:
        if run_id in self.run_ids:
            self.tried.append(run_id)
            raise self.error


@pytest.fixture
def poison(harness: WorkflowHarness, monkeypatch: pytest.MonkeyPatch) -> Iterator[Poison]:
    """Raised where a step is decided. The runs keep all other laws."""
    found = Poison()
    decide = _Advance.decide

    def decided(self: _Advance, *, all_read: bool) -> None:
        found.taste(self.run.id)
        decide(self, all_read=all_read)

    monkeypatch.setattr(_Advance, "decide", decided)
    harness.keeps_laws = False
    yield found
    assert not [one for one in check_runs(harness.ports, drained=False) if "a step of run" not in one]


def limit(settings: Any, failures: int, seconds: float = 600.0) -> None:
    settings.DISPATCHER = replace(
        settings.DISPATCHER, workflow_step_failures=failures, workflow_step_failure_seconds=seconds
    )


def pass_pause(run: Run, *, since: timedelta | None = None) -> None:
    """Let the pause after a failed step be over. since: age of the first failure."""
    now = timezone.now()
    Run.objects.filter(id=run.id).update(step_retry_at=now - timedelta(seconds=1))
    if since is not None:
        Run.objects.filter(id=run.id).update(failing_since=now - since)


def fail_once_more(run: Run, harness: WorkflowHarness, **more: Any) -> Run:
    pass_pause(run, **more)
    harness.advancer.advance(run.id)
    run.refresh_from_db()
    return run


def fail_until_given_up(run: Run, harness: WorkflowHarness) -> Run:
    harness.advancer.advance(run.id)
    for _ in range(20):
        if fail_once_more(run, harness, since=LONG).cancel_requested_at is not None:
            return run
    raise AssertionError("the run was not given up")


def swept_to_end(run: Run, harness: WorkflowHarness) -> Run:
    """Run the sweep of cancelled runs until the run has ended."""

    def ended() -> bool:
        harness.worker.work("m")
        cancelling_runs.sweep(harness.ports)
        run.refresh_from_db()
        return run.state != RunState.RUNNING

    wait_for(ended)
    return run


def test_a_failed_step_is_tried_again_after_growing_pauses(harness: WorkflowHarness, poison: Poison) -> None:
    run = harness.start({"nodes": {"a": model()}})
    poison.run_ids = {run.id}
    assert harness.advancer.advance(run.id) is False
    harness.advancer.advance(run.id)
    Run.objects.update(created_at=run.created_at - LONG)
    assert unread_notices.sweep(harness.ports).looked == 0, "it pauses"
    assert len(poison.tried) == 1
    for failures, seconds in enumerate([2, 4, 8, 16, 32, 64, 120, 120], start=2):
        pass_pause(run)
        before = timezone.now()
        assert unread_notices.sweep(harness.ports).looked == 1
        run.refresh_from_db()
        assert (run.step_failures, len(poison.tried)) == (failures, failures)
        assert run.step_retry_at is not None
        assert before <= run.step_retry_at - timedelta(seconds=seconds) <= timezone.now()
    assert run.step_error.startswith("KeyError: 'planted")
    assert "test_failing_steps.py" in run.step_error
    assert counters.read(Name.STEP_FAILURES) == [("", "KeyError", 9)]
    poison.run_ids = set()
    pass_pause(run)
    assert unread_notices.sweep(harness.ports).looked == 1
    assert harness.to_end(run).state == RunState.COMPLETED


def test_only_failures_in_a_row_count(harness: WorkflowHarness, poison: Poison) -> None:
    run = harness.start({"nodes": {"a": model(), "b": model(needs=["a"])}})
    poison.run_ids = {run.id}
    harness.advancer.advance(run.id)
    assert fail_once_more(run, harness, since=LONG).step_failures == 2
    poison.run_ids = set()
    pass_pause(run)
    harness.advance(run)  # another process could do it
    assert not run.is_failing
    poison.run_ids = {run.id}
    harness.worker.work("m")
    wait_for(lambda: Job.objects.filter(state="completed").exists())
    harness.advancer.advance(run.id)
    run.refresh_from_db()
    assert (run.step_failures, run.is_failing) == (1, True)
    assert run.failing_since is not None
    assert timezone.now() - run.failing_since < LONG / 2


@pytest.mark.database
def test_a_run_is_given_up_after_so_many_failures_over_so_many_seconds(
    harness: WorkflowHarness, poison: Poison, settings: Any
) -> None:
    limit(settings, 3, 90.0)
    harness.put(
        "sub", {"nodes": {"a": model(), "b": model(needs=["a"])}, "on_failure": {"running": "finish"}}
    )
    handler = model(payload={"echo": {"$ref": "error"}})
    nodes = {"below": {"workflow": "sub"}, "handler": handler}
    parent = harness.start(
        {"nodes": nodes, "on_failure": {"node": "handler"}}, callback_url="https://hooks.example.com/"
    )
    harness.advance(parent)
    child = Run.objects.get(depth=1)
    harness.advance(child)
    harness.worker.work("m")
    wait_for(lambda: Job.objects.filter(state="completed").exists())
    poison.run_ids = {child.id}
    harness.advancer.advance(child.id)
    for _ in range(5):
        fail_once_more(child, harness)
    assert (child.step_failures, child.cancel_requested_at) == (6, None), "not for long enough"
    Run.objects.filter(id=child.id).update(step_failures=1)
    assert fail_once_more(child, harness, since=LONG).cancel_requested_at is None, "not often enough"
    assert fail_once_more(child, harness, since=LONG).cancel_requested_at is not None
    swept_to_end(child, harness)
    assert (child.state, child.error_code) == (RunState.FAILED, "step_failed")
    for text in ("KeyError 3 times", "3 failures (DISPATCHER_WORKFLOW_STEP_FAILURES)", "90 seconds (DISP"):
        assert text in child.error_message
    assert "planted" not in child.error_message, "it may quote data"
    assert states(child) == {"a": "completed", "b": "cancelled"}
    harness.to_end(parent)
    assert parent.error_message.startswith("below failed: step_failed: the step that advances the run raised")
    echoed = Job.objects.get(id=Node.objects.get(key="handler").job_id).result["echo"]
    assert echoed["message"] == parent.error_message
    assert Callback.objects.count() == 1
    # once the defect is mended, a restart keeps what had completed
    poison.run_ids = set()
    restart_run(child.id, ports=harness.ports)
    harness.until(child, lambda: child.state != RunState.RUNNING)
    assert (child.state, Node.objects.filter(run=child, key="a").count()) == (RunState.COMPLETED, 1)
    harness.until(parent, lambda: parent.state == RunState.COMPLETED)


@pytest.mark.database
def test_the_jobs_of_a_run_that_is_given_up_are_cancelled(
    harness: WorkflowHarness, poison: Poison, settings: Any
) -> None:
    limit(settings, 2)
    ask = {"human": {"title": "?", "form": {}}}
    nodes = {"a": model(), "b": model(), "ask": ask, "later": model(needs=["a"])}
    run = harness.start({"nodes": nodes}, callback_url="https://hooks.example.com/")
    harness.advance(run)
    poison.run_ids = {run.id}
    fail_until_given_up(run, harness)
    cancelling_runs.sweep(harness.ports)
    assert set(Job.objects.values_list("state", flat=True)) == {"cancelled"}
    swept_to_end(run, harness)
    assert (run.state, set(states(run).values())) == (RunState.FAILED, {"cancelled"})
    assert Callback.objects.count() == 1


@pytest.mark.database
@pytest.mark.parametrize("broken", ["step", "definition"])
def test_a_run_whose_step_raises_can_be_cancelled(
    harness: WorkflowHarness, poison: Poison, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    harness.put("sub", {"nodes": {"a": model()}})
    run = harness.start({"nodes": {"a": model(), "sub": {"workflow": "sub"}, "z": model(needs=["a"])}})
    harness.advance(run)
    if broken == "step":
        poison.run_ids = set(Run.objects.values_list("id", flat=True))
    else:
        monkeypatch.setattr(Advancer, "plan", lambda *_: {}["no such definition"])
    harness.advancer.advance(run.id)
    cancel_run(run.id, ports=harness.ports)
    swept_to_end(run, harness)
    assert (run.state, run.error_code) == (RunState.CANCELLED, "run_cancelled")
    assert set(states(run).values()) <= {"cancelled", "completed"}
    assert set(Run.objects.values_list("state", flat=True)) == {"cancelled"}
    assert not Job.objects.filter(finished_at=None).exists()


@pytest.mark.database
def test_a_run_whose_step_raises_fails_at_its_deadline(harness: WorkflowHarness, poison: Poison) -> None:
    run = harness.start({"nodes": {"a": model()}}, deadline_seconds=0.001)
    poison.run_ids = {run.id}
    swept_to_end(run, harness)
    assert (run.state, run.error_code) == (RunState.FAILED, "deadline_exceeded")


@pytest.mark.database
def test_a_cancelled_run_does_not_end_before_its_jobs_have(harness: WorkflowHarness, poison: Poison) -> None:
    run = harness.start({"nodes": {"a": model()}})
    harness.advance(run)
    poison.run_ids = {run.id}
    Run.objects.filter(id=run.id).update(cancel_requested_at=timezone.now())
    Job.objects.update(cancel_requested_at=timezone.now())  # asked; its run has yet to end
    harness.advancer.advance(run.id)
    harness.advancer.end_cancelled(run.id)
    run.refresh_from_db()
    assert run.state == RunState.RUNNING
    Job.objects.update(cancel_requested_at=None)
    assert swept_to_end(run, harness).state == RunState.CANCELLED


@pytest.mark.parametrize("where", ["decide", "write"])
def test_a_run_whose_step_raises_does_not_keep_others_from_advancing(
    harness: WorkflowHarness, poison: Poison, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    runs = [harness.start({"nodes": {"a": model()}}) for _ in range(8)]
    if where == "decide":
        poison.run_ids = {runs[0].id, runs[5].id}
    else:
        write = Writes.write

        def refused(self: Writes, now: Any) -> None:
            if any(node.run_id in {runs[0].id, runs[5].id} for node in self.new_nodes):
                raise IntegrityError("planted")
            write(self, now)

        monkeypatch.setattr(Writes, "write", refused)
    due = DueRuns(harness.advancer)
    due.wake([run.id for run in runs])
    assert Job.objects.count() == 6
    failing = Run.objects.filter(step_failures=1).values_list("id", flat=True)
    assert set(failing) == {runs[0].id, runs[5].id}
    assert len(due.queue) == 0


@pytest.mark.database
@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite stores the value")
def test_a_value_that_the_database_refuses_fails_the_step_of_its_run_alone(
    harness: WorkflowHarness, poison: Poison, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [harness.start({"nodes": {"a": model()}}) for _ in range(4)]
    log = _Advance._log

    def logged(self: _Advance, steps: Any) -> None:
        log(self, steps)
        if self.run.id == runs[1].id:
            self.writes.events[-1].data = {"node": "a\0"}

    monkeypatch.setattr(_Advance, "_log", logged)
    DueRuns(harness.advancer).wake([run.id for run in runs])
    assert Job.objects.count() == 3
    failing = Run.objects.get(step_failures=1)
    assert (failing.id, failing.step_error[:9]) == (runs[1].id, "DataError")


def test_a_run_whose_step_raises_costs_the_others_no_transaction(
    harness: WorkflowHarness, poison: Poison, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [harness.start({"nodes": {"a": model()}}) for _ in range(4)]
    poison.run_ids = {runs[1].id}
    written = []
    write = Writes.write

    def counted(self: Writes, now: Any) -> None:
        written.append(len(self.new_nodes))
        write(self, now)

    monkeypatch.setattr(Writes, "write", counted)
    patient = AdvancerLimits(decide_seconds=60.0)  # logging the error may take longer
    Advancer(harness.ports, patient).advance_together([run.id for run in runs])
    assert written == [3]


@pytest.mark.parametrize(
    "error",
    [OperationalError("locked"), ProgrammingError("no such column"), StoreUnavailable("away"), OSError()],
)
def test_an_outage_does_not_count_as_a_failed_step(
    harness: WorkflowHarness, poison: Poison, error: Exception
) -> None:
    run = harness.start({"nodes": {"a": model()}})
    poison.run_ids, poison.error = {run.id}, error
    with pytest.raises(type(error)):
        harness.advancer.advance(run.id)
    run.refresh_from_db()
    assert (run.step_failures, run.failing_step) == (0, None)
    poison.run_ids = set()
    assert harness.to_end(run).state == RunState.COMPLETED


@pytest.mark.database
def test_a_failing_run_is_not_stalled(harness: WorkflowHarness, poison: Poison) -> None:
    run = harness.start({"nodes": {"a": model()}})
    Run.objects.update(created_at=run.created_at - LONG)
    poison.run_ids = {run.id}
    assert stalled_runs.sweep(harness.ports).looked == 1
    run.refresh_from_db()
    assert (run.state, run.step_failures) == (RunState.RUNNING, 1)


@pytest.mark.database
def test_a_given_up_run_keeps_the_items_and_answers_that_it_has(
    harness: WorkflowHarness, poison: Poison, settings: Any
) -> None:
    limit(settings, 1, 0.0)
    node = {**model(payload={"echo": {"$ref": "index"}}), "map": {"count": 4, "max_parallel": 2}}
    ask = {"human": {"title": "?", "form": {}}}
    run = harness.start(
        {"nodes": {"all": node, "ask": ask}, "output": [{"$ref": "all[*].echo"}, {"$ref": "ask"}]}
    )
    harness.advance(run)
    harness.until(run, lambda: Node.objects.filter(index__isnull=False, state="completed").count() >= 1)
    answer_wait(run, "ask", {"said": 1}, by="ann", ports=harness.ports)
    poison.run_ids = {run.id}
    harness.advancer.advance(run.id)
    swept_to_end(run, harness)
    assert (run.error_code, states(run)) == ("step_failed", {"all": "cancelled", "ask": "completed"})
    kept = set(Node.objects.filter(index__isnull=False, state="completed").values_list("index", flat=True))
    jobs = Job.objects.count()
    poison.run_ids = set()
    restart_run(run.id, ports=harness.ports)
    harness.to_end(run)
    assert (run.state, run.output) == (RunState.COMPLETED, [[0, 1, 2, 3], {"said": 1}])
    assert Job.objects.count() == jobs + 4 - len(kept)


def test_explanation_and_metrics_say_that_the_step_fails(harness: WorkflowHarness, poison: Poison) -> None:
    run = harness.start({"nodes": {"a": model()}})
    poison.run_ids = {run.id}
    harness.advancer.advance(run.id)
    run.refresh_from_db()
    plan = plan_of(run)
    reasons = explain_run(run, plan, graph_of(run, plan), harness.ports)
    found = {one.name: one.samples for one in collect(timezone.now(), name_tenants=False)}
    assert found["dispatcher_runs_failing"][0].value == 1
    [counted] = found["dispatcher_run_step_failures"]
    assert (counted.labels, counted.value) == ({"error": "KeyError"}, 1)
    assert (reasons[0].code, reasons[0].until) == ("step_fails", run.step_retry_at)
    assert "raised 1 error in a row" in reasons[0].message


def test_a_statement_that_the_database_refuses_fails_the_step_of_its_run_alone(
    harness: WorkflowHarness, poison: Poison, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value that the driver can't send, and a list that is empty, or too long for SQLite."""
    runs = [harness.start({"nodes": {"a": model()}}) for _ in range(4)]
    write = Writes.write
    numbers = list(range(400_000))

    def refused_once(self: Writes, now: Any) -> None:
        write(self, now)
        ids = {node.run_id for node in self.new_nodes}
        with connection.cursor() as cursor:
            if runs[1].id in ids:
                cursor.execute("SELECT %s", [object()])
            if runs[2].id in ids and connection.vendor == "postgresql":
                cursor.execute("SELECT 1 WHERE 1 IN ()")
            elif runs[2].id in ids:
                cursor.execute(f"SELECT 1 WHERE 1 IN ({','.join(['%s'] * len(numbers))})", numbers)

    monkeypatch.setattr(Writes, "write", refused_once)
    due = DueRuns(harness.advancer)
    due.wake([run.id for run in runs])
    assert Job.objects.count() == 2
    failing = Run.objects.filter(step_failures=1).values_list("id", flat=True)
    assert set(failing) == {runs[1].id, runs[2].id}
