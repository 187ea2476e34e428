"""Limits on a tenant's schedules, backfills, workflows, runs, waits are exact under concurrent requests,
on every database."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction

from foundation.http_api.problems import Problem
from jobs.domain.errors import Refused
from tests.support.schedules import Stage
from workflows.execution.advancer import Advancer
from workflows.models import Node, Run, Wait, Workflow
from workflows.operations.definitions import put_definition
from workflows.operations.restart import restart_run
from workflows.operations.start import insert_run, make_run, start_run
from workflows.schedules.models import Firing, Schedule
from workflows.schedules.operations.backfill import backfill
from workflows.schedules.operations.read import read_schedule
from workflows.schedules.operations.store import create_schedule, delete_schedule
from workflows.schedules.operations.trigger import trigger

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]
THREADS = 6
FILM: dict[str, Any] = {"nodes": {"a": {"model": "zimg", "payload": {}}}}


def at_once(act: Callable[[int, Callable[[], object]], object]) -> Counter[str]:
    """Return the outcomes of concurrent calls. act: called with a number, and a function that waits until all
    have come as far."""
    together = threading.Barrier(THREADS)

    def run(number: int) -> str:
        try:
            act(number, lambda: together.wait(30))
            return "done"
        except (Refused, Problem) as refused:
            return refused.code
        finally:
            connections.close_all()

    with ThreadPoolExecutor(THREADS) as pool:
        return Counter(pool.map(run, range(THREADS)))


def limit(settings: Any, **limits: int) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, **limits)


def test_of_concurrent_schedules_one_is_created(stage: Stage, settings: Any) -> None:
    limit(settings, schedules=1)

    def create(number: int, wait: Callable[[], object]) -> None:
        row = read_schedule(stage.tenant.pk, f"s{number}", stage.body(), ports=stage.ports)
        wait()
        create_schedule(row)

    assert at_once(create) == {"done": 1, "too_many_schedules": THREADS - 1}
    assert Schedule.objects.count() == 1


def test_of_concurrent_backfills_of_two_schedules_as_many_wait_as_may(stage: Stage, settings: Any) -> None:
    limit(settings, schedule_backfills=4)
    schedules = [stage.put(f"s{number}", cron="0 * * * *") for number in range(THREADS)]
    end = stage.clock.now()

    def begin_backfill(number: int, wait: Callable[[], object]) -> None:
        wait()
        begin = end - timedelta(hours=2)  # three due times
        backfill(schedules[number], begin, end, by="x", ports=stage.ports)

    assert at_once(begin_backfill) == {"done": 1, "too_many_backfilled": THREADS - 1}
    assert Firing.objects.count() == 3


def test_a_trigger_during_a_delete_finds_no_schedule(stage: Stage) -> None:
    schedule = stage.put()
    outcomes: list[str] = []

    def trigger_late() -> None:
        try:
            trigger(schedule, by="x", ports=stage.ports)
        except Refused as refused:
            outcomes.append(refused.code)
        finally:
            connections.close_all()

    late = threading.Thread(target=trigger_late)

    def before_the_schedule_goes(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith('DELETE FROM "schedules_schedule"') and late.ident is None:
            late.start()
            late.join(1)  # it waits for the lock, or is done
        return execute(sql, params, many, context)

    with connection.execute_wrapper(before_the_schedule_goes):
        delete_schedule(schedule)
    late.join(30)
    assert outcomes == ["unknown_schedule"]
    assert not Schedule.objects.exists()
    assert not Firing.objects.exists()


def test_of_concurrent_workflows_one_is_stored(stage: Stage, settings: Any) -> None:
    limit(settings, workflow_definitions=1)

    def put(number: int, wait: Callable[[], object]) -> None:
        wait()
        put_definition(stage.tenant.pk, f"w{number}", FILM, ports=stage.ports)

    assert at_once(put) == {"done": 1, "too_many_workflows": THREADS - 1}
    assert Workflow.objects.count() == 1


def test_of_concurrent_runs_one_is_started(stage: Stage, settings: Any) -> None:
    limit(settings, workflow_runs=1)
    put_definition(stage.tenant.pk, "film", FILM, ports=stage.ports)

    def start(number: int, wait: Callable[[], object]) -> None:
        run = make_run(stage.tenant.pk, "film", None, ports=stage.ports)
        wait()  # none has found the tenant full
        with transaction.atomic():
            insert_run(run, stage.ports)

    assert at_once(start) == {"done": 1, "too_many_runs": THREADS - 1}
    assert Run.objects.count() == 1


def advance_at_once(run_ids: Sequence[str], stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Advance these runs; each thread has decided its step before one writes."""
    write, have_met = Advancer._write, set[int]()
    together = threading.Barrier(THREADS)

    def meet(self: Advancer, steps: Any) -> None:
        if threading.get_ident() not in have_met:
            have_met.add(threading.get_ident())
            together.wait(30)
        write(self, steps)

    monkeypatch.setattr(Advancer, "_write", meet)

    def advance(number: int, wait: Callable[[], object]) -> None:
        advancer = Advancer(stage.ports)
        wait()
        while advancer.advance(run_ids[number]):
            pass

    assert at_once(advance) == {"done": THREADS}


