from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from rest_framework.test import APIClient

from foundation.ids import new_id
from gpus.models import ModelConfig, Pause
from jobs.domain.access import TEXTS
from jobs.models import Attempt, Event
from jobs.operations.tenants import create_key
from tests.support.api_harness import Account, ApiHarness, account, key_client, make_model
from tests.support.api_jobs import NOW, ids, make_job
from tests.support.factories import make_running, make_server
from tests.support.problems import problem

URL, STATS = "/api/v1/queue/jobs", "/api/v1/queue/stats"


def test_a_job_shows_its_attempts_and_its_error(acme: Account) -> None:
    job = make_job(acme.tenant, "failed", error_code="timeout", error_message="too slow")
    Attempt.objects.create(
        id=new_id(), job=job, number=1, state="failed", server="s1", slot=0, model="zimg", started_at=NOW,
        finished_at=NOW, error_code="timeout", error_message="too slow",
    )  # fmt: skip
    body = acme.client.get(f"{URL}/{job.id}").json()
    assert (body["status"], body["error"]) == ("failed", {"code": "timeout", "message": TEXTS["timeout"]})
    (attempt,) = body["attempts"]
    assert (attempt["number"], attempt["server"], attempt["slot"], attempt["state"]) == (1, "s1", 0, "failed")
    assert attempt["error"] == {"code": "timeout", "message": TEXTS["timeout"]}


def test_a_job_without_error_says_null(acme: Account) -> None:
    job = make_job(acme.tenant, "completed", result=[1, 2])
    body = acme.client.get(f"{URL}/{job.id}").json()
    assert (body["error"], body["result"]) == (None, [1, 2])


@pytest.mark.database
def test_the_list_is_filtered(acme: Account) -> None:
    old = make_job(acme.tenant, created_at=NOW - timedelta(days=1), tags=["red"])
    done = make_job(acme.tenant, "completed", model="flux", tags=["red", "blue"])
    assert ids(acme.client.get(URL)) == [done.id, old.id]
    assert ids(acme.client.get(URL, {"status": "completed"})) == [done.id]
    assert ids(acme.client.get(URL, {"model": "zimg"})) == [old.id]
    assert ids(acme.client.get(URL, {"tag": "blue"})) == [done.id]
    assert ids(acme.client.get(URL, {"tag": "red"})) == [done.id, old.id]
    since = (NOW - timedelta(hours=1)).isoformat()
    assert ids(acme.client.get(URL, {"created_after": since})) == [done.id]
    assert ids(acme.client.get(URL, {"created_before": since})) == [old.id]
    assert ids(acme.client.get(URL, {"tag": "red", "status": "queued"})) == [old.id]


@pytest.mark.database
def test_a_job_with_many_refusals_shows_its_last_attempts(acme: Account) -> None:
    job = make_job(acme.tenant, attempts_made=200)
    refused = {"model": "zimg", "state": "failed", "error_code": "busy", "error_message": "answered 503"}
    Attempt.objects.bulk_create(
        Attempt(id=new_id(), job=job, number=number, server="gpu-1", slot=0, started_at=NOW, **refused)
        for number in range(1, 201)
    )
    answer = acme.client.get(f"{URL}/{job.id}")
    body = answer.json()
    assert [attempt["number"] for attempt in body["attempts"]] == list(range(151, 201))
    assert body["attempts_count"] == 200
    assert len(answer.content) < 20_000
    (listed,) = acme.client.get(URL).json()["results"]
    assert listed["attempts"] == body["attempts"]
    earlier = acme.client.get(f"{URL}/{job.id}", {"attempts_before": 21, "wait": 5}).json()
    assert [attempt["number"] for attempt in earlier["attempts"]] == list(range(1, 21))
    assert problem(acme.client.get(f"{URL}/{job.id}", {"attempts_before": 0}), 400, "invalid_parameter")
    assert acme.client.get(f"{URL}/{job.id}", {"attempts_before": 1}).json()["attempts"] == []


