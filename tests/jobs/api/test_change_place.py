"""Change of priority and "run next", over HTTP."""

from __future__ import annotations

import pytest

from gpus.models import AuditEntry
from jobs.models import Job
from tests.support.api_harness import Account, ApiHarness
from tests.support.api_jobs import make_job
from tests.support.problems import problem


def url(job: Job, what: str) -> str:
    return f"/api/v1/admin/jobs/{job.id}/{what}"


def test_a_waiting_jobs_priority_is_changed(acme: Account, operator: Account, api: ApiHarness) -> None:
    job = make_job(acme.tenant, "queued")
    api.leases.push(job.pool, [job.ticket])
    answer = operator.client.post(url(job, "priority"), {"priority": 2}, format="json")
    assert (answer.status_code, answer.json()["priority"]) == (200, 2)
    assert [ticket.priority for ticket in api.leases.line] == [2]
    assert AuditEntry.objects.get().actor.startswith("key:")


@pytest.mark.database
def test_a_waiting_job_runs_next(acme: Account, operator: Account, api: ApiHarness) -> None:
    first, job = make_job(acme.tenant, "queued"), make_job(acme.tenant, "queued")
    answer = operator.client.post(url(job, "run-next"))
    assert (answer.status_code, answer.json()["priority"]) == (200, 1)
    assert Job.objects.get(id=job.id).place_us < first.place_us


@pytest.mark.parametrize("what", ["priority", "run-next"])
def test_a_job_that_does_not_wait_cannot_be_moved(acme: Account, operator: Account, what: str) -> None:
    for state in ("failed", "completed"):
        job = make_job(acme.tenant, state)
        answer = operator.client.post(url(job, what), {"priority": 2}, format="json")
        problem(answer, 409, "not_waiting")


def test_without_redis_the_error_says_so(acme: Account, operator: Account, api: ApiHarness) -> None:
    job = make_job(acme.tenant, "queued")
    api.leases.away = True
    answer = operator.client.post(url(job, "priority"), {"priority": 2}, format="json")
    problem(answer, 503, "leasing_unavailable")
    assert answer["Retry-After"]
    assert Job.objects.get(id=job.id).priority == 5


@pytest.mark.parametrize(
    ("body", "pointer"),
    [({}, "/priority"), ({"priority": 0}, "/priority"), ({"priority": True}, "/priority")],
)
def test_a_wrong_priority_is_refused(
    acme: Account, operator: Account, body: dict[str, object], pointer: str
) -> None:
    job = make_job(acme.tenant, "queued")
    answer = operator.client.post(url(job, "priority"), body, format="json")
    problem(answer, 422, "validation_failed", "/priority")


def test_an_operators_cancel_is_recorded_and_a_clients_is_not(acme: Account, operator: Account) -> None:
    mine, theirs = make_job(acme.tenant, "queued"), make_job(acme.tenant, "queued")
    acme.client.post(f"/api/v1/queue/jobs/{mine.id}/cancel")
    operator.client.post(f"/api/v1/queue/jobs/{theirs.id}/cancel")
    assert AuditEntry.objects.get().target == f"job:{theirs.id}"