def started(name: str, definition: Any, stage: Stage) -> list[str]:
    put_definition(stage.tenant.pk, name, definition, ports=stage.ports)
    runs = [start_run(stage.tenant.pk, name, None, ports=stage.ports) for _ in range(THREADS)]
    return [one.run.id for one in runs]


@pytest.mark.parametrize("limited", ["workflow_waits", "workflow_sub_runs"])
@pytest.mark.parametrize("together", [False, True])
def test_of_concurrent_steps_as_many_open_waits_and_sub_runs_as_may_begin(
    stage: Stage, settings: Any, monkeypatch: pytest.MonkeyPatch, limited: str, together: bool
) -> None:
    """together: one transaction advances all these runs."""
    limit(settings, **{limited: 2})
    put_definition(stage.tenant.pk, "film", FILM, ports=stage.ports)
    ask = {"human": {"title": "?", "form": {}}}
    node = ask if limited == "workflow_waits" else {"workflow": "film"}
    runs = started("w", {"nodes": {"a": node}}, stage)
    if together:
        Advancer(stage.ports).advance_together(runs)
    else:
        advance_at_once(runs, stage, monkeypatch)
    code = limited.replace("workflow_", "too_many_").replace("sub_", "")
    nodes = Node.objects.filter(run__in=runs)
    assert Counter(nodes.values_list("code", flat=True)) == {"": 2, code: THREADS - 2}
    assert Wait.objects.count() + Run.objects.filter(depth=1).count() == 2


def test_steps_with_waits_and_sub_runs_of_one_tenant_do_not_deadlock(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_definition(stage.tenant.pk, "film", FILM, ports=stage.ports)
    nodes = {"ask": {"human": {"title": "?", "form": {}}}, "sub": {"workflow": "film"}}
    runs = started("w", {"nodes": nodes}, stage)
    advance_at_once(runs, stage, monkeypatch)
    assert Node.objects.filter(run__in=runs, state="running").count() == 2 * THREADS


def test_restarts_count_for_the_limit_of_runs(stage: Stage, settings: Any) -> None:
    limit(settings, workflow_runs=1)
    put_definition(stage.tenant.pk, "film", FILM, ports=stage.ports)
    ended = start_run(stage.tenant.pk, "film", None, ports=stage.ports).run
    Run.objects.update(
        state="cancelled",
        finished_at=stage.clock.now(),
        node_states=dict.fromkeys(ended.node_states, "cancelled"),
    )
    start_run(stage.tenant.pk, "film", None, ports=stage.ports)
    with pytest.raises(Refused) as refused:
        restart_run(ended.id, ports=stage.ports)
    assert refused.value.code == "too_many_runs"


def ended_sub_runs(stage: Stage) -> list[str]:
    """Return sub-runs that have ended, cancelled."""
    put_definition(stage.tenant.pk, "film", FILM, ports=stage.ports)
    Advancer(stage.ports).advance_together(started("w", {"nodes": {"sub": {"workflow": "film"}}}, stage))
    subs = Run.objects.filter(depth=1)
    subs.update(state="cancelled", finished_at=stage.clock.now(), node_states={"a": "cancelled"})
    return list(subs.values_list("id", flat=True))


def test_of_concurrent_restarts_of_sub_runs_one_begins(stage: Stage, settings: Any) -> None:
    subs = ended_sub_runs(stage)
    limit(settings, workflow_sub_runs=1)

    def restart(number: int, wait: Callable[[], object]) -> None:
        wait()
        restart_run(subs[number], ports=stage.ports)

    assert at_once(restart) == {"done": 1, "too_many_runs": THREADS - 1}
    assert Run.objects.filter(depth=1, state="running").count() == 1


def test_restarted_sub_runs_do_not_count_for_the_limit_of_runs(stage: Stage, settings: Any) -> None:
    subs = ended_sub_runs(stage)
    limit(settings, workflow_runs=1, workflow_sub_runs=1)
    restart_run(subs[0], ports=stage.ports)
    with pytest.raises(Refused, match="may have 1 unfinished sub-runs") as refused:
        restart_run(subs[1], ports=stage.ports)
    assert refused.value.code == "too_many_runs"
