"""What the sweeps repair: lost hints and notices, expired waits, cancels, deadlines, stalled and old runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from jobs.domain.states import JobState
from jobs.models import EndNotice, Event, Job
from jobs.sweeps.base import SweepCount, sweep_rows
from tests.support.factories import make_tenant
from tests.support.fakes import AbsentLeases
from tests.support.waiting import wait_for
from tests.workflows.workflow_harness import WorkflowHarness, model, states
from workflows.domain.errors import WaitExpired
from workflows.domain.states import RunState
from workflows.execution import advancer, reads
from workflows.execution.advancer import Advancer
from workflows.execution.due_runs import DueRuns
from workflows.models import Node, Run, Version, Wait
from workflows.operations.answers import answer_wait
from workflows.operations.control import cancel_run, pause_run, resume_run
from workflows.operations.restart import restart_run
from workflows.operations.signals import send_signal
from workflows.sweeps import (
    cancelling_runs,
    due_waits,
    lost_ends,
    old_runs,
    stalled_runs,
    unread_notices,
)

pytestmark = pytest.mark.django_db(transaction=True)
LONG_AGO = timedelta(days=400)
ASK = {"human": {"title": "?", "form": {}}}


def ran(harness: WorkflowHarness) -> None:
    """Wait until the only job has completed."""
    harness.worker.work("m")
    wait_for(lambda: Job.objects.filter(state=JobState.COMPLETED).exists())


@pytest.mark.database
def test_a_run_whose_first_hint_was_lost_begins(harness: WorkflowHarness) -> None:
    run = harness.start({"nodes": {"a": model()}})
    assert unread_notices.sweep(harness.ports).looked == 0  # the hint may still arrive
    Run.objects.update(created_at=run.created_at - timedelta(seconds=2))
    assert unread_notices.sweep(harness.ports).repaired == 1
    assert Job.objects.count() == 1


def test_a_notice_whose_hint_was_lost_advances_the_run(harness: WorkflowHarness) -> None:
    run = harness.start({"nodes": {"a": model(), "b": {**model(), "needs": ["a"]}}})
    harness.advance(run)
    ran(harness)
    notice = EndNotice.objects.get()
    EndNotice.objects.update(at=notice.at - timedelta(seconds=2))
    assert unread_notices.sweep(harness.ports).repaired == 1
    assert Job.objects.count() == 2


def go_on_without_a_hint(harness: WorkflowHarness) -> None:
    """The process that advanced the run died, or the hint was lost; a second later the sweep goes on."""
    harness.woken.clear()
    for notice in EndNotice.objects.all():
        EndNotice.objects.filter(id=notice.id).update(at=notice.at - timedelta(seconds=2))
    assert unread_notices.sweep(harness.ports).repaired == 1


@pytest.mark.database
def test_a_map_whose_process_died_before_its_first_child_goes_on(harness: WorkflowHarness) -> None:
    run = harness.start({"nodes": {"all": {**model(), "map": {"count": 2}}}})
    assert harness.advancer.advance(run.id)
    assert (Node.objects.count(), Job.objects.count()) == (1, 0)
    go_on_without_a_hint(harness)
    assert Job.objects.count() == 2


def fail_beside(harness: WorkflowHarness, **more: Any) -> Run:
    """Return a run in which a question has expired, beside a queued job and another question; its advancer
    has yet to see it."""
    ends = {"human": {"title": "?", "form": {}, "expires_seconds": 1000}}
    nodes = {**more, "a": ends, "b": model(), "ask": ASK}
    run = harness.advance(harness.start({"nodes": nodes, "on_failure": {"running": "cancel"}}))
    Wait.objects.filter(node__key="a").update(due_at=run.created_at)
    assert due_waits.sweep(harness.ports).repaired == 1
    return run


@pytest.mark.database
def test_a_failure_whose_process_died_before_it_cancelled_the_others_cancels_them(
    harness: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fail_beside(harness)

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(advancer, "cancel_nodes", die)
        with pytest.raises(KeyboardInterrupt):
            harness.advancer.advance(run.id)
    assert states(run) == {"a": "failed", "b": "running", "ask": "running"}
    go_on_without_a_hint(harness)
    harness.advance(run)
    assert (run.state, states(run)) == (
        RunState.FAILED,
        {"a": "failed", "b": "cancelled", "ask": "cancelled"},
    )


@pytest.mark.database
def test_a_failure_cancels_the_others_without_redis(harness: WorkflowHarness) -> None:
    """By their rows: a worker that still claims one of their tickets cannot start the job."""
    run = fail_beside(harness)
    harness.advancer = Advancer(replace(harness.ports, leases=lambda _: AbsentLeases()))
    harness.advance(run)
    harness.advance(run)
    assert (run.state, states(run)) == (
        RunState.FAILED,
        {"a": "failed", "b": "cancelled", "ask": "cancelled"},
    )


@pytest.mark.database
def test_a_failure_that_cancels_the_others_keeps_maps_from_starting_children(
    harness: WorkflowHarness,
) -> None:
    run = fail_beside(harness, many={**ASK, "map": {"count": 30, "max_parallel": 5, "fail_at": 0.1}})
    harness.advance(run)
    harness.advance(run)
    assert Node.objects.filter(base="many", index__isnull=False).count() == 5
    assert (run.state, run.error_node) == (RunState.FAILED, "a"), "its cancelled children do not fail the map"
    assert states(run)["many"] == "cancelled"


@pytest.mark.database
def test_a_map_that_fails_keeps_another_one_from_starting_children_in_the_same_step(
    harness: WorkflowHarness,
) -> None:
    asks = {"human": {"title": "?", "form": {}, "expires_seconds": 1000}}
    nodes = {
        "many": {**ASK, "map": {"count": 30, "max_parallel": 5, "fail_at": 2}},
        "few": {**asks, "map": {"count": 2}},
    }
    run = harness.advance(harness.start({"nodes": nodes, "on_failure": {"running": "cancel"}}))
    Wait.objects.filter(node__base="few").update(due_at=run.created_at)
    assert due_waits.sweep(harness.ports).repaired == 2
    answer_wait(run, "many[0]", 1, by="me", ports=harness.ports)
    harness.advance(run)
    harness.advance(run)
    assert Node.objects.filter(base="many", index__isnull=False).count() == 5
    assert (run.state, states(run)) == (RunState.FAILED, {"many": "cancelled", "few": "failed"})


@pytest.mark.database
def test_a_map_whose_last_items_were_cancelled_has_not_completed(harness: WorkflowHarness) -> None:
    """A restart runs these items; the nodes after it would get null for them."""
    nodes = {"few": {**ASK, "map": {"count": 3, "fail_at": 3}}}
    run = harness.advance(harness.start({"nodes": nodes}))
    answer_wait(run, "few[1]", "yes", by="me", ports=harness.ports)
    harness.advance(run)
    cancel_run(run.id, ports=harness.ports)
    cancelling_runs.sweep(harness.ports)
    assert states(run) == {"few": "cancelled"}
    restart_run(run.id, ports=harness.ports)
    harness.advance(run)
    asked = Wait.objects.filter(answered_at=None).values_list("node__key", flat=True)
    assert sorted(asked) == ["few[0]", "few[2]"]
    cancel_run(run.id, ports=harness.ports)


@pytest.mark.database
def test_a_resumed_run_whose_hint_was_lost_goes_on(harness: WorkflowHarness) -> None:
    run = harness.start({"nodes": {"a": model(), "b": {**model(), "needs": ["a"]}}})
    harness.advance(run)
    pause_run(run.id, ports=harness.ports)
    ran(harness)
    harness.advance(run)
    assert states(run) == {"a": "completed", "b": "pending"}
    resume_run(run.id, ports=harness.ports)
    go_on_without_a_hint(harness)
    assert states(run)["b"] == "running"


def test_a_pause_and_a_resume_reach_sub_runs_of_all_levels(harness: WorkflowHarness) -> None:
    harness.put("leaf", {"nodes": {"ask": ASK, "b": {**model(), "needs": ["ask"]}}})
    harness.put("middle", {"nodes": {"leaf": {"workflow": "leaf"}}})
    run = harness.start({"nodes": {"middle": {"workflow": "middle"}}})
    for _ in range(3):
        harness.advance(run)
    pause_run(run.id, ports=harness.ports)
    assert not Run.objects.filter(paused_at=None).exists()
    leaf = Run.objects.get(depth=2)
    answer_wait(leaf, "ask", 1, by="me", ports=harness.ports)
    harness.advance(leaf)
    assert states(leaf) == {"ask": "completed", "b": "pending"}
    resume_run(run.id, ports=harness.ports)
    assert not Run.objects.exclude(paused_at=None).exists()
    harness.woken.clear()  # the hint was lost
    EndNotice.objects.update(at=run.created_at - timedelta(seconds=2))
    unread_notices.sweep(harness.ports)
    assert states(leaf)["b"] == "running"
    harness.to_end(run)


def test_a_restarted_run_whose_hint_was_lost_begins(harness: WorkflowHarness) -> None:
    run = harness.start({"nodes": {"a": model()}})
    harness.to_end(run)
    restart_run(run.id, ports=harness.ports, keys=["a"])
    go_on_without_a_hint(harness)
    assert Job.objects.count() == 2


def test_a_restart_beside_a_late_hint_keeps_its_notice(
    harness: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hint for the ended run is on its way: it read the run before the restart."""
    run = harness.start({"nodes": {"a": model()}})
    harness.to_end(run)
    read = reads.runs_to_advance

    def read_and_restart(run_ids: Any) -> list[Run]:
        found = list(read(run_ids))
        restart_run(run.id, ports=harness.ports, keys=["a"])
        return found

    with monkeypatch.context() as patched:
        patched.setattr(reads, "runs_to_advance", read_and_restart)
        harness.advancer.advance(run.id)
    go_on_without_a_hint(harness)
    assert Job.objects.count() == 2


