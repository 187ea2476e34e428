"""A tenant's usage is the sum of its attempts, whichever rows hold it."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, timedelta
from io import StringIO

import pytest
from django.conf import LazySettings

from jobs.domain.states import JobState
from jobs.models import Attempt, Rollup, TagUsage, Tenant
from jobs.reports.rollups import DAY, HOUR, KEPT_SECONDS, day_of
from jobs.reports.usage import UsageBy, UsageRow, as_csv, total, typical_run_seconds, usage
from jobs.sweeps import rollups
from jobs.sweeps.rollups import RollupsSweep
from jobs.transitions import end_waiting
from tests.support.factories import make_job, make_tenant
from tests.support.fakes import START, ManualClock, make_ports
from tests.support.job_lives import Lives
from tests.support.rollups import AtOnce, sweep

pytestmark = pytest.mark.django_db
FIRST, LAST = START.date() - timedelta(days=1), START.date() + timedelta(days=40)


@pytest.fixture
def lives() -> Lives:
    """Ends on the three days from START's."""
    found = Lives()
    for days in range(3):
        found.play(4, begin=START + timedelta(days=days))
    sweep()
    return found


def gpu_seconds(rows: list[UsageRow]) -> float:
    return sum(row.gpu_seconds for row in rows)


@pytest.mark.parametrize("later_days", [0, 9, 10, 20])
def test_usage_is_what_the_attempts_took_before_and_after_hours_become_days(
    lives: Lives, later_days: int
) -> None:
    sweep(START + timedelta(days=later_days))
    for tenant in Tenant.objects.all():
        took = sum(Attempt.objects.filter(job__tenant=tenant).values_list("gpu_seconds", flat=True))
        ended = Counter(end.outcome for end in lives.closed if end.tenant_id == tenant.pk and end.outcome)
        for by in (UsageBy.DAY, UsageBy.MODEL):
            found = usage(tenant.pk, FIRST, LAST, by)
            assert gpu_seconds(found) == pytest.approx(took)
            whole = total(found)
            assert (whole.completed, whole.failed, whole.cancelled) == (
                ended["completed"], ended["failed"], ended["cancelled"],
            )  # fmt: skip
        assert {row.key for row in usage(tenant.pk, FIRST, LAST, UsageBy.MODEL)} <= {"zimg", "flux"}


def test_a_day_is_that_of_the_ends_in_utc(lives: Lives) -> None:
    tenant = Tenant.objects.get(name="acme")
    by_day: dict[str, float] = {}
    for end in lives.closed:
        if end.tenant_id == tenant.pk:
            key = end.at.date().isoformat()
            by_day[key] = by_day.get(key, 0.0) + end.gpu_seconds
    rows = usage(tenant.pk, FIRST, LAST, UsageBy.DAY)
    assert {row.key: row.gpu_seconds for row in rows} == pytest.approx(by_day)
    assert [row.key for row in rows] == sorted(by_day)
    one = date.fromisoformat(rows[1].key)
    assert [row.key for row in usage(tenant.pk, one, one, UsageBy.DAY)] == [rows[1].key]


@pytest.mark.database
def test_hours_are_folded_once_however_often_the_sweep_runs_or_dies(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = Tenant.objects.get(name="acme")
    before = usage(tenant.pk, FIRST, LAST, UsageBy.MODEL)
    at = START + timedelta(seconds=KEPT_SECONDS[HOUR], days=5)
    add = rollups._add

    def die(*args: object) -> int:
        add(*args)  # type: ignore[arg-type]
        raise RuntimeError("killed")

    monkeypatch.setattr(rollups, "_add", die)
    with pytest.raises(RuntimeError):
        sweep(at)
    monkeypatch.setattr(rollups, "_add", add)
    assert Rollup.objects.filter(span_seconds=DAY).count() == 0
    one = RollupsSweep(AtOnce(), most_folded=2)
    for _ in range(Rollup.objects.filter(span_seconds=HOUR).count()):
        one(make_ports(clock=ManualClock(at)))
        sweep(at)
    assert not Rollup.objects.filter(span_seconds=HOUR, at__lt=day_of(START) + timedelta(days=3)).exists()
    after = usage(tenant.pk, FIRST, LAST, UsageBy.MODEL)
    assert [(row.key, row.completed) for row in after] == [(row.key, row.completed) for row in before]
    assert gpu_seconds(after) == pytest.approx(gpu_seconds(before))


@pytest.mark.database
def test_days_are_deleted_after_their_retention(lives: Lives, settings: LazySettings) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, usage_days=20)
    TagUsage.objects.create(day=START.date(), tenant=Tenant.objects.get(name="acme"), tag="x")
    sweep(START + timedelta(days=20))
    assert Rollup.objects.filter(span_seconds=DAY).exists()
    assert TagUsage.objects.count() == 1
    sweep(START + timedelta(days=30))
    assert not Rollup.objects.filter(span_seconds__in=(HOUR, DAY)).exists()
    assert not TagUsage.objects.exists()


