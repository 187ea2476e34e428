"""The submit batcher and the ordinary view respond alike, byte by byte."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from jobs.models import ApiKey, IdempotencyKey, Job
from jobs.operations.tenants import create_key
from tests.jobs.api.submit_batcher.site import JOB, Ask, Site, job, with_headers
from tests.support.api_harness import Account, ApiHarness, account
from tests.support.fake_leases import FakeLeases
from tests.support.limits import limit

pytestmark = pytest.mark.django_db(transaction=True)

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
TEXT = {"content-type": "text/plain"}
DEEP = b'{"model":"zimg","payload":{"a":' + b"[" * 80 + b"]" * 80 + b"}}"


USUAL = {
    "plain": job(),
    "all fields": job(
        priority=True, tags=["b", "a", "b"], metadata={"order": 7, "z": "ä\u2028"}, deadline_seconds=60,
        start_deadline_seconds=2.5, max_retries=0, max_run_seconds=1, if_busy="queue",
    ),
    "nulls": job(priority=None, tags=None, metadata=None, callback_url=None, run_at=None, if_busy=None),
    "for later": job(run_at="2026-03-05T00:00:00+01:00"),
    "just past": job(run_at="2026-03-04T11:59:30Z"),
    "5.0 for a 5": job(priority=5.0, max_retries=2.0),
    "a callback with a name": job(callback_url="http://hooks.example.invalid/"),
    "a literal callback": job(callback_url="http://93.184.216.34/hook"),
    "a forbidden callback": job(callback_url="http://127.0.0.1/hook"),
    "unknown model": job(model="nobody"),
    "full model": job(model="full"),
    "payload against the model's schema": job(model="strict", payload={}),
    "deadlines the wrong way": job(deadline_seconds=1, start_deadline_seconds=2),
    "past": job(run_at="2026-03-04T11:00:00Z"),
    "far ahead": job(run_at="2028-01-01T00:00:00Z"),
    "too long a run": job(max_run_seconds=1e7),
    "with a key": with_headers(idempotency_key="key-1"),
    "prefers to wait, without a gateway": with_headers(prefer="respond-async"),
    "accepts anything": with_headers(accept="*/*"),
    "accepts JSON": with_headers(accept="application/json"),
    "accepts what axios does": with_headers(accept="application/json, text/plain, */*"),
    "JSON with a charset": with_headers(content_type="Application/JSON; charset=utf-8"),
    "bearer in capitals": with_headers(authorization="BEARER {key}"),
    "through proxies": with_headers(x_forwarded_for="8.8.8.8, 10.0.0.1", x_real_ip="1.1.1.1"),
    "no user agent": with_headers(user_agent=None),
    "no JSON": Ask(b"{"),
    "not UTF-8": Ask(b'{"model": "\xff"}'),
    "a list": Ask([JOB]),
    "twice the same name": Ask(b'{"model":"zimg","model":"zimg","payload":{}}'),
    "NaN": Ask(b'{"model":"zimg","payload":{"a":NaN}}'),
    "NUL": Ask(b'{"model":"zimg","payload":{"a":"\\u0000"}}'),
    "half a surrogate pair": Ask(b'{"model":"zimg","payload":{"a":"\\ud800"}}'),
    "too deep": Ask(DEEP),
    "no payload": Ask({"model": "zimg"}),
    "an unknown field": job(surprise=1),
    "wrong types": job(priority="high", tags="a", metadata=[]),
    "too much metadata": job(metadata={"a": "x" * 20_000}),
    "no time": job(run_at="tomorrow"),
    "a newline after the model": job(model="zimg\n"),
}  # fmt: skip
UNUSUAL = {
    "nothing": Ask(b"", {"content-length": "0"}),
    "a long body": job(payload={"prompt": "x" * 65_536}),
    "if busy, reject": job(if_busy="reject"),
    "a schema that refers to itself": job(model="tree"),
    "no credentials": with_headers(authorization=None),
    "unknown key": with_headers(authorization="Bearer aaaaaaaa." + "b" * 32),
    "no key": with_headers(authorization="Bearer x"),
    "another scheme": with_headers(authorization="Basic eDp5"),
    "a bad idempotency key": with_headers(idempotency_key="with space"),
    "an empty idempotency key": with_headers(idempotency_key=""),
    "accepts HTML": with_headers(accept="text/html"),
    "accepts JSON with spaces": with_headers(accept="application/json; indent=4"),
    "another content type": with_headers(content_type="text/plain"),
    "no content type": with_headers(content_type=None),
    "another charset": with_headers(content_type="application/json; charset=latin-1"),
    "a bad host": with_headers(host="a b"),
    "no host": with_headers(host=None),
    "a cookie": with_headers(cookie="sessionid=x"),
    "an underscore": Ask(more=[("idempotency_key", "key-2")]),
    "two of a name": Ask(more=[("user-agent", "another client")]),
    "a query": Ask(query=b"a=b"),
    "GET": Ask(b"", {"content-length": None}, method="GET"),
    "PUT": Ask(method="PUT"),
    "the batch's": Ask(path="/api/v1/queue/submit-batch", body={"jobs": [JOB]}),
    "no route": Ask(path="/api/v1/queue/submits"),
}


_OF_INTEREST = ("request_started", "request_finished", "job_submitted")


def begin_anew(api: ApiHarness) -> None:
    Job.objects.all().delete()
    api.leases = FakeLeases()
    api.limit_caches.clear()


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The log lines of requests and jobs, without values that differ per request."""
    result = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    kept = [line for line in result if line["event"] in _OF_INTEREST]
    caplog.clear()
    return [
        {name: "<id>" if name in ("request_id", "job_id") else value for name, value in line.items()
         if name != "timestamp"}
        for line in kept
    ]  # fmt: skip