def test_a_map_whose_children_all_end_at_once_goes_on(harness: WorkflowHarness) -> None:
    over = {"over": [None, None, None], "max_parallel": 1, "fail_at": 3}
    run = harness.start({"nodes": {"all": {**model(payload={"x": {"$ref": "item"}}), "map": over}}})
    harness.advance(run)
    assert (run.state, Node.objects.filter(index__isnull=False).count()) == (RunState.FAILED, 3)


@pytest.mark.database
def test_the_many_unread_runs_of_a_tenant_do_not_keep_those_of_another_waiting(
    harness: WorkflowHarness,
) -> None:
    many = [harness.start({"nodes": {"a": model()}}) for _ in range(4)]
    harness.tenant = make_tenant("other")
    last = harness.start({"nodes": {"a": model()}})
    Run.objects.update(created_at=last.created_at - timedelta(seconds=2))
    assert unread_notices.sweep(harness.ports, most=2) == SweepCount(2, 2)
    begun = Run.objects.exclude(steps=0).values_list("id", flat=True)
    assert sorted(begun) == sorted([many[0].id, last.id])


@pytest.mark.database
def test_due_runs_have_their_tenant_and_leave_deleted_runs_out(harness: WorkflowHarness) -> None:
    run = harness.start({"nodes": {"a": model()}})
    due = DueRuns(harness.advancer)
    due.wake([run.id, run.id, "0" * 26])
    assert Job.objects.count() == 1
    assert (due.busy(), len(due.queue)) == (0, 0)


