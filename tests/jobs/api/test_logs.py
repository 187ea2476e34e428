"""GET /queue/jobs/{id}/logs: the lines, and the roles that may read them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from jobs.models import Job
from tests.support.announced_jobs import new_job, write_lines
from tests.support.api_harness import Account


@pytest.fixture
def job(acme: Account) -> Job:
    found = new_job(acme.tenant)
    write_lines(found, "one", "two")
    write_lines(found, "boo", stream="stderr", level="error")
    write_lines(found, "again", attempt=2)
    return found


def get(account: Account, job: Job, query: str = "", **headers: str) -> Any:
    return account.client.get(f"/api/v1/queue/jobs/{job.id}/logs{query}", headers=headers)


def ids(answer: Any) -> list[str]:
    return [json.loads(line)["id"] for line in answer.content.decode().splitlines()]


def texts(answer: Any) -> list[str]:
    return [json.loads(line)["text"] for line in answer.content.decode().splitlines()]


def test_the_log_is_text_by_default(operator: Account, job: Job) -> None:
    answer = get(operator, job)
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.content.decode().splitlines() == [
        "2026-01-01T12:01:00.000Z #1 log    one",
        "2026-01-01T12:01:01.000Z #1 log    two",
        "2026-01-01T12:01:00.000Z #1 stderr/error boo",
        "2026-01-01T12:02:00.000Z #2 log    again",
    ]


@pytest.mark.parametrize("asked", ["?format=jsonl", "application/x-ndjson", "application/json"])
def test_json_lines_have_all_fields(operator: Account, job: Job, asked: str) -> None:
    answer = get(operator, job, asked) if asked[0] == "?" else get(operator, job, accept=asked)
    assert answer.headers["Content-Type"] == "application/x-ndjson; charset=utf-8"
    assert json.loads(answer.content.splitlines()[2]) == {
        "id": "3.1",
        "at": "2026-01-01T12:01:00.000+00:00",
        "attempt": 1,
        "stream": "stderr",
        "level": "error",
        "text": "boo",
    }
    assert ids(answer) == ["2.1", "2.2", "3.1", "4.1"]


@pytest.mark.parametrize(("query", "found"), [
    ("attempt=2", ["again"]), ("attempt=3", []), ("tail=2", ["boo", "again"]), ("tail=10000", None),
    ("after=2.1", ["two", "boo", "again"]), ("after=2", ["boo", "again"]), ("after=99", []),
    ("since=2026-01-01T12:01:01Z", ["two", "again"]), ("tail=1&attempt=1", ["boo"]),
    ("after=3.1&tail=5", ["again"]),
])  # fmt: skip
def test_lines_are_chosen_by_the_query(
    operator: Account, job: Job, query: str, found: list[str] | None
) -> None:
    answer = get(operator, job, f"?format=jsonl&{query}")
    assert texts(answer) == (["one", "two", "boo", "again"] if found is None else found)


@pytest.mark.parametrize("query", [
    "tail=0", "tail=10001", "tail=x", "attempt=0", "after=x", "after=1.2.3", "after=-1", "since=yesterday",
    "format=xml", "follow=yes", "lines=5", "tail=1.5", "after=9999999999",
])  # fmt: skip
def test_a_bad_query_is_refused(operator: Account, job: Job, query: str) -> None:
    assert get(operator, job, f"?{query}").status_code == 400


# -- access by role -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("setting", "found"), [
    ("log", ["one", "two", "again"]), ("all", ["one", "two", "boo", "again"]), ("none", None),
])  # fmt: skip
def test_a_tenant_reads_what_the_setting_says(
    acme: Account, job: Job, settings: Any, setting: str, found: list[str] | None
) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, tenant_logs=setting)
    answer = get(acme, job, "?format=jsonl")
    if found is None:
        assert (answer.status_code, answer.json()["code"]) == (403, "logs_hidden")
        assert "DISPATCHER_TENANT_LOGS" in answer.json()["detail"]
    else:
        assert texts(answer) == found
    events = acme.client.get(f"/api/v1/queue/jobs/{job.id}/events").content.decode()
    assert ("boo" in events, '"two"' in events) == ("boo" in (found or ()), "two" in (found or ()))
    assert ('"lines_hidden": 1' in events) == (setting != "all")


def test_another_tenants_job_is_none(job: Job, other: Account) -> None:
    assert get(other, job).status_code == 404


@pytest.mark.parametrize("sees", [False, True])
def test_staff_need_the_permission_for_payloads(job: Job, *, sees: bool) -> None:
    user = User.objects.create_user("ada", is_staff=True)
    names = ["view_job", *(["view_payload"] if sees else [])]
    user.user_permissions.add(*Permission.objects.filter(codename__in=names))
    staff = Client()
    staff.force_login(user)
    answer = staff.get(f"/api/v1/queue/jobs/{job.id}/logs")
    assert answer.status_code == (200 if sees else 403)
    assert (b"boo" in answer.content) == sees
    events = staff.get(f"/api/v1/queue/jobs/{job.id}/events").content
    assert (b"boo" in events) == sees
