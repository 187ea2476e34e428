"""The ends in the event log equal those of the generated jobs."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.models import Event, Job
from jobs.reports.rollups import ended_between
from tests.support.job_lives import Lives

pytestmark = pytest.mark.django_db


def test_every_end_is_found_once_whatever_the_page_size() -> None:
    lives = Lives()
    lives.play(40)
    last = Event.objects.order_by("-id")[0].id
    assert {closing.outcome for closing in lives.closed} == {None, "completed", "failed", "cancelled"}
    assert Job.objects.filter(round__gt=1).exists()
    found, after = [], 0
    while after < last:
        some, after = ended_between(after, last, 7)
        found += some
    assert found == lives.closed
    assert ended_between(0, last, 1000) == (lives.closed, last)


def test_reading_ends_costs_four_queries_and_stops_at_the_limit() -> None:
    Lives().play(20)
    with CaptureQueriesContext(connection) as queries:
        found, last = ended_between(0, 50, 1000)
    assert (len(queries) <= 4, last) == (True, 50)
    assert (
        len(found)
        == Event.objects.filter(
            id__lte=50, type__in=["completed", "failed", "cancelled", "retrying", "requeued"]
        ).count()
    )


def test_a_job_deleted_meanwhile_is_left_out() -> None:
    lives = Lives()
    lives.play(5)
    last = Event.objects.order_by("-id")[0].id
    gone = Job.objects.order_by("id")[0]
    Job.objects.filter(id=gone.id).delete()
    assert len(ended_between(0, last, 1000)[0]) < len(lives.closed)
