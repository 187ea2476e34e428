"""Charts and percentiles compared with brute force over generated jobs."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from jobs.models import Job, Rollup
from jobs.reports.history import WINDOWS, RecentHistory, Window, history, shares
from jobs.reports.rollups import HOUR, EndedEvent, Sums, sum_up
from tests.support.factories import make_tenant
from tests.support.fakes import START
from tests.support.job_lives import Lives
from tests.support.rollups import sweep

pytestmark = pytest.mark.django_db


@pytest.fixture
def lives() -> Lives:
    lives = Lives()
    lives.play(20, minutes=50)
    return lives


def within(lives: Lives, window: Window, now: datetime, **wanted: object) -> list[EndedEvent]:
    last = sum_up([EndedEvent(now, "m", 1)], window.bucket_seconds)
    end = next(iter(last))[0] + timedelta(seconds=window.bucket_seconds)
    begin = end - timedelta(seconds=window.seconds)
    return [
        one
        for one in lives.closed
        if begin <= one.at < end and all(getattr(one, name) == value for name, value in wanted.items())
    ]


@pytest.mark.parametrize(
    ("name", "later"),
    [("1h", timedelta(minutes=47, seconds=31)), ("24h", timedelta(hours=5)), ("7d", timedelta(days=3))],
)
def test_a_window_shows_what_ended_in_it_bucket_by_bucket(lives: Lives, name: str, later: timedelta) -> None:
    """Also after the minutes were deleted, from wider spans."""
    now, window = START + later, WINDOWS[name]
    sweep(now)
    found = history(window, now)
    for model in ("zimg", "flux"):
        line, ended = found.line(model), within(lives, window, now, model=model)
        assert len(line.buckets) == window.buckets
        assert line.total.gpu_seconds == pytest.approx(sum(one.gpu_seconds for one in ended))
        assert line.per_minute == pytest.approx(
            sum(one.outcome is not None for one in ended) / window.seconds * 60
        )
        expected: dict[datetime, Sums] = {}
        for (at, _, _), sums in sum_up(ended, window.bucket_seconds).items():
            expected.setdefault(at, Sums()).add(sums)
        for place, bucket in enumerate(line.buckets):
            at = found.begin + timedelta(seconds=place * window.bucket_seconds)
            assert bucket.completed == expected.get(at, Sums()).completed
            assert bucket.waits == expected.get(at, Sums()).waits
    every = found.all_models()
    assert every.total.failed == sum(one.outcome == "failed" for one in within(lives, window, now))


def test_percentiles_are_those_of_the_jobs(lives: Lives) -> None:
    now = START + timedelta(hours=2)
    sweep(now)
    rows = Job.objects.filter(round=1, started_at__isnull=False, finished_at__isnull=False)
    assert rows.count() > 10
    waits = sorted(one.wait_seconds for one in lives.closed if one.wait_seconds is not None)
    line = history(WINDOWS["24h"], now).all_models()
    true, found = waits[len(waits) // 2], line.wait(0.5)
    assert found == pytest.approx(true, rel=0.5)
    assert line.run(0.95) >= line.run(0.5) > 0  # type: ignore[operator]
    assert history(WINDOWS["24h"], now).line("nobody").wait(0.5) is None


def test_ends_older_than_the_window_are_left_out(lives: Lives) -> None:
    now = START + timedelta(seconds=HOUR * 30)
    sweep(now)
    assert history(WINDOWS["24h"], now).models == []
    assert history(WINDOWS["7d"], now).models == ["flux", "zimg"]


def test_shares_are_compared_with_the_weights_of_tenants_with_jobs(lives: Lives) -> None:
    now = START + timedelta(hours=1)
    sweep(now)
    heavy, idle = make_tenant("acme"), make_tenant("idle", weight=50.0)
    heavy.weight = 2.0
    heavy.save()
    starved = make_tenant("starved")
    got = history(WINDOWS["24h"], now).gpu_seconds_by_tenant(["zimg", "flux"])
    assert idle.pk not in got
    found = {share.tenant: share for share in shares({**got, starved.pk: 0.0})}
    assert set(found) == {"acme", "globex", "initech", "starved"}
    assert found["acme"].entitled == pytest.approx(2 / 5)
    assert (found["starved"].got, found["starved"].entitled) == (0.0, pytest.approx(1 / 5))
    assert sum(share.got for share in found.values()) == pytest.approx(1.0)
    true = sum(one.gpu_seconds for one in lives.closed if one.tenant_id == heavy.pk)
    assert found["acme"].gpu_seconds == pytest.approx(true)
    assert shares({}) == []


def test_history_is_one_query_without_the_jobs(lives: Lives, django_assert_num_queries) -> None:  # type: ignore[no-untyped-def]
    sweep(START + timedelta(hours=1))
    assert Rollup.objects.exists()
    with django_assert_num_queries(1) as queries:
        history(WINDOWS["7d"], START + timedelta(hours=1))
    assert "jobs_job" not in queries.captured_queries[0]["sql"]


def test_recent_history_is_cached(lives: Lives, django_assert_num_queries) -> None:  # type: ignore[no-untyped-def]
    now = START + timedelta(hours=1)
    sweep(now)
    recent_history = RecentHistory()
    first = recent_history(WINDOWS["24h"], now)
    with django_assert_num_queries(0):
        assert recent_history(WINDOWS["24h"], now + timedelta(seconds=49)) is first
    assert recent_history(WINDOWS["24h"], now + timedelta(seconds=50)) is not first
    assert recent_history(WINDOWS["1h"], now).window.name == "1h"