def test_notices_for_runs_that_have_ended_are_deleted(harness: WorkflowHarness) -> None:
    run = harness.to_end(harness.start({"nodes": {"a": model()}}))
    kept = harness.start({"nodes": {"a": model()}})
    old = run.created_at - timedelta(hours=1)
    for one in (run, kept):
        EndNotice.objects.create(followed_by=f"run:{one.id}", ended_id="x", state="completed", at=old)
    lost_ends.sweep(harness.ports)
    assert EndNotice.objects.get().followed_by == f"run:{kept.id}"


def test_a_node_whose_notice_was_never_written_gets_one(harness: WorkflowHarness) -> None:
    run = harness.start({"nodes": {"a": model()}})
    harness.advance(run)
    ran(harness)
    EndNotice.objects.all().delete()
    assert lost_ends.sweep(harness.ports) == SweepCount(1, 1)
    assert lost_ends.sweep(harness.ports) == SweepCount(1, 0)
    assert harness.to_end(run).state == RunState.COMPLETED


@pytest.mark.database
def test_a_node_that_ends_while_the_sweep_looks_gets_no_second_notice(
    harness: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = harness.start({"nodes": {"a": model()}})
    harness.advance(run)
    ran(harness)

    def look_and_advance(*found: Any) -> SweepCount:
        harness.advance(run)
        return sweep_rows(*found)

    monkeypatch.setattr(lost_ends, "sweep_rows", look_and_advance)
    assert lost_ends.sweep(harness.ports) == SweepCount(1, 0)
    assert run.state == RunState.COMPLETED
    assert not EndNotice.objects.exists()


@pytest.mark.database
def test_a_sub_run_whose_notice_was_never_written_gets_one(harness: WorkflowHarness) -> None:
    harness.keeps_laws = False  # the sub-run is ended by hand
    harness.put("child", {"nodes": {"a": model()}})
    run = harness.start({"nodes": {"sub": {"workflow": "child"}}})
    harness.until(run, lambda: Run.objects.filter(depth=1).exists())
    child = Run.objects.get(depth=1)
    Run.objects.filter(depth=1).update(state="completed", finished_at=child.created_at)
    assert lost_ends.sweep(harness.ports) == SweepCount(1, 1)
    assert harness.to_end(run).state == RunState.COMPLETED


@pytest.mark.parametrize(
    ("expiry", "state", "output"),
    [({"on_expiry": "skip"}, "skipped", 0), ({"on_expiry": "default", "default": 7}, "completed", 7)],
)
def test_an_answer_that_never_comes_ends_the_wait_by_its_rule(
    harness: WorkflowHarness, expiry: dict[str, object], state: str, output: int
) -> None:
    ask = {"human": {"title": "?", "form": {}, "expires_seconds": 60, **expiry}}
    run = harness.start({"nodes": {"ask": ask}, "output": {"$ref": "ask", "default": 0}})
    harness.advance(run)
    assert due_waits.sweep(harness.ports).looked == 0
    Wait.objects.update(due_at=run.created_at)
    with pytest.raises(WaitExpired):
        answer_wait(run, "ask", 1, by="ann", ports=harness.ports)
    assert due_waits.sweep(harness.ports).repaired == 1
    harness.to_end(run)
    assert (states(run)["ask"], run.output) == (state, output)


def test_a_skipped_child_does_not_count_as_failed_in_its_map(harness: WorkflowHarness) -> None:
    ask = {
        "human": {"title": "?", "form": {}, "expires_seconds": 60, "on_expiry": "skip"},
        "map": {"count": 3},
    }
    run = harness.start({"nodes": {"ask": ask}, "output": {"$ref": "ask"}})
    harness.until(run, lambda: Wait.objects.count() == 3)
    answer_wait(run, "ask[1]", "yes", by="ann", ports=harness.ports)
    Wait.objects.update(due_at=run.created_at)
    assert due_waits.sweep(harness.ports).repaired == 2
    harness.to_end(run)
    assert (run.state, run.output) == (RunState.COMPLETED, [None, "yes", None])


def test_an_expired_wait_fails_its_node_by_default(harness: WorkflowHarness) -> None:
    run = harness.start({"nodes": {"ask": {"signal": {"name": "s", "expires_seconds": 1}}}})
    harness.advance(run)
    Wait.objects.update(due_at=run.created_at)
    due_waits.sweep(harness.ports)
    harness.to_end(run)
    assert (run.state, run.error_node) == (RunState.FAILED, "ask")


def test_an_expired_wait_takes_no_signal(harness: WorkflowHarness) -> None:
    run = harness.start({"nodes": {"ask": {"signal": {"name": "s", "expires_seconds": 60}}}})
    harness.advance(run)
    Wait.objects.update(due_at=run.created_at)
    assert send_signal(harness.tenant.pk, "s", 1, ports=harness.ports).taken == 0
    Wait.objects.update(due_at=None)
    assert send_signal(harness.tenant.pk, "s", 1, ports=harness.ports).taken == 1


def test_a_timer_ends_when_it_is_due(harness: WorkflowHarness) -> None:
    run = harness.start(
        {"nodes": {"pause": {"timer": {"seconds": 3600}}, "a": {**model(), "needs": ["pause"]}}}
    )
    harness.advance(run)
    assert due_waits.sweep(harness.ports).looked == 0
    Wait.objects.update(due_at=run.created_at)
    due_waits.sweep(harness.ports)
    assert harness.to_end(run).state == RunState.COMPLETED


@pytest.mark.database
def test_a_step_past_the_deadline_starts_nothing_before_the_sweep_has_noted_it(
    harness: WorkflowHarness,
) -> None:
    run = harness.start({"nodes": {"ask": ASK, "a": {**model(), "needs": ["ask"]}}}, deadline_seconds=3600.0)
    harness.advance(run)
    answer_wait(run, "ask", 1, by="ann", ports=harness.ports)
    Run.objects.update(deadline_at=run.created_at)
    harness.to_end(run)
    assert (run.state, run.error_code) == (RunState.FAILED, "deadline_exceeded")
    assert run.cancel_requested_at == run.deadline_at
    assert not Job.objects.exists()


@pytest.mark.database
def test_a_run_past_its_deadline_fails_and_its_nodes_are_cancelled(harness: WorkflowHarness) -> None:
    run = harness.start({"nodes": {"ask": ASK, "a": {**model(), "needs": ["ask"]}}}, deadline_seconds=3600.0)
    harness.advance(run)
    assert cancelling_runs.sweep(harness.ports).looked == 0
    Run.objects.update(deadline_at=run.created_at)
    cancelling_runs.sweep(harness.ports)
    cancelling_runs.sweep(harness.ports)
    run.refresh_from_db()
    assert (run.state, run.error_code) == (RunState.FAILED, "deadline_exceeded")
    assert set(states(run).values()) == {"cancelled"}


MAIL = {"ask": ASK, "mail": model(payload={"echo": {"$ref": "error.code"}})}


def time_out(harness: WorkflowHarness) -> Run:
    """Return a run whose deadline has passed, and whose failure node is queued."""
    run = harness.start({"nodes": MAIL, "on_failure": {"node": "mail"}}, deadline_seconds=3600.0)
    harness.advance(run)
    Run.objects.update(deadline_at=run.created_at)
    for _ in range(3):
        cancelling_runs.sweep(harness.ports)
    assert states(run) == {"ask": "cancelled", "mail": "running"}
    return run


def test_the_failure_node_of_a_run_past_its_deadline_runs_without_one(harness: WorkflowHarness) -> None:
    run = time_out(harness)
    job = Job.objects.get()
    assert (job.payload["echo"], job.deadline_at) == ("deadline_exceeded", None)
    assert job.cancel_requested_at is None
    harness.to_end(run)
    assert (run.state, run.error_code) == (RunState.FAILED, "deadline_exceeded")
    assert states(run)["mail"] == "completed"


def test_the_failure_node_of_a_run_past_its_deadline_can_be_cancelled(harness: WorkflowHarness) -> None:
    run = time_out(harness)
    cancel_run(run.id, ports=harness.ports)
    for _ in range(2):
        cancelling_runs.sweep(harness.ports)
    assert states(run)["mail"] == "cancelled"
    assert (run.state, run.error_code) == (RunState.FAILED, "deadline_exceeded")


def fail_before_deadline(harness: WorkflowHarness) -> Run:
    """Return a run whose question has expired, which its advancer has yet to see."""
    nodes = {**MAIL, "ask": {"human": {"title": "?", "form": {}, "expires_seconds": 1000}}}
    spec = {"nodes": nodes, "on_failure": {"node": "mail"}}
    run = harness.advance(harness.start(spec, deadline_seconds=3600.0))
    Wait.objects.update(due_at=run.created_at)
    due_waits.sweep(harness.ports)
    return run


def test_the_failure_node_of_a_run_that_fails_in_time_has_no_deadline(harness: WorkflowHarness) -> None:
    run = harness.advance(fail_before_deadline(harness))
    job = Job.objects.get()
    assert (job.payload["echo"], job.deadline_at, run.deadline_at) == ("node_failed", None, None)
    harness.to_end(run)
    assert (run.error_code, states(run)["mail"]) == ("node_failed", "completed")


def test_a_deadline_that_passes_beside_the_step_that_sees_a_failure_counts(
    harness: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fail_before_deadline(harness)
    read = reads.runs_to_advance

    def read_and_time_out(run_ids: Any) -> list[Run]:
        found = list(read(run_ids))
        Run.objects.update(deadline_at=run.created_at)
        with monkeypatch.context() as patched:
            patched.setattr(cancelling_runs, "advance_now", lambda *_: None)
            cancelling_runs.sweep(harness.ports)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(reads, "runs_to_advance", read_and_time_out)
        harness.advancer.advance(run.id)
    harness.to_end(run)
    assert (run.state, run.error_code) == (RunState.FAILED, "deadline_exceeded")
    assert Job.objects.get().payload["echo"] == "deadline_exceeded"


def test_the_sweep_repeats_a_cancel_that_a_crash_cut_short(harness: WorkflowHarness) -> None:
    run = harness.start({"nodes": {"a": {**model(), "map": {"count": 4}}}})
    harness.advance(run)
    cancel_run(run.id, ports=harness.ports)
    assert cancelling_runs.sweep(harness.ports).repaired == 4
    cancelling_runs.sweep(harness.ports)
    run.refresh_from_db()
    assert run.state == RunState.CANCELLED
    assert Event.objects.filter(type="cancelled").count() == 4


def test_a_run_in_which_nothing_is_under_way_goes_on_or_fails(harness: WorkflowHarness) -> None:
    harness.keeps_laws = False  # a node's row is deleted by hand
    run = harness.start({"nodes": {"a": model()}})
    harness.advance(run)
    Run.objects.update(created_at=run.created_at - timedelta(minutes=2))
    assert stalled_runs.sweep(harness.ports).looked == 0  # its job runs
    Node.objects.all().delete()  # no such state is reachable
    EndNotice.objects.all().delete()
    assert stalled_runs.sweep(harness.ports).repaired == 1
    run.refresh_from_db()
    assert (run.state, run.error_code) == (RunState.FAILED, "stalled")
    assert "a" in run.error_message


def test_a_run_that_waits_for_a_person_is_not_stalled(harness: WorkflowHarness) -> None:
    run = harness.start({"nodes": {"ask": ASK}})
    harness.advance(run)
    Run.objects.update(created_at=run.created_at - LONG_AGO)
    assert stalled_runs.sweep(harness.ports).looked == 0


@pytest.mark.database
def test_an_old_run_is_deleted_with_its_jobs_and_its_version_stays(harness: WorkflowHarness) -> None:
    run = harness.start({"nodes": {"a": model(), "b": model()}})
    harness.to_end(run)
    assert old_runs.sweep(harness.ports).looked == 0
    Run.objects.update(finished_at=run.created_at - LONG_AGO)
    old_runs.sweep(harness.ports)
    # jobs whose events are not in the rollups yet stay, and so does the run
    assert (Run.objects.count(), Job.objects.count()) == (1, 2)
    Event.objects.all().delete()
    old_runs.sweep(harness.ports)
    assert (Run.objects.count(), Job.objects.count(), Version.objects.count()) == (0, 0, 1)


def test_an_old_run_stays_while_one_of_its_later_jobs_may_not_go(harness: WorkflowHarness) -> None:
    run = harness.start({"nodes": {"a": model(), "b": model()}})
    harness.to_end(run)
    Run.objects.update(finished_at=run.created_at - LONG_AGO)
    first = Job.objects.order_by("id").first()
    Event.objects.filter(job=first).delete()  # the rollups have all of the first job
    old_runs.sweep(harness.ports, batch=1)
    assert (Run.objects.count(), Job.objects.count()) == (1, 2)
