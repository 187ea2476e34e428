"""`max_running` with a real worker: no more of the tenant's jobs at once, and all of them in the end."""

from __future__ import annotations

from itertools import pairwise

import pytest

from jobs.domain.states import JobState
from jobs.models import Attempt, Job, Tenant
from jobs.operations.tenants import change_rules
from tests.support.waiting import wait_for
from tests.support.worker_harness import WorkerHarness, state

pytestmark = pytest.mark.django_db(transaction=True)


def tenant(name: str) -> Tenant:
    return Tenant.objects.create(name=name)


def done(jobs: list[Job]) -> bool:
    return all(state(job) == JobState.COMPLETED for job in jobs)


@pytest.mark.parametrize("harness", [{"slots": 4}], indirect=True)
def test_jobs_of_a_limited_tenant_run_one_after_the_other_beside_all_others(harness: WorkerHarness) -> None:
    limited, other = tenant("limited"), tenant("other")
    change_rules("limited", {"max_running": 1}, by="user:ada", ports=harness.ports)
    few = [harness.submit({"seconds": 0.2}, tenant=limited) for _ in range(4)]
    many = [harness.submit({"seconds": 0.2}, tenant=other) for _ in range(4)]
    worker = harness.worker()
    for _ in range(4):
        harness.work(worker)
    wait_for(lambda: done(many))
    while not done(few):  # a thread hands back when it has worked for long: the wake is the test's
        worker.work("m")
    runs = list(Attempt.objects.filter(job__in=few).order_by("started_at"))
    assert len(runs) == 4
    assert all(before.finished_at <= after.started_at for before, after in pairwise(runs))
    last_of_few = max(run.finished_at for run in runs)
    others = Attempt.objects.filter(job__in=many)
    assert min(run.started_at for run in others) < last_of_few


@pytest.mark.parametrize("harness", [{"slots": 2}], indirect=True)
def test_lifting_a_limit_sends_wakes_for_waiting_jobs(harness: WorkerHarness) -> None:
    limited = tenant("limited")
    change_rules("limited", {"max_running": 1}, by="user:ada", ports=harness.ports)
    jobs = [harness.submit({"seconds": 30.0}, tenant=limited) for _ in range(2)]
    worker = harness.worker()
    harness.work(worker)
    wait_for(lambda: state(jobs[0]) == JobState.RUNNING)
    assert worker.work("m") == []
    done_now = change_rules("limited", {"max_running": None}, by="user:ada", ports=harness.ports)
    assert [(wake.pool, wake.count) for wake in done_now.wakes] == [("m", 1)]
    harness.work(worker)
    wait_for(lambda: state(jobs[1]) == JobState.RUNNING)
