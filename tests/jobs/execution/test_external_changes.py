"""A worker reads the external changes of all its runs in one statement."""

from __future__ import annotations

from datetime import UTC, datetime
from unittest.mock import Mock

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from foundation.ids import new_id
from jobs.domain.states import AttemptState
from jobs.execution.external_changes import Changes, changes_for
from jobs.models import Attempt, Job, PushedResult
from tests.support.factories import make_job, make_model, make_running, make_server

pytestmark = pytest.mark.django_db


def test_each_run_gets_the_changes_of_its_own_job_attempt_and_server() -> None:
    model = make_model("m")
    for name, desired in (("gpu-1", "on"), ("gpu-2", "off"), ("gpu-3", "off")):
        make_server(name, model=model, desired=desired)
    jobs = [make_job(model=model) for _ in range(3)]
    runs = [
        Mock(job_id=job.id, attempt_id=new_id(), server=server)
        for job, server in zip(jobs, ("gpu-1", "gpu-1", "gpu-2"), strict=True)
    ]
    assert changes_for(runs).cancelled == frozenset()
    now = datetime.now(UTC)
    Job.objects.filter(id__in=[jobs[1].id, make_job(model=model).id]).update(cancel_requested_at=now)
    runs[1].attempt_id = make_running(jobs[1], slot="gpu-1/1")
    runs[0].attempt_id = make_running(jobs[0])
    Attempt.objects.filter(id=runs[0].attempt_id).update(state=AttemptState.LOST)
    for attempt_id, job in ((runs[2].attempt_id, jobs[2]), (new_id(), jobs[0])):
        PushedResult.objects.create(attempt_id=attempt_id, job_id=job.id, body={}, received_at=now)

    with CaptureQueriesContext(connection) as asked:
        changed = changes_for(runs)
    assert changed == Changes(
        frozenset({jobs[1].id}),
        frozenset({runs[2].attempt_id}),
        frozenset({"gpu-2"}),
        frozenset({runs[0].attempt_id}),
    ), "of nothing that is not in hand"
    assert len(asked) == 1


def test_a_worker_without_runs_sends_no_query() -> None:
    with CaptureQueriesContext(connection) as asked:
        assert changes_for([]) == Changes(frozenset(), frozenset(), frozenset(), frozenset())
    assert len(asked) == 0