@pytest.mark.database
def test_pages_go_forward_and_back_unaffected_by_new_jobs(acme: Account) -> None:
    jobs = [make_job(acme.tenant).id for _ in range(5)][::-1]
    first = acme.client.get(URL, {"limit": 2})
    assert ids(first) == jobs[:2]
    make_job(acme.tenant)
    second = acme.client.get(first.json()["next"])
    assert ids(second) == jobs[2:4]
    third = acme.client.get(second.json()["next"])
    assert ids(third) == jobs[4:]
    assert third.json()["next"] is None
    assert ids(acme.client.get(third.json()["previous"])) == jobs[2:4]


@pytest.mark.usefixtures("all_remembered")
def test_a_list_costs_the_same_however_long(acme: Account, django_assert_max_num_queries: Any) -> None:
    for _ in range(20):
        make_job(acme.tenant)
    acme.client.get(URL)
    with django_assert_max_num_queries(2):
        acme.client.get(URL)


@pytest.mark.database
def test_a_job_of_another_tenant_does_not_exist(acme: Account, other: Account) -> None:
    job = make_job(acme.tenant, tags=["x"])
    for path, method in (
        (f"{URL}/{job.id}", "get"),
        (f"{URL}/{job.id}/events", "get"),
        (f"{URL}/{job.id}/cancel", "post"),
    ):
        problem(getattr(other.client, method)(path), 404, "unknown_job")
    assert ids(other.client.get(URL)) == []
    assert ids(other.client.get(URL, {"tag": "x"})) == []
    assert sum(model["queued"] for model in other.client.get("/api/v1/queue/stats").json()["models"]) == 0
    job.refresh_from_db()
    assert job.state == "queued"


@pytest.mark.database
def test_an_operator_sees_every_job(acme: Account, operator: Account) -> None:
    job = make_job(acme.tenant)
    assert ids(operator.client.get(URL)) == [job.id]
    assert operator.client.get(f"{URL}/{job.id}").status_code == 200


def test_a_waiting_job_is_cancelled_at_once_and_for_good(acme: Account, api: ApiHarness) -> None:
    job = make_job(acme.tenant)
    api.leases.line.append(job.ticket)
    answer = acme.client.post(f"{URL}/{job.id}/cancel")
    assert (answer.status_code, answer.json()["outcome"]) == (200, "cancelled")
    assert api.leases.line == []
    assert acme.client.get(f"{URL}/{job.id}").json()["status"] == "cancelled"


@pytest.mark.database
def test_a_running_job_is_asked_to_stop(acme: Account) -> None:
    job = make_job(acme.tenant, "running")
    answer = acme.client.post(f"{URL}/{job.id}/cancel")
    assert (answer.status_code, answer.json()["outcome"]) == (202, "requested")
    assert answer.json()["may_hold_slot_until"] is None, "no attempt of it runs any more"
    assert acme.client.get(f"{URL}/{job.id}").json()["cancel_requested_at"]


@pytest.mark.database
def test_a_cancel_returns_the_latest_release_of_the_slot(acme: Account, api: ApiHarness) -> None:
    make_model("zimg", max_run_seconds=90.0)
    job = make_job(acme.tenant)
    attempt = Attempt.objects.get(id=make_running(job, slot="gpu-1/0"))
    answer = acme.client.post(f"{URL}/{job.id}/cancel").json()
    until = datetime.fromisoformat(answer["may_hold_slot_until"])
    assert (until - attempt.started_at).total_seconds() == 90.0


@pytest.mark.database
def test_an_ended_job_cannot_be_cancelled(acme: Account) -> None:
    problem(acme.client.post(f"{URL}/{make_job(acme.tenant, 'completed').id}/cancel"), 409, "not_cancellable")


def test_stats_count_by_model_and_estimate_the_drain(
    acme: Account, zimg: ModelConfig, api: ApiHarness
) -> None:
    from gpus.protocol import ServerSpec

    server = make_server("s1", model=zimg)
    api.leases.configure_server(ServerSpec("s1", "zimg", 2, ("zimg",)))
    for state in ("queued", "queued", "running", "retrying", "completed", "scheduled", "cancelling"):
        make_job(acme.tenant, state)
    make_job(account("third").tenant)
    (result,) = acme.client.get("/api/v1/queue/stats").json()["models"]
    assert (result["queued"], result["running"], result["retrying"]) == (2, 1, 1)
    assert (result["scheduled"], result["cancelling"]) == (1, 1)
    assert (result["queued_gpu_seconds"], result["drain_seconds"]) == (4.0, 2.0)
    assert result["slots"] == {"free": 2}
    assert result["oldest_queued_seconds"] >= 0
    server.healthy = False
    server.save()
    (result,) = acme.client.get("/api/v1/queue/stats").json()["models"]
    assert (result["queued_gpu_seconds"], result["drain_seconds"]) == (4.0, None)
    api.leases.away = True
    (result,) = acme.client.get("/api/v1/queue/stats").json()["models"]
    assert (result["queued"], result["slots"], result["queued_gpu_seconds"]) == (2, None, None)


