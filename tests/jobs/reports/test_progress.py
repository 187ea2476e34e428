"""Progress and partial output of running jobs, read from their events."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from gpus.errors import RunFailed
from gpus.protocol import LeaseRef
from jobs import transitions
from jobs.domain.retry import Ending, RetryPolicy
from jobs.models import Job
from jobs.reports.progress import (
    SHOWN_PROGRESS,
    PartialOutput,
    Reported,
    partial_output_of,
    progress_of,
    read_progress,
)
from tests.support.factories import make_job, make_running
from tests.support.fakes import START

pytestmark = pytest.mark.django_db


def running(slot: str = "gpu-1/0") -> Job:
    job = make_job()
    make_running(job, slot=slot)
    return Job.objects.get(id=job.id)


def report(job: Job, kind: str, data: Mapping[str, Any], *, after: float = 1.0) -> None:
    """Write an event of the job's live attempt, as its worker does."""
    assert job.live_attempt is not None
    ref = LeaseRef(slot="gpu-1/0", job_id=job.id, attempt_id=job.live_attempt, epoch=1)
    assert transitions.note_progress(ref, kind, data, START + timedelta(seconds=after))


def ended(job: Job, error: RunFailed | None = None) -> Job:
    assert job.live_attempt is not None
    ending, at = Ending(error=error), START + timedelta(seconds=9)
    end = transitions.End(job.id, job.live_attempt, 1, "gpu-1/0", ending, RetryPolicy(), at)
    assert transitions.end_attempt(end).won
    return Job.objects.get(id=job.id)


def again(job: Job) -> Job:
    """Start the next attempt of a job that failed."""
    transitions.queue_retry(job.id, START + timedelta(seconds=10))
    make_running(job, at=START + timedelta(seconds=11))
    return Job.objects.get(id=job.id)


def test_the_latest_progress_of_a_running_attempt_counts() -> None:
    job = running()
    assert progress_of(job) is None
    del job.shown_progress  # type: ignore[attr-defined]
    report(job, "progress", {"part": 1, "progress": 0.25})
    report(job, "progress", {"part": 2, "progress": 0.5, "text": "step 8"}, after=2)
    report(job, "partial", {"part": 3, "output": ["a"]}, after=3)
    assert progress_of(job) == Reported(0.5, "step 8", START + timedelta(seconds=2))


@pytest.mark.database
def test_a_retry_and_an_end_show_no_progress_of_the_attempt_before() -> None:
    job = running()
    report(job, "progress", {"part": 1, "progress": 0.9})
    report(job, "partial", {"part": 2, "output": ["old"]})
    job = ended(job, RunFailed("boom"))
    assert (progress_of(job), partial_output_of(job)) == (None, None), "retrying"
    job = again(job)
    assert (progress_of(job), partial_output_of(job)) == (None, None), "the next attempt has reported nothing"
    report(job, "partial", {"part": 1, "output": ["new"]})
    report(job, "progress", {"part": 2, "progress": 0.1})
    job = Job.objects.get(id=job.id)
    assert partial_output_of(job) == PartialOutput(["new"], 0)
    found = progress_of(job)
    assert found is not None
    assert found.value == 0.1
    job = ended(job)
    assert (job.state, progress_of(job), partial_output_of(job)) == ("completed", None, None)


def test_the_pieces_of_output_are_joined_over_all_events() -> None:
    job = running()
    for part, pieces in enumerate([[{"reasoning": "h"}], [{"reasoning": "m"}, "So "], ["it"], [[1], " is"]]):
        report(job, "partial", {"part": part, "output": pieces, "left_out": part})
    assert partial_output_of(job) == PartialOutput([{"reasoning": "hm"}, "So it", [1], " is"], 6)


def test_a_page_of_jobs_is_read_with_one_query() -> None:
    jobs = [running(f"gpu-1/{slot}") for slot in range(5)] + [make_job()]
    for number, job in enumerate(jobs[:4]):
        report(job, "progress", {"part": 1, "progress": 0.0})
        report(job, "progress", {"part": 2, "progress": number / 10}, after=2)
    with CaptureQueriesContext(connection) as asked:
        read_progress(jobs)
        found = [progress_of(job) for job in jobs]
    assert len(asked) == 1
    assert [one.value if one else None for one in found] == [0.0, 0.1, 0.2, 0.3, None, None]
    waiting = [Job.objects.get(id=jobs[5].id)]
    with CaptureQueriesContext(connection) as asked:
        read_progress(waiting)
    assert len(asked) == 0
    assert getattr(waiting[0], SHOWN_PROGRESS) is None


@pytest.mark.database
def test_the_query_uses_the_index_of_progress() -> None:
    job, asked = running(), []

    def keep(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        asked.append((sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(keep):
        progress_of(job)
    if connection.vendor != "sqlite":  # PostgreSQL reads a table of a few rows as a whole
        return
    ((sql, params),) = asked
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {sql}", params)
        plan = "\n".join(row[3] for row in cursor.fetchall())
    assert "INDEX event_progress_idx (job_id=?)" in plan, plan
    assert "SCAN" not in plan, plan
