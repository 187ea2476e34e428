"""Progress, output so far, timings and payload of a job, and the roles that may read them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from gpus.protocol import LeaseRef, SystemClock
from jobs import transitions
from jobs.domain.access import Scope
from jobs.models import ApiKey, Job
from jobs.operations.tenants import create_key
from tests.support.api_harness import Account, ApiHarness, key_client
from tests.support.factories import make_job, make_running
from tests.support.fakes import START
from tests.support.problems import problem

URL = "/api/v1/queue/jobs"
pytestmark = pytest.mark.django_db


class MinuteLater(SystemClock):
    def now(self) -> datetime:
        return START + timedelta(seconds=60)


def running(account: Account, slot: str = "gpu-1/0", **values: Any) -> Job:
    job = make_job(tenant=account.tenant, **values)
    make_running(job, slot=slot, at=START + timedelta(seconds=2))
    return Job.objects.get(id=job.id)


def report(job: Job, kind: str, data: Mapping[str, Any]) -> None:
    assert job.live_attempt is not None
    ref = LeaseRef(slot="gpu-1/0", job_id=job.id, attempt_id=job.live_attempt, epoch=1)
    assert transitions.note_progress(ref, kind, data, START + timedelta(seconds=9))


def staff(*permissions: str) -> Client:
    user = User.objects.create_user("viewer", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


def test_a_running_job_shows_its_progress_output_and_timings(acme: Account, api: ApiHarness) -> None:
    api.clock = MinuteLater()
    job = running(acme)
    report(job, "progress", {"part": 1, "progress": 0.62, "text": "step 12 of 20"})
    report(job, "partial", {"part": 2, "output": ["So", {"preview": 1}], "left_out": 3})
    body = acme.client.get(f"{URL}/{job.id}").json()
    at = (START + timedelta(seconds=9)).isoformat()
    assert body["progress"] == {"value": 0.62, "text": "step 12 of 20", "at": at}
    assert body["partial_output"] == {"output": ["So", {"preview": 1}], "left_out": 3}
    assert body["timings"] == {
        "waited_seconds": 2.0, "ran_seconds": 58.0, "gpu_seconds": 58.0, "total_seconds": 60.0,
    }  # fmt: skip
    assert "payload" not in body


def test_a_job_that_does_not_run_has_no_progress(acme: Account) -> None:
    waiting = make_job(tenant=acme.tenant)
    body = acme.client.get(f"{URL}/{waiting.id}").json()
    assert (body["progress"], body["partial_output"], body["timings"]["ran_seconds"]) == (None, None, None)


def test_a_list_reads_the_progress_of_all_its_jobs_with_one_query(acme: Account) -> None:
    def asked(jobs: int) -> int:
        while Job.objects.count() < jobs:
            report(running(acme, f"gpu-1/{Job.objects.count()}"), "progress", {"part": 1, "progress": 0.5})
        with CaptureQueriesContext(connection) as queries:
            shown = acme.client.get(URL).json()["results"]
        assert [job["progress"]["value"] for job in shown] == [0.5] * jobs
        assert not [job for job in shown if "partial_output" in job or "timings" in job]
        return len(queries)

    asked(1)  # the first request reads the key
    assert asked(2) == asked(9) == 3


def test_without_view_payload_staff_read_the_number_and_neither_text_nor_output(acme: Account) -> None:
    job = running(acme)
    report(job, "progress", {"part": 1, "progress": 0.62, "text": "hush"})
    report(job, "partial", {"part": 2, "output": ["hush"]})
    viewer = staff("view_job")
    for path in (f"{URL}/{job.id}", URL, f"{URL}/{job.id}/events"):
        answer = viewer.get(path)
        assert answer.status_code == 200
        assert b"hush" not in answer.content
        assert b"0.62" in answer.content
    body = viewer.get(f"{URL}/{job.id}").json()
    assert (body["progress"]["value"], body["progress"]["text"]) == (0.62, None)
    assert (body["partial_output"], body["result_hidden"]) == (None, True)
    assert b"hush" in acme.client.get(f"{URL}/{job.id}/events").content


def test_the_payload_is_included_on_request(acme: Account) -> None:
    job = make_job(tenant=acme.tenant, payload={"prompt": "a fox"})
    assert acme.client.get(f"{URL}/{job.id}?include=payload").json()["payload"] == {"prompt": "a fox"}
    problem(acme.client.get(f"{URL}/{job.id}?include=secrets"), 400, "invalid_parameter", "/include")


def test_only_readers_of_payloads_may_include_it(acme: Account, other: Account, operator: Account) -> None:
    job = make_job(tenant=acme.tenant, payload={"prompt": "a fox"})
    path = f"{URL}/{job.id}?include=payload"
    _, key = create_key(acme.tenant, ApiKey.Kind.TENANT, scopes=[Scope.SUBMIT])
    problem(key_client(key).get(path), 403, "scope_required")
    problem(other.client.get(path), 404, "unknown_job")
    assert operator.client.get(path).json()["payload"] == {"prompt": "a fox"}
    viewer = staff("view_job")
    answer = viewer.get(path)
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_required")
    assert b"fox" not in answer.content
    user = User.objects.get(username="viewer")
    user.user_permissions.add(Permission.objects.get(codename="view_payload"))
    assert viewer.get(path).json()["payload"] == {"prompt": "a fox"}
