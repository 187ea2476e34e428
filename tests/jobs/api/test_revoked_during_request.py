"""A key that is revoked during a request: the request is carried out completely or not at all."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
import requests
from django.db import connections

from dispatcher_project.web import submit_batcher
from jobs.api import submit as view
from jobs.models import ApiKey, IdempotencyKey, Job
from tests.support.announced_jobs import end_job, new_job
from tests.support.api_harness import Account, forget_keys
from tests.support.live_web import redis_url, tenant, web
from tests.support.servers.web import Web
from tests.support.upload_sockets import BATCH, JOB, MB, SUBMIT, Sockets, answer_of, bearer, sockets
from tests.support.waiting import wait_for

__all__ = ["redis_url", "sockets", "tenant", "web"]
JOBS = 20


def revoke() -> None:
    """Drop the caches, as 2 s later."""
    ApiKey.objects.update(revoked=True)
    forget_keys()


def revoked_before(of: Any, name: str, patch: pytest.MonkeyPatch) -> None:
    """Return a function that revokes the keys when called."""
    original: Callable[..., Any] = getattr(of, name)

    def call(*args: Any, **named: Any) -> Any:
        revoke()
        return original(*args, **named)

    patch.setattr(of, name, call)


def once_watched(web: Web, work: Callable[[], None]) -> threading.Thread:
    """Do this as soon as a request waits for a job."""

    def run() -> None:
        wait_for(lambda: web.gateway._hub is not None and web.gateway.hub.watched > 0)
        work()
        connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def is_refused(web: Web, account: Account) -> bool:
    answer = requests.post(web.url + SUBMIT, json=JOB, headers=bearer(account), timeout=60)
    return (answer.status_code, answer.json()["code"]) == (401, "invalid_key")


def test_a_batch_in_progress_is_accepted_after_its_key_is_revoked(
    web: Web, tenant: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    revoked_before(view, "submit_batch", monkeypatch)
    headers = bearer(tenant) | {"Idempotency-Key": "k"}
    answer = requests.post(web.url + BATCH, json={"jobs": [JOB] * JOBS}, headers=headers, timeout=60)
    assert answer.status_code == 202
    ids = {job["job_id"] for job in answer.json()["jobs"]}
    assert ids == set(Job.objects.values_list("id", flat=True))
    assert len(ids) == JOBS
    assert is_refused(web, tenant)


def test_a_submit_in_progress_is_accepted_after_its_key_is_revoked(
    web: Web, tenant: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    revoked_before(submit_batcher, "submit_group", monkeypatch)
    answer = requests.post(web.url + SUBMIT, json=JOB, headers=bearer(tenant), timeout=60)
    assert answer.status_code == 202
    assert Job.objects.get().id == answer.json()["job_id"]
    assert is_refused(web, tenant)


def test_a_batch_whose_body_still_arrives_is_refused_after_its_key_is_revoked(
    web: Web, tenant: Account, sockets: Sockets
) -> None:
    job = JOB | {"payload": {"text": "x" * MB}}
    body = json.dumps({"jobs": [job, job]}).encode()
    headers = bearer(tenant) | {"Idempotency-Key": "k", "Connection": "close"}
    connection = sockets.begin(BATCH, len(body), **headers)
    connection.sendall(body[: MB + 1])
    wait_for(lambda: any(size >= MB for size in web.gateway._budget._arriving.values()))  # the key was valid
    revoke()
    connection.sendall(body[MB + 1 :])
    assert answer_of(connection) == (401, "invalid_key")
    assert (Job.objects.count(), IdempotencyKey.objects.count()) == (0, 0)


def test_a_waiting_submit_keeps_its_job_but_gets_no_result_after_revocation(
    web: Web, tenant: Account
) -> None:
    def end() -> None:
        revoke()
        end_job(Job.objects.get().id)

    thread = once_watched(web, end)
    headers = bearer(tenant) | {"Prefer": "wait=50"}
    answer = requests.post(web.url + SUBMIT, json=JOB, headers=headers, timeout=60)
    thread.join()
    content = answer.json()
    assert (answer.status_code, content["status"], content["outcome"]) == (202, "queued", "queued")
    assert (content["job_id"], content["error"]) == (Job.objects.get().id, None)
    assert is_refused(web, tenant)


def test_a_long_poll_gets_no_result_after_revocation(web: Web, tenant: Account) -> None:
    job = new_job(tenant.tenant)

    def end() -> None:
        revoke()
        end_job(job.id)

    thread = once_watched(web, end)
    answer = requests.get(f"{web.url}/api/v1/queue/jobs/{job.id}?wait=50", headers=bearer(tenant), timeout=60)
    thread.join()
    assert answer.status_code in (200, 401)
    assert answer.json().get("status", "queued") == "queued"
    assert is_refused(web, tenant)