@pytest.mark.parametrize("kind", [Pause.Kind.MODEL, Pause.Kind.SYSTEM])
def test_stats_say_that_a_model_is_paused(acme: Account, zimg: object, kind: Pause.Kind) -> None:
    make_model("trellis")

    def paused() -> dict[str, bool]:
        found = acme.client.get("/api/v1/queue/stats").json()["models"]
        return {one["model"]: one["paused"] for one in found}

    assert paused() == {"trellis": False, "zimg": False}
    Pause.objects.create(kind=kind, name="zimg" if kind == Pause.Kind.MODEL else "", since=NOW, actor="ada")
    assert paused() == {"trellis": kind == Pause.Kind.SYSTEM, "zimg": True}


def test_stats_call_redis_once_per_model(
    operator: Account, zimg: ModelConfig, api: ApiHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpus.protocol import ServerSpec

    make_server("s1", model=zimg)
    api.leases.configure_server(ServerSpec("s1", "zimg", 2, ("zimg",)))
    calls: list[tuple[str, str]] = []
    monkeypatch.setattr(
        api.leases, "estimate_seconds", lambda model, tenant: calls.append((model, tenant)) or 3.0
    )
    for number in range(4):
        make_job(account(f"t{number}").tenant)
    (result,) = operator.client.get(STATS).json()["models"]
    assert (result["queued_gpu_seconds"], result["drain_seconds"]) == (12.0, 6.0)
    assert calls == [("zimg", "")], "the model's mean"


@pytest.mark.database
def test_stats_name_the_models_that_a_key_may_submit_to_and_those_of_its_jobs(
    acme: Account, operator: Account
) -> None:
    for name in ("flux", "llama", "secret", "zimg"):
        make_model(name)
    acme.tenant.allowed_models = ["flux", "llama"]
    acme.tenant.save()
    make_job(acme.tenant)  # of zimg, from before its model list was narrowed

    def names(client: APIClient) -> list[str]:
        return [model["model"] for model in client.get(STATS).json()["models"]]

    assert names(acme.client) == ["flux", "llama", "zimg"]
    _, key = create_key(acme.tenant, allowed_models=["flux", "secret"])
    assert names(key_client(key)) == ["flux", "zimg"]
    assert names(operator.client) == ["flux", "llama", "secret", "zimg"]


def test_under_wsgi_the_event_stream_has_the_events_so_far(acme: Account) -> None:
    job = make_job(acme.tenant, "completed", event_seq=3)
    for seq, kind in enumerate(("queued", "started", "completed"), start=1):
        Event.objects.create(job=job, seq=seq, type=kind, at=NOW, data={"status": kind})
    answer = acme.client.get(f"{URL}/{job.id}/events", HTTP_ACCEPT="text/event-stream")
    assert answer["Content-Type"].startswith("text/event-stream")
    names = [line for line in answer.content.decode().splitlines() if line.startswith("event")]
    assert names == ["event: queued", "event: started", "event: completed", "event: done"]
    later = acme.client.get(f"{URL}/{job.id}/events", HTTP_LAST_EVENT_ID="2").content.decode()
    assert "event: started" not in later
    assert "id: 3" in later


def test_a_bad_last_event_id_is_named(acme: Account) -> None:
    job = make_job(acme.tenant)
    problem(
        acme.client.get(f"{URL}/{job.id}/events", HTTP_LAST_EVENT_ID="x"),
        400,
        "invalid_parameter",
        "/Last-Event-ID",
    )
    problem(
        acme.client.get(f"{URL}/{job.id}/events?last_event_id=-1"), 400, "invalid_parameter", "/last_event_id"
    )
    problem(acme.client.get(f"{URL}/{job.id}?wait=soon"), 400, "invalid_parameter", "/wait")