@pytest.fixture
def cancelled() -> Callable[..., None]:
    """``cancelled("a", "b")``: a job with these tags is cancelled at START."""

    def make(*tags: str, at: datetime = START, tenant: str = "acme") -> None:
        job = make_job("zimg", tenant=make_tenant(tenant), at=at, tags=list(tags))
        end_waiting(job.id, JobState.CANCELLED, at, code="c", message="m")

    return make


@pytest.mark.database
def test_a_job_counts_for_each_of_its_tags(cancelled: Callable[..., None]) -> None:
    cancelled("a", "b")
    cancelled("a")
    cancelled()
    sweep()
    cancelled("a", tenant="globex")
    cancelled("b")
    sweep()
    rows = usage(make_tenant("acme").pk, FIRST, LAST, UsageBy.TAG)
    assert [(row.key, row.cancelled) for row in rows] == [("a", 2), ("b", 2)]


@pytest.mark.database
def test_tags_beyond_the_limit_of_a_day_share_a_row(
    cancelled: Callable[..., None], settings: LazySettings
) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, usage_tags=2)
    for number in range(6):
        cancelled(f"t{number}")
    sweep()
    cancelled("t9")
    cancelled("t0")
    cancelled("t9", tenant="globex")
    cancelled("t9", at=START + timedelta(days=1))
    sweep()
    rows = usage(make_tenant("acme").pk, START.date(), START.date(), UsageBy.TAG)
    assert [(row.key, row.cancelled) for row in rows] == [("", 5), ("t0", 2), ("t1", 1)]
    assert [row.key for row in usage(make_tenant("globex").pk, FIRST, LAST, UsageBy.TAG)] == ["t9"]


def test_a_table_holds_no_formula() -> None:
    text = as_csv("tag", [UsageRow('=cmd("x"),1', 1, 2, 3, 0.5), UsageRow("plain", 0, 0, 0, 0.0)])
    assert list(csv.reader(StringIO(text))) == [
        ["tag", "completed", "failed", "cancelled", "gpu_seconds"],
        ['\'=cmd("x"),1', "1", "2", "3", "0.5"],
        ["plain", "0", "0", "0", "0.0"],
    ]


def test_a_semicolon_comes_with_decimal_commas() -> None:
    rows = [UsageRow("a;b", 1, 2, 3, 1234.5)]
    assert as_csv("tag", rows, "semicolon").splitlines()[1] == '"a;b";1;2;3;1234,5'
    assert as_csv("tag", rows, "tab").splitlines()[1] == "a;b\t1\t2\t3\t1234.5"


@pytest.mark.parametrize(
    ("tag", "cell"),
    [
        (" =1+1", "' =1+1"),
        ("＝1+1", "'＝1+1"),
        ("\t=1", "\\t=1"),
        ("a\n=1,2", "a\\n=1,2"),
        ("a\u2028=1", "a\\u2028=1"),
        ("a\x85b", "a\\x85b"),
        ("\x1b[2J", "\\x1b[2J"),
    ],
)
def test_a_tag_forges_neither_formula_nor_line(tag: str, cell: str) -> None:
    lines = as_csv("tag", [UsageRow(tag, 1, 2, 3, 0.5)]).splitlines()
    assert len(lines) == 2, "`usage --csv` prints line by line"
    assert next(csv.reader(lines[1:])) == [cell, "1", "2", "3", "0.5"]


def test_the_typical_run_is_the_median_of_the_tenants_own(lives: Lives) -> None:
    tenant = Tenant.objects.get(name="acme")
    found = typical_run_seconds(tenant.pk)
    assert set(found) == {end.model for end in lives.closed if end.tenant_id == tenant.pk and end.run_seconds}
    assert all(seconds > 0 for seconds in found.values())
    assert typical_run_seconds(make_tenant("new").pk) == {}
