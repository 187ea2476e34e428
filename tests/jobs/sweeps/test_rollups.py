"""The sweep `rollups`: each end counts once despite concurrent sweeps and crashes; old spans are deleted."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction

from jobs.models import Event, Rollup, SweepRun
from jobs.reports import counters
from jobs.reports import rollups as reading
from jobs.reports.rollups import (
    CURSOR,
    DAY,
    EVER,
    HOUR,
    KEPT_SECONDS,
    MINUTE,
    TEN_MINUTES,
    Key,
    Sums,
    day_of,
    sum_up,
)
from jobs.sweeps import base, rollups
from jobs.sweeps.rollups import EventHorizon, RollupsSweep
from tests.support.factories import make_job
from tests.support.fakes import START, ManualClock, make_ports
from tests.support.job_lives import Lives
from tests.support.rollups import AtOnce, sweep
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db


def stored(span: int = MINUTE) -> dict[Key, Sums]:
    return {
        (row.at, row.model, row.tenant_id): Sums(
            row.completed, row.failed, row.cancelled, pytest.approx(row.gpu_seconds), row.waits, row.runs
        )
        for row in Rollup.objects.filter(span_seconds=span)
    }


def test_rollups_equal_sums_computed_by_brute_force() -> None:
    lives = Lives()
    lives.play(15)
    first = len(lives.closed)
    assert sweep(batch=13) == first
    lives.play(15)  # many in minutes that already have a row
    assert sweep(batch=13) == len(lives.closed) - first
    assert stored() == sum_up(lives.closed)
    assert sweep() == 0
    assert stored() == sum_up(lives.closed)
    assert stored(EVER) == sum_up(lives.closed, EVER)
    result = {(model, code): number for model, code, number in counters.read(counters.Name.ATTEMPT_ENDS)}
    assert result == Counter((one.model, f"{one.attempt}/{one.then}") for one in lives.closed if one.attempt)


@pytest.mark.database
def test_of_two_concurrent_sweeps_one_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lives = Lives()
    lives.play(10)
    others: list[Callable[[], int]] = [sweep]

    def meanwhile(*args: int) -> object:
        found = reading.ended_between(*args)
        if others:
            others.pop()()  # between its read and its commit another sweep sums up everything
        return found

    monkeypatch.setattr(rollups, "ended_between", meanwhile)
    assert sweep() == 0
    assert others == []
    assert stored() == sum_up(lives.closed)


def test_a_crash_before_the_commit_leaves_no_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    lives = Lives()
    lives.play(10)
    add = rollups._add

    def die(span: int, sums: dict[Key, Sums]) -> None:
        add(span, sums)
        raise RuntimeError("killed")

    monkeypatch.setattr(rollups, "_add", die)
    with pytest.raises(RuntimeError):
        sweep()
    assert stored() == {}
    monkeypatch.setattr(rollups, "_add", add)
    assert sweep() == len(lives.closed)
    assert stored() == sum_up(lives.closed)


def test_each_end_is_in_every_span_and_narrow_spans_are_deleted_sooner() -> None:
    lives = Lives()
    lives.play(40, minutes=40)
    sweep()
    assert {span: stored(span) for span in KEPT_SECONDS} == {
        span: sum_up(lives.closed, span) for span in KEPT_SECONDS
    }
    edge = START + timedelta(minutes=20)
    sweep(edge + timedelta(seconds=KEPT_SECONDS[MINUTE]))
    assert stored(MINUTE) == sum_up([closing for closing in lives.closed if closing.at >= edge])
    assert stored(TEN_MINUTES) == sum_up(lives.closed, TEN_MINUTES)
    sweep(START + timedelta(seconds=KEPT_SECONDS[TEN_MINUTES], hours=3))
    assert (stored(MINUTE), stored(TEN_MINUTES)) == ({}, {})
    assert stored(HOUR) == sum_up(lives.closed, HOUR)
    sweep(day_of(START) + timedelta(seconds=KEPT_SECONDS[HOUR], hours=3))
    assert stored(HOUR) == sum_up(lives.closed, HOUR), "a day is folded whole"
    sweep(day_of(START) + timedelta(seconds=KEPT_SECONDS[HOUR], days=1))
    assert set(Rollup.objects.values_list("span_seconds", flat=True)) == {EVER, DAY}
    assert stored(DAY) == sum_up(lives.closed, DAY)


def test_old_ends_are_counted_in_the_spans_that_are_still_kept() -> None:
    """An upgraded installation has a long event log and no rollups."""
    lives = Lives()
    lives.play(10)
    sweep(START + timedelta(seconds=KEPT_SECONDS[TEN_MINUTES], hours=3))
    assert (stored(MINUTE), stored(TEN_MINUTES)) == ({}, {})
    assert stored(HOUR) == sum_up(lives.closed, HOUR)


def test_the_cursor_row_is_not_reported_as_a_sweep() -> None:
    sweep()
    assert SweepRun.objects.filter(name=CURSOR).exists()
    assert CURSOR not in base.sweep_ages(datetime.now(UTC))


def test_an_idle_run_costs_few_queries(django_assert_max_num_queries: Callable[..., object]) -> None:
    Lives().play(3)
    sweeper, ports = RollupsSweep(AtOnce()), make_ports(clock=ManualClock(START))
    sweeper(ports)
    with django_assert_max_num_queries(6):  # type: ignore[attr-defined]
        sweeper(ports)


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_an_event_id_is_final_once_no_lower_one_can_be_committed() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite writes one transaction at a time")
    decided = EventHorizon()
    make_job()
    first = Event.objects.latest("id").id
    # transactions of the server's other databases count, too, until they end
    wait_for(lambda: decided.advance() == first, what="the first number is decided")
    written, go_on = threading.Event(), threading.Event()

    def write_slowly() -> None:
        try:
            with transaction.atomic():
                make_job()
                written.set()
                go_on.wait(30)
        finally:
            connection.close()

    slow = threading.Thread(target=write_slowly)
    slow.start()
    assert written.wait(30)
    make_job()  # a higher number, committed first
    highest = Event.objects.latest("id").id
    assert highest == first + 2
    assert [decided.advance() for _ in range(3)] == [first] * 3
    go_on.set()
    slow.join()
    wait_for(lambda: decided.advance() == highest, what="the highest number is decided")
