"""Tenants' responses about jobs whose failures contain internal details."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from gpus.errors import ERRORS_BY_CODE, GpuError, RunFailed
from gpus.models import ModelConfig, Pause, Server
from jobs import transitions
from jobs.domain.retry import Ending, RetryPolicy
from jobs.models import Attempt, Callback, Event, Job
from tests.support import factories as builders
from tests.support.api_harness import Account, account, forget_keys
from tests.support.routes import ROUTES, filled

ADDRESS, PATH, LINE, RIVAL = "10.66.77.88:5000", "/srv/models/flux.py", "Traceback (most", "rival-corp"
SECRETS = (ADDRESS, PATH, LINE, RIVAL, "the-boss", "gpu-7.internal")
SAID = f"RuntimeError: http://{ADDRESS}/run on gpu-7.internal failed in {PATH} beside {RIVAL}'s job"
TRACE = f'{LINE} recent call last):\n  File "{PATH}", line 3\n{SAID}'
PATIENT, DEADLY = RetryPolicy(), RetryPolicy(max_retries=0)


@dataclass
class Jobs:
    by_state: dict[str, Job]

    def __iter__(self) -> Any:
        return iter(self.by_state.values())


def end(job: Job, error: GpuError, policy: RetryPolicy = PATIENT, **values: Any) -> None:
    attempt = builders.make_running(job, at=timezone.now(), remote_id=f"http://{ADDRESS}/runs/1")
    with transaction.atomic():
        ended = transitions.end_attempt(
            transitions.End(
                job.id,
                attempt,
                1,
                "gpu-1/0",
                Ending(error),
                policy,
                timezone.now(),
                evidence=f"{ADDRESS} says that it is free",
                **values,
            )
        )
    assert ended.won


@pytest.fixture
def jobs(acme: Account, zimg: ModelConfig) -> Jobs:
    """Create failed, retrying, cancelled, running and waiting jobs, and another tenant's."""
    rival = account(RIVAL)
    server = builders.make_server(
        "gpu-1", model=zimg, endpoint=f"http://{ADDRESS}/run", host="gpu-7.internal"
    )
    Server.objects.filter(pk=server.pk).update(healthy=False, last_error=SAID)
    now = timezone.now()
    Pause.objects.create(kind="tenant", name=str(acme.tenant.pk), since=now, actor="the-boss", reason=SAID)
    made = {
        name: builders.make_job(
            zimg, at=now - timedelta(seconds=5), tenant=acme.tenant, callback_url="https://example.com/x"
        )
        for name in ("failed", "retrying", "cancelled", "waiting", "running")
    }
    for _ in range(3):
        builders.make_job(zimg, at=now - timedelta(seconds=60), tenant=rival.tenant)
    end(made["failed"], RunFailed(SAID, detail=TRACE), DEADLY, usage={"tokens": 3})
    end(made["retrying"], RunFailed(SAID, detail=TRACE))
    made["cancelled"].refresh_from_db()
    with transaction.atomic():
        transitions.request_cancel(made["cancelled"].id, now)
    end(made["cancelled"], RunFailed(SAID, detail=TRACE))
    builders.make_running(made["running"], at=now, slot="gpu-1/1")
    for job in made.values():
        job.refresh_from_db()
    return Jobs(made)


def secrets_in(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


BODIES: dict[str, Any] = {
    "/api/v1/queue/submit": {"model": "zimg", "payload": {}},
    "/api/v1/queue/submit-batch": {
        "jobs": [{"model": "zimg", "payload": {}}, {"model": "none", "payload": {}}]
    },
    "/api/v1/queue/estimate": {"model": "zimg", "payload": {}},
}


def test_the_fixtures_contain_the_secrets(jobs: Jobs, operator: Account) -> None:
    """Guards the tests below: without secrets in the rows they would prove nothing. An operator reads them
    all."""
    failed = operator.client.get(f"/api/v1/queue/jobs/{jobs.by_state['failed'].id}")
    shown = failed.json()
    assert shown["error"]["message"].startswith(SAID)
    assert shown["attempts"][0]["error"]["message"] == f"{SAID}\n\n{TRACE}"
    assert ADDRESS in shown["attempts"][0]["evidence"]
    events = operator.client.get(shown["urls"]["events"]).content.decode()
    assert SAID in events
    assert f"{ADDRESS}/runs/1" in events
    assert SAID in operator.client.get("/api/v1/queue/jobs").content.decode()
    assert {job.state for job in jobs} == {"failed", "retrying", "cancelled", "queued", "running"}


def test_no_response_contains_a_secret(acme: Account, jobs: Jobs) -> None:
    for method, path in ROUTES:
        with transaction.atomic():
            for job in jobs:
                answer = getattr(acme.client, method)(filled(path, job.id), BODIES.get(path), format="json")
                text = answer.content.decode() + str(dict(answer.headers))
                assert secrets_in(text) == [], (method, path, answer.status_code, text)
                assert answer.status_code != 401, (method, path)
                if "<str:job_id>" not in path:
                    break
            transaction.set_rollback(True)  # the next route answers about the same rows
        forget_keys()


def test_no_repeated_submit_contains_a_secret(acme: Account, jobs: Jobs) -> None:
    headers = {"HTTP_IDEMPOTENCY_KEY": "k", "HTTP_PREFER": "wait=1"}
    first = acme.client.post("/api/v1/queue/submit", BODIES["/api/v1/queue/submit"], format="json", **headers)
    assert first.status_code == 202
    end(Job.objects.get(id=first.json()["job_id"]), RunFailed(SAID, detail=TRACE), DEADLY)
    again = acme.client.post("/api/v1/queue/submit", BODIES["/api/v1/queue/submit"], format="json", **headers)
    assert again.json()["error"]["code"] == "run_failed"
    assert secrets_in(again.content.decode()) == []


@pytest.mark.parametrize("code", sorted(set(ERRORS_BY_CODE) - {"bad_input", "output_invalid"}))
def test_no_failure_and_no_callback_contains_a_secret(acme: Account, zimg: ModelConfig, code: str) -> None:
    job = builders.make_job(zimg, tenant=acme.tenant, callback_url="https://example.com/x")
    for _ in range(5):
        job.refresh_from_db()
        if job.state in ("failed", "cancelled"):
            break
        with transaction.atomic():
            transitions.queue_retry(job.id, timezone.now())
        end(job, ERRORS_BY_CODE[code](SAID, detail=TRACE), DEADLY)
    shown = acme.client.get(f"/api/v1/queue/jobs/{job.id}")
    assert shown.json()["attempts"]
    assert secrets_in(shown.content.decode()) == []
    assert secrets_in(acme.client.get(shown.json()["urls"]["events"]).content.decode()) == []
    assert secrets_in("".join(Callback.objects.values_list("body", flat=True))) == []


def test_the_rows_keep_the_full_messages(jobs: Jobs) -> None:
    failed = jobs.by_state["failed"]
    assert SAID in failed.error_message
    assert TRACE in Attempt.objects.get(job=failed).error_message
    assert any(SAID in str(event.data) for event in Event.objects.filter(job=failed))
