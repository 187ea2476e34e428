"""Long polls and request bodies through the real web process."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from jobs.operations.tenants import create_key
from tests.support.announced_jobs import end_job, new_job
from tests.support.api_harness import Account
from tests.support.factories import make_running
from tests.support.live_web import redis_url, tenant, web
from tests.support.servers.web import Web
from tests.support.waiting import wait_for

__all__ = ["redis_url", "tenant", "web"]
SUBMIT = "/api/v1/queue/submit"
JOB = {"model": "zimg", "payload": {"n": 1}}


def bearer(account: Account) -> dict[str, str]:
    return {"Authorization": f"Bearer {account.key}"}


def ends_once_watched(web: Web, find: Any) -> threading.Thread:
    """End the job as soon as a request waits for it."""
    from django.db import connections

    def run() -> None:
        wait_for(lambda: web.gateway._hub is not None and web.gateway.hub.watched > 0)
        end_job(find())
        connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_long_poll_responds_when_the_job_has_ended(web: Web, tenant: Account) -> None:
    job = new_job(tenant.tenant)
    thread = ends_once_watched(web, lambda: job.id)
    answer = requests.get(f"{web.url}/api/v1/queue/jobs/{job.id}?wait=30", headers=bearer(tenant), timeout=60)
    thread.join()
    assert answer.status_code == 200
    assert answer.json()["status"] == "failed"
    assert not [name for name in answer.headers if name.lower().startswith("x-dispatcher")]


def test_a_long_poll_includes_the_payload_on_request(web: Web, tenant: Account) -> None:
    job = new_job(tenant.tenant)
    thread = ends_once_watched(web, lambda: job.id)
    address = f"{web.url}/api/v1/queue/jobs/{job.id}?include=payload&wait=30"
    answer = requests.get(address, headers=bearer(tenant), timeout=60)
    thread.join()
    assert answer.json()["status"] == "failed"
    assert answer.json()["payload"] == job.payload


def test_a_long_poll_responds_after_its_time_limit(web: Web, tenant: Account) -> None:
    job = new_job(tenant.tenant)
    answer = requests.get(
        f"{web.url}/api/v1/queue/jobs/{job.id}?wait=0.2", headers=bearer(tenant), timeout=60
    )
    assert (answer.status_code, answer.json()["status"]) == (200, "queued")


def test_a_submit_can_wait_for_its_job(web: Web, tenant: Account) -> None:
    from jobs.models import Job

    thread = ends_once_watched(web, lambda: Job.objects.get().id)
    headers = bearer(tenant) | {"Prefer": "respond-async, wait=30", "Idempotency-Key": "k"}
    answer = requests.post(web.url + SUBMIT, json=JOB, headers=headers, timeout=60)
    thread.join()
    content = answer.json()
    assert (answer.status_code, content["status"], content["outcome"]) == (200, "failed", "finished")
    assert (content["position"], content["wait_reason"], content["starts_in"]) == (None, None, None)
    assert answer.headers["Preference-Applied"] == "wait=30"
    assert answer.headers["Location"].endswith(content["job_id"])


def test_a_submit_only_key_gets_the_end_without_the_result(web: Web, tenant: Account) -> None:
    from jobs.models import Job

    _, key = create_key(tenant.tenant, scopes=["submit"])
    thread = ends_once_watched(web, lambda: Job.objects.get().id)
    headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "k"}
    waited = requests.post(web.url + SUBMIT, json=JOB, headers=headers | {"Prefer": "wait=30"}, timeout=60)
    thread.join()
    repeated = requests.post(web.url + SUBMIT, json=JOB, headers=headers, timeout=60)
    assert (waited.status_code, waited.json()) == (200, repeated.json())
    content = waited.json()
    assert (content["outcome"], content["result"], content["result_hidden"]) == ("finished", None, True)
    read = requests.get(f"{web.url}/api/v1/queue/jobs/{content['job_id']}", headers=headers, timeout=60)
    assert (read.status_code, read.json()["code"]) == (403, "scope_required")


def test_a_submit_whose_wait_expires_is_accepted(web: Web, tenant: Account, settings: Any) -> None:
    settings.DISPATCHER = settings.DISPATCHER.__class__(max_wait_seconds=0.2)
    headers = bearer(tenant) | {"Prefer": "wait=1000"}
    answer = requests.post(web.url + SUBMIT, json=JOB, headers=headers, timeout=60)
    assert (answer.status_code, answer.json()["status"]) == (202, "queued")


def test_a_submit_whose_wait_expires_returns_the_jobs_state(web: Web, tenant: Account, settings: Any) -> None:
    from django.db import connections

    from jobs.models import Job

    settings.DISPATCHER = settings.DISPATCHER.__class__(max_wait_seconds=4.0)

    def run() -> None:
        wait_for(lambda: web.gateway._hub is not None and web.gateway.hub.watched > 0)
        make_running(Job.objects.get())
        connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    headers = bearer(tenant) | {"Prefer": "wait=1000"}
    answer = requests.post(web.url + SUBMIT, json=JOB, headers=headers, timeout=60)
    thread.join()
    content = answer.json()
    assert (answer.status_code, content["status"], content["outcome"]) == (202, "running", "leased")
    assert [attempt["state"] for attempt in content["attempts"]] == ["sent"]
    assert (content["position"], content["wait_reason"], content["starts_in"]) == (None, None, None)
    assert answer.headers["Location"].endswith(content["job_id"])


def test_many_long_polls_leave_the_threads_free(web: Web, tenant: Account) -> None:
    job = new_job(tenant.tenant)
    url = f"{web.url}/api/v1/queue/jobs/{job.id}?wait=30"
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda: answers.append(requests.get(url, headers=bearer(tenant), timeout=30)))
        for _ in range(20)  # Django has sixteen threads
    ]
    for thread in threads:
        thread.start()
    wait_for(lambda: web.gateway._hub is not None and web.gateway.hub.watched == 20)
    assert requests.get(f"{web.url}/livez", timeout=60).status_code == 200
    end_job(job.id)
    for thread in threads:
        thread.join(60)
    assert [answer.json()["status"] for answer in answers] == ["failed"] * 20


def test_a_body_that_is_too_long_gets_a_response(web: Web, tenant: Account) -> None:
    """A client that reads only after sending everything can do so, and gets its response."""
    body = json.dumps({"model": "zimg", "payload": {"x": "y" * 16_000_000}}).encode()
    address = urlsplit(web.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.sendall(
            f"POST {SUBMIT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tenant.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        )
        connection.sendall(body)
        answer = connection.recv(65536)
    assert answer.split()[1] == b"413"
    assert b"payload_too_large" in answer


def chunks(size: int) -> Iterator[bytes]:
    yield b'{"model": "zimg", "payload": {"x": "'
    for _ in range(size // 1000):
        yield b"y" * 1000
    yield b'"}}'


def test_a_body_without_a_length_is_read_up_to_a_limit(web: Web, tenant: Account) -> None:
    headers = bearer(tenant) | {"Content-Type": "application/json"}
    answer = requests.post(web.url + SUBMIT, data=chunks(500_000), headers=headers, timeout=60)
    assert answer.status_code == 202, answer.text
    answer = requests.post(web.url + SUBMIT, data=chunks(2_000_000), headers=headers, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


def test_slow_senders_block_no_thread(web: Web, tenant: Account) -> None:
    address = urlsplit(web.url)
    slow = []
    for _ in range(40):
        connection = socket.create_connection((address.hostname, address.port), timeout=60)
        connection.sendall(
            f"POST {SUBMIT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tenant.key}\r\n"
            "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{".encode()
        )
        slow.append(connection)
    assert requests.post(web.url + SUBMIT, json=JOB, headers=bearer(tenant), timeout=60).status_code == 202
    for connection in slow:
        connection.close()


@pytest.mark.parametrize(
    "path", ["/api/v1/queue/jobs?tag=\xe9", "/api/v1/queue/jobs/\xe9", "/api/v1/%00", "/api/v1/%ff"]
)
def test_non_ascii_bytes_cause_no_error(web: Web, tenant: Account, path: str) -> None:
    address = urlsplit(web.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        head = (
            f"GET /api/v1/{path} HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {tenant.key}\r\nConnection: close\r\n\r\n"
        )
        connection.sendall(head.encode("latin1"))
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    assert int(answer.split()[1]) in (200, 400, 404)
