"""Retention deletes only what has ended long ago, and all of a run or nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from jobs.models import Callback, Job
from jobs.sweeps import retention
from jobs.sweeps.base import SweepCount, sweep_rows
from tests.workflows.in_memory import ASK, Desk, desk
from workflows.domain.advance import RunEnd
from workflows.domain.errors import RunErased
from workflows.domain.states import RunState
from workflows.execution.callbacks import callback_for
from workflows.models import Node, Run, Wait
from workflows.operations.restart import restart_run
from workflows.sweeps import old_runs

__all__ = ["desk"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]
TWO = {"nodes": {"a": {"model": "m"}, "b": {"model": "m"}}}


@pytest.fixture(autouse=True)
def all_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "summed_up_to", lambda: 2**40)


def make_old() -> None:
    Run.objects.exclude(finished_at=None).update(finished_at=timezone.now() - timedelta(days=999))


def completed(desk: Desk, definition: dict[str, Any]) -> Run:
    run = desk.advance(desk.start(definition))
    desk.end_jobs()
    assert desk.advance(run).state == "completed"
    return run


def test_a_run_that_is_restarted_after_the_sweep_has_read_it_stays(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = desk.cancel(desk.advance(desk.start({"nodes": {"ask": ASK}})))
    make_old()

    def restarted(name: str, rows: Sequence[Any], repair: Callable[[Any], bool]) -> SweepCount:
        restart_run(run.id, ports=desk.ports)
        return sweep_rows(name, rows, repair)

    monkeypatch.setattr(old_runs, "sweep_rows", restarted)
    assert old_runs.sweep(desk.ports).looked == 1
    assert desk.advance(run).state == "running"
    assert Wait.objects.filter(answered_at=None).count() == 1


def test_a_sub_run_that_is_restarted_keeps_the_old_run_above_it(desk: Desk) -> None:
    desk.put("sub", {"nodes": {"ask": ASK}})
    run = desk.advance(desk.start({"nodes": {"s": {"workflow": "sub"}}}))
    child = desk.cancel(Run.objects.get(depth=1))
    assert desk.advance(run).state == "failed"
    make_old()
    restart_run(child.id, ports=desk.ports)
    assert desk.advance(child).state == "running"
    assert old_runs.sweep(desk.ports) == SweepCount(looked=1)
    desk.cancel(child)
    assert old_runs.sweep(desk.ports) == SweepCount(looked=1), "it has ended just now"
    make_old()
    assert old_runs.sweep(desk.ports).repaired == 1
    assert not Run.objects.filter(id__in=(run.id, child.id)).exists()
    assert not Node.objects.exists()


def test_an_old_run_keeps_its_jobs_until_its_callback_was_sent(desk: Desk) -> None:
    run = completed(desk, TWO)
    Run.objects.update(callback_url="https://hooks.example.com/")
    run.refresh_from_db()
    message = callback_for(run, RunEnd(RunState.COMPLETED), None, now=timezone.now())
    assert message is not None
    message.save()
    make_old()
    assert old_runs.sweep(desk.ports).repaired == 0
    assert (Run.objects.count(), Job.objects.count()) == (1, 2)
    Callback.objects.update(state="delivered")
    assert old_runs.sweep(desk.ports).repaired == 1
    assert (Run.objects.count(), Job.objects.count(), Callback.objects.count()) == (0, 0, 0)


def test_an_old_run_keeps_all_its_jobs_while_one_may_not_go(desk: Desk) -> None:
    completed(desk, TWO)
    make_old()
    ids = list(Job.objects.order_by("id").values_list("id", flat=True))
    Job.objects.filter(id=ids[-1]).update(state="queued", finished_at=None)  # a dead letter that runs again
    assert old_runs.sweep(desk.ports, batch=1).repaired == 0
    assert (Run.objects.count(), Job.objects.count()) == (1, 2)


def test_a_run_is_not_restarted_between_the_batches_of_its_jobs(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = completed(desk, TWO)
    make_old()

    def dies_after_the_first(ids: list[str]) -> int:
        if Job.objects.count() < 2:
            raise SystemExit
        return retention.purge_jobs(ids)

    with monkeypatch.context() as patch:
        patch.setattr(old_runs, "purge_jobs", dies_after_the_first)
        with pytest.raises(SystemExit):
            old_runs.sweep(desk.ports, batch=1)
    assert (Run.objects.count(), Job.objects.count()) == (1, 1)
    with pytest.raises(RunErased):
        restart_run(run.id, keys=["a"], ports=desk.ports)
    assert old_runs.sweep(desk.ports, batch=1).repaired == 1
    assert (Run.objects.count(), Job.objects.count()) == (0, 0)
