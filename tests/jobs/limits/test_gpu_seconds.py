"""A tenant's GPU-seconds of the day are the same before, while and after they are summed up."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from jobs import transitions
from jobs.domain.retry import Ending, RetryPolicy
from jobs.limits.gpu_seconds import used_seconds
from jobs.reports.rollups import day_of
from tests.support.by_process import run_sweep
from tests.support.factories import make_job, make_running, make_tenant
from tests.support.fakes import START, ManualClock, make_ports
from tests.support.job_lives import Lives

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def sum_up() -> None:
    ports = make_ports(clock=ManualClock(START))
    for _ in range(3):  # on PostgreSQL an event is final at the second run of the sweep
        run_sweep("rollups", ports)


def test_ended_attempts_count_whether_they_are_summed_up_or_not() -> None:
    lives = Lives()
    for _ in range(3):
        lives.play(15)
        for _ in ("before it is summed up", "after"):
            now = START + timedelta(hours=2)
            expected: dict[int, float] = {}
            for one in lives.closed:
                expected[one.tenant_id] = expected.get(one.tenant_id, 0.0) + one.gpu_seconds
            assert used_seconds(expected, now) == pytest.approx(expected)
            sum_up()


def test_an_end_does_not_change_the_used_seconds() -> None:
    tenant = make_tenant()
    job = make_job(tenant=tenant)
    attempt = make_running(job, at=START)
    now = START + timedelta(seconds=60)
    assert used_seconds([tenant.pk], now) == {tenant.pk: 60.0}
    with transaction.atomic():
        end = transitions.End(job.id, attempt, 1, "gpu-1/0", Ending(), RetryPolicy(), now, gpu_seconds=60.0)
        assert transitions.end_attempt(end).won
    assert used_seconds([tenant.pk], now) == {tenant.pk: 60.0}
    sum_up()
    assert used_seconds([tenant.pk], now) == {tenant.pk: 60.0}
    tomorrow = day_of(now) + timedelta(days=1)
    assert used_seconds([tenant.pk], tomorrow) == {tenant.pk: 0.0}


def test_attempts_that_ended_yesterday_do_not_count_today() -> None:
    tenant = make_tenant()
    job = make_job(tenant=tenant)
    attempt = make_running(job, at=START)
    with transaction.atomic():
        end = transitions.End(job.id, attempt, 1, "gpu-1/0", Ending(), RetryPolicy(), START, gpu_seconds=60.0)
        assert transitions.end_attempt(end).won
    assert used_seconds([tenant.pk], day_of(START) + timedelta(days=1, seconds=5)) == {tenant.pk: 0.0}


def test_no_history_is_read_for_running_jobs() -> None:
    """With values that are bound, as SQLite gets them: it decides about a partial index without them."""
    if connection.vendor != "sqlite":
        pytest.skip("the plan of an empty table says nothing elsewhere")
    tenants = [make_tenant(name).pk for name in ("a", "b", "c")]
    make_running(make_job(tenant=make_tenant("a")))
    asked: list[tuple[str, Any]] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        asked.append((sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        used_seconds(tenants, START)
    plans = []
    for sql, params in asked:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}", params)
            plans.append(" / ".join(row[3] for row in cursor.fetchall()))
    assert any("job_unfinished_idx" in plan for plan in plans), plans
    assert not any("SCAN" in plan or "attempt_of_slot_idx" in plan for plan in plans), plans
