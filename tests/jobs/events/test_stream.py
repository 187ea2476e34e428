from __future__ import annotations

import json
import threading
from typing import Any

import pytest
import requests
from django.contrib.auth.models import Group, User
from django.test import Client

from admin_ui.parts.groups import write_groups
from jobs.events import stream
from jobs.models import ApiKey
from jobs.operations.jobs import retry_dead_letter
from tests.support.announced_jobs import end_job, new_job, read_stream, say
from tests.support.api_harness import Account, ApiHarness, account
from tests.support.servers.web import Web
from tests.support.waiting import wait_for


def follow(web: Web, account: Account, job_id: str, **headers: str) -> requests.Response:
    return requests.get(
        f"{web.url}/api/v1/queue/jobs/{job_id}/events",
        headers={"Authorization": f"Bearer {account.key}", "Accept": "text/event-stream", **headers},
        stream=True,
        timeout=60,
    )


def test_a_stream_replays_follows_and_ends_with_done(web: Web, tenant: Account) -> None:
    job = new_job(tenant.tenant)
    answer = follow(web, tenant, job.id)
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    lines = answer.iter_lines(decode_unicode=True, chunk_size=1)
    first = [line for line in (next(lines) for _ in range(6)) if line]
    assert "event: queued" in first
    end_job(job.id)
    events = read_stream(lines)
    assert [event["event"] for event in events] == ["failed", "done"]
    assert events[0]["id"] == "2"
    body = json.loads(events[0]["data"])
    assert (body["job_id"], body["seq"], body["status"]) == (job.id, 2, "failed")
    assert json.loads(events[1]["data"]) == {"job_id": job.id, "status": "failed"}


def test_a_stream_ends_soon_after_its_key_was_revoked(
    web: Web, tenant: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "CHECK_SECONDS", 0.1)
    job = new_job(tenant.tenant)
    lines = follow(web, tenant, job.id).iter_lines(decode_unicode=True, chunk_size=1)
    while next(lines) != "event: queued":
        pass
    ApiKey.objects.update(revoked=True)
    end_job_later = threading.Timer(20.0, end_job, [job.id])  # the stream is kept alive
    end_job_later.start()
    assert not any(line.startswith("event: done") for line in lines), "the job continues"
    end_job_later.cancel()
    assert follow(web, tenant, job.id).status_code == 401


def test_one_reader_has_a_bounded_number_of_streams(web: Web, tenant: Account) -> None:
    web.gateway._streams_per_reader = 2
    job = new_job(tenant.tenant)
    opened = [follow(web, tenant, job.id) for _ in range(2)]
    refused = follow(web, tenant, job.id)
    assert refused.status_code == 429
    body = refused.json()
    assert (body["code"], body["retry_after_seconds"]) == ("too_many_streams", 5)
    other = account("other")
    theirs = follow(web, other, new_job(other.tenant).id)
    assert theirs.status_code == 200, "each key has its own limit"
    for answer in (*opened, theirs):
        answer.close()
    wait_for(lambda: not web.gateway._streams)
    assert follow(web, tenant, job.id).status_code == 200


@pytest.mark.database
def test_a_reconnecting_client_gets_only_missed_events(web: Web, tenant: Account) -> None:
    job = new_job(tenant.tenant)
    end_job(job.id)

    def missed(**headers: str) -> list[str | None]:
        events = read_stream(follow(web, tenant, job.id, **headers).iter_lines(decode_unicode=True))
        assert events[-1]["event"] == "done"
        return [event.get("id") for event in events]

    assert missed() == ["1", "2", None]
    assert missed(**{"Last-Event-ID": "1"}) == ["2", None]
    assert missed(**{"Last-Event-ID": "2"}) == [None]


def test_a_stream_does_not_end_with_an_earlier_round(web: Web, tenant: Account, api: ApiHarness) -> None:
    job = new_job(tenant.tenant)
    end_job(job.id)
    retry_dead_letter(job.id, ports=api.ports)
    lines = follow(web, tenant, job.id).iter_lines(decode_unicode=True, chunk_size=1)
    seen: list[str] = []
    while "event: retried" not in seen:
        seen.append(next(lines))
    assert "event: failed" in seen
    assert "event: done" not in seen
    end_job(job.id)
    assert [event["event"] for event in read_stream(lines)][-2:] == ["failed", "done"]


def test_a_lost_announcement_costs_a_poll(
    web: Web, tenant: Account, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"  # the hub starts with the first listener
    job = new_job(tenant.tenant)
    lines = follow(web, tenant, job.id).iter_lines(decode_unicode=True, chunk_size=1)
    wait_for(lambda: web.gateway.hub.watched == 1)
    assert not web.gateway.hub.is_subscribed
    end_job(job.id, announce=False)
    assert [event["event"] for event in read_stream(lines)][-2:] == ["failed", "done"]


def test_a_quiet_stream_is_kept_alive(web: Web, tenant: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "KEEP_ALIVE_SECONDS", 0.05)
    job = new_job(tenant.tenant)
    lines = follow(web, tenant, job.id).iter_lines(decode_unicode=True, chunk_size=1)
    while next(lines) != ": still here":
        pass
    end_job(job.id)
    assert read_stream(lines)[-1]["event"] == "done"


def test_a_disconnected_client_is_removed(web: Web, tenant: Account) -> None:
    job = new_job(tenant.tenant)
    answer = follow(web, tenant, job.id)
    wait_for(lambda: web.gateway.hub.watched == 1)
    answer.close()
    wait_for(lambda: web.gateway.hub.watched == 0)


@pytest.mark.parametrize("group", ["operators", "viewers"])
def test_a_reader_without_results_follows_without_output(web: Web, tenant: Account, group: str) -> None:
    job = new_job(tenant.tenant)
    say(job.id, "a secret")
    write_groups()
    user = User.objects.create_user("ada", is_staff=True)
    user.groups.add(Group.objects.get(name=group))
    staff = Client()
    staff.force_login(user)
    cookies = {name: morsel.value for name, morsel in staff.cookies.items()}
    answer = requests.get(
        f"{web.url}/api/v1/queue/jobs/{job.id}/events", cookies=cookies, stream=True, timeout=60
    )
    end_job(job.id)
    result = {event["event"]: event["data"] for event in read_stream(answer.iter_lines(decode_unicode=True))}
    assert json.loads(result["partial"])["output"] == (["a secret"] if group == "operators" else None)
    assert "done" in result


def test_a_stream_needs_a_key_with_access_to_the_job(web: Web, tenant: Account) -> None:
    job = new_job(tenant.tenant)
    answer = requests.get(f"{web.url}/api/v1/queue/jobs/{job.id}/events", timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (401, "not_authenticated")
    answer = follow(web, tenant, "0" * 26)
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_job")


def test_sixty_listeners_need_no_threads_of_their_own(web: Web, tenant: Account) -> None:
    jobs = [new_job(tenant.tenant).id for _ in range(4)]
    before = threading.active_count()
    streams = [follow(web, tenant, jobs[number % 4]) for number in range(60)]
    wait_for(lambda: web.gateway.hub.watched == 60)
    assert threading.active_count() <= before + 17  # sixteen for Django and one for the hub
    for job_id in jobs:
        end_job(job_id)
    for answer in streams:
        assert read_stream(answer.iter_lines(decode_unicode=True))[-1]["event"] == "done"
