"""The client against the real web process: uvicorn, the async layer, Django, a database, Valkey."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connections

from dispatcher_client import (
    Client,
    Conflict,
    Invalid,
    Job,
    JobFailed,
    NotAuthenticated,
    NotFound,
    NotOver,
    Problem,
)
from jobs.models import Job as Row
from tests.support.announced_jobs import end_job
from tests.support.api_harness import Account, api
from tests.support.live_web import redis_url, tenant, web
from tests.support.new_client import NewClient
from tests.support.servers.web import Web
from tests.support.waiting import wait_for

__all__ = ["api", "redis_url", "tenant", "web"]


@pytest.fixture
def client(web: Web, tenant: Account, new_client: NewClient) -> Client:
    return new_client(web.url, tenant.key)


def ends_once_watched(web: Web, job_id: str) -> threading.Thread:
    """End the job as soon as a client waits for it."""

    def run() -> None:
        wait_for(lambda: web.gateway._hub is not None and web.gateway.hub.watched > 0)
        end_job(job_id)
        connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_job_is_submitted_once_and_waited_for(web: Web, client: Client) -> None:
    job = client.submit("zimg", {"n": 1}, tags=["a"], metadata={"order": 7}, priority=2, idempotency_key="k1")
    assert (job.status, job.outcome, job.data["metadata"]) == ("queued", "queued", {"order": 7})
    assert (
        client.submit(
            "zimg", {"n": 1}, tags=["a"], metadata={"order": 7}, priority=2, idempotency_key="k1"
        ).job_id
        == job.job_id
    )
    assert Row.objects.count() == 1
    with pytest.raises(NotOver) as raised:
        client.wait(job.job_id, 0.1)
    assert raised.value.job.job_id == job.job_id
    thread = ends_once_watched(web, job.job_id)
    over = client.wait(job.job_id, 30)
    thread.join()
    assert (over.status, over.is_over) == ("failed", True)
    assert over.error is not None
    assert client.get(job.job_id).status == "failed"
    with pytest.raises(Conflict):
        client.cancel(job.job_id)


def test_a_stream_is_followed_to_its_end(web: Web, client: Client) -> None:
    job = client.submit("zimg", {})
    thread = ends_once_watched(web, job.job_id)
    events = list(client.stream(job.job_id))
    thread.join()
    assert [event.type for event in events] == ["queued", "failed", "done"]
    assert events[1].data["status"] == "failed"
    assert [event.type for event in client.stream(job.job_id, after="1")] == ["failed", "done"]


def test_cancel_twice_is_cancelled(client: Client) -> None:
    job = client.submit("zimg", {})
    assert [client.cancel(job.job_id) for _ in range(2)] == ["cancelled", "cancelled"]
    assert client.wait(job.job_id, 5).status == "cancelled"


def test_a_batch_returns_jobs_and_problems(client: Client) -> None:
    good, bad = client.submit_batch([{"model": "zimg", "payload": {}}, {"model": "nix", "payload": {}}])
    assert isinstance(good, Job)
    assert (good.status, good.outcome) == ("queued", "queued")
    assert isinstance(bad, Problem)
    assert (bad.code, bad.pointer) == ("unknown_model", "/jobs/1/model")


def test_refusals_are_typed(web: Web, client: Client, new_client: NewClient) -> None:
    with pytest.raises(Invalid) as raised:
        client.submit("zimg", {}, priority=99)
    assert (raised.value.code, raised.value.pointer, raised.value.status) == (
        "validation_failed",
        "/priority",
        422,
    )
    assert raised.value.errors[0].code == "out_of_range"
    client.submit("zimg", {}, idempotency_key="k2")
    with pytest.raises(Invalid, match="idempotency_conflict"):
        client.submit("zimg", {"other": 1}, idempotency_key="k2")
    with pytest.raises(NotFound):
        client.get("0" * 26)
    with pytest.raises(NotFound):
        list(client.stream("0" * 26))
    with pytest.raises(NotAuthenticated):
        new_client(web.url, "wrong").submit("zimg", {})


def test_typed_answers_fit_the_api(client: Client) -> None:
    ids = [client.submit("zimg", {"n": n}, tags=["a"]).job_id for n in range(3)]
    client.submit("zimg", {})
    listed = list(client.list(tag="a", model="zimg", status="queued", page_size=1))
    assert [job.job_id for job in listed] == ids[::-1]
    found = client.explain(ids[2])
    assert (found.job_id, found.status) == (ids[2], "queued")
    assert found.reasons[0].code
    assert client.estimate("zimg", {}, priority=1, if_busy="queue").reasons[0].change
    with pytest.raises(Invalid, match="unknown_model"):
        client.estimate("nix", {})
    me = client.me()
    assert (me.tenant, [model.model for model in me.models], me.used.waiting) == ("acme", ["zimg"], 4)
    today = me.day_ends_at.date() - timedelta(days=1)
    usage = client.usage(today, today, by="model")
    assert (usage.tenant, usage.first, usage.last, usage.by) == ("acme", today, today, "model")
    assert usage.total is not None
    with pytest.raises(Invalid):
        client.usage(today, today - timedelta(days=1))


def test_run_raises_the_failure_of_its_job(web: Web, client: Client) -> None:
    def end_the_only_one() -> None:
        wait_for(Row.objects.exists)
        ends_once_watched(web, Row.objects.get().id).join()
        connections.close_all()

    thread = threading.Thread(target=end_the_only_one)
    thread.start()
    with pytest.raises(JobFailed) as raised:
        client.run("zimg", {}, timeout_seconds=60)
    thread.join()
    assert raised.value.code
    assert raised.value.job.error is not None
    assert raised.value.code == raised.value.job.error["code"]
