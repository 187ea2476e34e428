"""Following a job's log over a real web process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests
from django.conf import settings

from dispatcher_client import Client, LogLine, NotFound
from jobs.events.announce import Announcer
from jobs.models import Event, Job
from jobs.operations.jobs import retry_dead_letter
from tests.support.announced_jobs import end_job, new_job, write_lines
from tests.support.api_harness import Account, ApiHarness
from tests.support.servers.web import Web
from tests.support.waiting import wait_for


def follow(web: Web, reader: Account, job: Job, query: str = "") -> requests.Response:
    return requests.get(
        f"{web.url}/api/v1/queue/jobs/{job.id}/logs?follow=1{query}",
        headers={"Authorization": f"Bearer {reader.key}"},
        stream=True,
        timeout=60,
    )


@pytest.fixture
def running(tenant: Account) -> Job:
    found = new_job(tenant.tenant)
    write_lines(found, "one", "two", "three")
    return found


def lines_of(answer: requests.Response) -> Iterator[str]:
    for line in answer.iter_lines(decode_unicode=True, chunk_size=1):
        yield line.rpartition(" ")[2]


def test_a_followed_log_ends_with_its_job(web: Web, tenant: Account, running: Job) -> None:
    answer = follow(web, tenant, running)
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    lines = lines_of(answer)
    assert [next(lines) for _ in range(3)] == ["one", "two", "three"]
    write_lines(running, "four")
    end_job(running.id)
    assert list(lines) == ["four"]


def test_a_followed_log_begins_at_the_tail_or_a_place(web: Web, tenant: Account, running: Job) -> None:
    end_job(running.id)
    assert list(lines_of(follow(web, tenant, running, "&tail=2"))) == ["two", "three"]
    assert list(lines_of(follow(web, tenant, running, "&after=2.2"))) == ["three"]
    assert list(lines_of(follow(web, tenant, running, "&after=2"))) == []


def test_a_followed_log_goes_on_through_a_retry(
    web: Web, tenant: Account, running: Job, api: ApiHarness
) -> None:
    end_job(running.id)
    retry_dead_letter(running.id, ports=api.ports)
    lines = lines_of(follow(web, tenant, running))
    assert [next(lines) for _ in range(3)] == ["one", "two", "three"]
    write_lines(running, "second", attempt=2)
    assert next(lines) == "second"
    end_job(running.id)
    assert list(lines) == []


def test_a_disconnect_frees_the_follower(web: Web, tenant: Account, running: Job) -> None:
    answer = follow(web, tenant, running)
    wait_for(lambda: web.gateway.hub.watched == 1)
    answer.close()
    wait_for(lambda: web.gateway.hub.watched == 0)
    wait_for(lambda: not web.gateway._streams)


def test_followers_count_as_streams_of_their_reader(web: Web, tenant: Account, running: Job) -> None:
    web.gateway._streams_per_reader = 2
    opened = [follow(web, tenant, running) for _ in range(2)]
    assert [answer.status_code for answer in opened] == [200, 200]
    assert follow(web, tenant, running).status_code == 429
    for answer in opened:
        answer.close()


def test_a_deleted_job_ends_its_followers(web: Web, tenant: Account, running: Job) -> None:
    lines = lines_of(follow(web, tenant, running))
    assert [next(lines) for _ in range(3)] == ["one", "two", "three"]
    Event.objects.filter(job=running).delete()
    Job.objects.filter(id=running.id).delete()
    Announcer(settings.REDIS_URL)([running.id])
    assert list(lines) == []


def test_the_client_follows_to_the_end(web: Web, tenant: Account, running: Job) -> None:
    client = Client(web.url, tenant.key)
    lines = client.logs(running.id, follow=True, tail=2)
    assert next(lines).text == "two"
    write_lines(running, "four")
    end_job(running.id)
    rest = list(lines)
    assert [line.text for line in rest] == ["three", "four"]
    assert rest[1] == LogLine("3.1", "2026-01-01T12:01:00.000+00:00", 1, "log", None, "four")
    assert [line.text for line in client.logs(running.id)] == ["one", "two", "three", "four"]
    assert [line.text for line in client.logs(running.id, after=rest[0].id)] == ["four"]
    with pytest.raises(NotFound):
        list(client.logs("0" * 26))