@pytest.mark.parametrize("name", [*USUAL, *UNUSUAL])
def test_both_paths_respond_alike(
    acme: Account, api: ApiHarness, both: tuple[Site, Site], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    caplog.set_level(logging.INFO)
    ask = (USUAL | UNUSUAL)[name]
    if (given := ask.headers.get("authorization")) and "{key}" in given:
        ask = with_headers(authorization=given.format(key=acme.key))
    found, logged = [], []
    for site in both:
        begin_anew(api)
        (result,) = site.ask(acme.key, ask)
        found.append(result.plain())
        logged.append(lines(caplog))
    assert found[0] == found[1]
    assert logged[0] == logged[1]
    assert both[0].viewed == 1
    assert both[1].viewed == (name in UNUSUAL), "the request took the other path"


@pytest.mark.parametrize("more", [
    [("idempotency-key", "a"), ("idempotency-key", "b")],
    [("idempotency-key", "a"), ("idempotency_key", "a")],
    [("authorization", "Bearer x")],
], ids=str)  # fmt: skip
def test_a_key_that_comes_twice_is_refused(
    acme: Account, both: tuple[Site, Site], more: list[tuple[str, str]]
) -> None:
    for site in both:
        responses = site.ask(acme.key, Ask(more=more))[0]
        assert (responses.status, responses.json()["code"]) == (400, "repeated_header")
    assert not Job.objects.exists()


@pytest.mark.parametrize("kind", [ApiKey.Kind.OPERATOR, ApiKey.Kind.TENANT])
@pytest.mark.parametrize(("scopes", "models"), [
    (["submit"], None), (["submit", "read"], ["zimg"]), (["submit"], ["full"]), (["read"], None),
])  # fmt: skip
def test_both_paths_check_the_keys_scopes(
    api: ApiHarness, both: tuple[Site, Site], kind: Any, scopes: Any, models: Any
) -> None:
    _, key = create_key(account("acme").tenant, kind, scopes=scopes, allowed_models=models)
    found = []
    for site in both:
        begin_anew(api)
        found.append(site.ask(key, Ask())[0].plain())
    assert found[0] == found[1]
    assert found[0][0] == (403 if scopes == ["read"] or models == ["full"] else 202)


def test_a_repeated_request_finds_its_job_and_another_body_is_refused(
    acme: Account, api: ApiHarness, both: tuple[Site, Site]
) -> None:
    asks = [
        with_headers(idempotency_key="a"), with_headers(idempotency_key="a"),
        Ask({**JOB, "priority": 1}, {"idempotency-key": "a"}),
    ]  # fmt: skip
    found = []
    for site in both:
        begin_anew(api)
        responses = [site.ask(acme.key, ask)[0] for ask in asks]
        assert Job.objects.count() == IdempotencyKey.objects.count() == 1
        assert responses[0].json()["job_id"] == responses[1].json()["job_id"]
        found.append([one.plain() for one in responses])
    assert found[0] == found[1]
    assert [one[0] for one in found[0]] == [202, 202, 422]
    assert both[1].viewed == 0


@pytest.mark.parametrize("values", [
    {"submits_per_second": 1.0, "submit_burst": 3}, {"max_queued": 2}, {"max_queued": 0},
    {"daily_gpu_seconds": 0.0}, {"allowed_models": ["full"]}, {"submits_per_second": 0.5},
], ids=str)  # fmt: skip
def test_both_paths_enforce_the_limits_of_a_tenant(
    acme: Account, api: ApiHarness, both: tuple[Site, Site], values: dict[str, Any]
) -> None:
    found = []
    for site in both:
        begin_anew(api)
        limit(acme, **values)
        found.append([site.ask(acme.key, Ask())[0].plain() for _ in range(5)])
    assert found[0] == found[1]
    assert both[1].viewed == 0


def test_without_redis_both_paths_accept_submits(
    acme: Account, api: ApiHarness, both: tuple[Site, Site]
) -> None:
    limit(acme, submits_per_second=1.0)
    found = []
    for site in both:
        begin_anew(api)
        api.leases.away = True
        found.append(site.ask(acme.key, Ask())[0].plain())
    assert found[0] == found[1]
    assert found[0][0] == 202
    assert Job.objects.count() == 1
