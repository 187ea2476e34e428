"""Lists by time read a range of ids, not the whole table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from foundation.ids import new_id
from jobs.domain.access import Principal
from jobs.models import Job, Tenant
from jobs.reports.jobs import JobFilter, created_between, list_jobs

pytestmark = pytest.mark.django_db

START = datetime(2030, 1, 1, tzinfo=UTC)
DAYS = 40


@pytest.fixture
def jobs() -> list[Job]:
    """One job per day; the clock that made the ids is a minute behind."""
    tenant = Tenant.objects.create(name="t")
    made = []
    for day in range(DAYS):
        at = START + timedelta(days=day)
        row = Job(
            id=new_id(at.timestamp() - 60),
            tenant=tenant,
            model="m",
            pool="m",
            payload={},
            place_us=day,
            created_at=at,
            state="completed",
            finished_at=at,
        )
        made.append(row)
    return Job.objects.bulk_create(made)


@pytest.mark.parametrize(
    ("after", "before", "found"),
    [(None, 3, [2, 1, 0]), (37, None, [39, 38, 37]), (5, 7, [6, 5]), (None, 0, []), (DAYS, None, [])],
)
def test_lists_by_time_are_exact(
    jobs: list[Job], after: int | None, before: int | None, found: list[int]
) -> None:
    bounds = [None if day is None else START + timedelta(days=day) for day in (after, before)]
    rows = list_jobs(Principal(None, True, "boss"), created_after=bounds[0], created_before=bounds[1])
    assert [row.place_us for row in rows] == found
    chosen = JobFilter(created_after=bounds[0], created_before=bounds[1]).rows().order_by("-id")
    assert [row.place_us for row in chosen] == found


@pytest.mark.database
@pytest.mark.parametrize("bounds", [(START, None), (None, START), (START, START)])
def test_lists_by_time_are_read_by_id(jobs: list[Job], bounds: tuple[Any, Any]) -> None:
    rows = Job.objects.filter(created_between(*bounds)).order_by("-id")[:50]
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL enable_seqscan = off")
    plan = rows.explain()
    assert "SCAN jobs_job" not in plan, plan
    assert "Index Cond: " in plan if connection.vendor == "postgresql" else "(id" in plan, plan


def test_a_time_before_the_epoch_has_no_lower_bound(jobs: list[Job]) -> None:
    assert Job.objects.filter(created_between(datetime(1970, 1, 1, tzinfo=UTC), None)).count() == DAYS
