"""Groups of dead letters by kind of failure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from django.apps import apps
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobs import transitions
from jobs.domain.failure_fingerprints import fingerprint_of
from jobs.domain.states import JobState
from jobs.models import Job
from jobs.reports.failures import dead_letter_groups
from jobs.reports.jobs import JobFilter
from tests.support.factories import make_job, make_tenant
from tests.support.fakes import START

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def make_failed(
    message: str = "Waited 1 s", code: str = "timeout", *, after: float = 0.0, **values: Any
) -> Job:
    job = make_job(**values)
    with transaction.atomic():
        ended = transitions.end_waiting(
            job.id, JobState.FAILED, START + timedelta(seconds=after), code=code, message=message
        )
    assert ended.job is not None
    return ended.job


def test_a_failed_job_has_its_fingerprint_until_it_is_retried():
    job = make_failed("Waited 600 s")
    assert Job.objects.get(id=job.id).error_fingerprint == fingerprint_of("timeout", "Waited 600 s")
    with transaction.atomic():
        transitions.requeue_failed(job.id, START)
    assert Job.objects.get(id=job.id).error_fingerprint == ""


def test_the_largest_group_comes_first_with_its_newest_message():
    make_failed("CUDA error", "gpu_fault", after=9)
    make_failed("Waited 1 s", after=1)
    make_failed("Waited 2 s", after=5, model="flux")
    newest = make_failed("Waited 3 s", after=7)
    one, two = dead_letter_groups()
    assert (one.error_code, one.message, one.job_id, one.count) == ("timeout", "Waited 3 s", newest.id, 3)
    assert one.models == {"flux": 1, "zimg": 2}
    assert (one.first_at, one.last_at) == (START + timedelta(seconds=1), START + timedelta(seconds=7))
    assert (two.error_code, two.count, two.models) == ("gpu_fault", 1, {"zimg": 1})
    assert [group.count for group in dead_letter_groups(at_most=1)] == [3]


def test_only_dead_letters_that_match_are_grouped():
    make_job()
    dismissed = make_failed("gone")
    transitions.dismiss([dismissed.id], START)
    assert dead_letter_groups() == []
    make_failed(tenant=make_tenant("other"))
    make_failed()
    assert [group.count for group in dead_letter_groups(JobFilter(tenant="other"))] == [1]
    assert dead_letter_groups(JobFilter(model="flux")) == []


def test_groups_cost_two_queries():
    make_failed("one")
    make_failed("two")
    with CaptureQueriesContext(connection) as queries:
        assert len(dead_letter_groups()) == 2
    assert len(queries) == 2


def test_the_migration_gives_old_dead_letters_their_fingerprints(monkeypatch):
    migration = import_module("jobs.migrations.0004_error_fingerprint")
    monkeypatch.setattr(migration, "PAGE", 2)
    jobs = [make_failed(f"Waited {number} s") for number in range(5)]
    waiting = make_job()
    Job.objects.update(error_fingerprint="")
    fill: Callable[..., None] = migration.fill
    fill(apps, SimpleNamespace(connection=connection))
    expected = fingerprint_of("timeout", "Waited # s")
    assert {Job.objects.get(id=job.id).error_fingerprint for job in jobs} == {expected}
    assert Job.objects.get(id=waiting.id).error_fingerprint == ""
