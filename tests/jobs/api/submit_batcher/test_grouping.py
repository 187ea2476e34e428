"""Concurrent submits: one group, with a response each."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dispatcher_project.web.submit_batcher import MAX_GROUP
from jobs.models import Job, JobTag
from tests.jobs.api.submit_batcher.site import JOB, Ask, Site, job, with_headers
from tests.support.api_harness import Account, ApiHarness
from tests.support.limits import limit

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.database
def test_concurrent_submits_are_handled_as_one_group(acme: Account, batcher: Site, api: ApiHarness) -> None:
    responses = batcher.ask(acme.key, *(job(payload={"n": n}, tags=[f"t{n}"]) for n in range(MAX_GROUP + 10)))
    assert {one.status for one in responses} == {202}
    assert batcher.viewed == 0
    assert sum(batcher.groups) == MAX_GROUP + 10
    assert max(batcher.groups) > 1
    assert max(batcher.groups) <= MAX_GROUP
    ids = [one.json()["job_id"] for one in responses]
    assert len(set(ids)) == MAX_GROUP + 10 == Job.objects.count() == len(api.leases.line)
    assert [Job.objects.get(id=one).payload for one in ids] == [{"n": n} for n in range(MAX_GROUP + 10)]
    assert [one.json()["tags"] for one in responses] == [[f"t{n}"] for n in range(MAX_GROUP + 10)]
    assert JobTag.objects.count() == MAX_GROUP + 10
    assert sorted(one.json()["position"] for one in responses) == list(range(1, MAX_GROUP + 11))


def test_each_client_gets_its_own_response(acme: Account, other: Account, batcher: Site) -> None:
    keyed = with_headers(idempotency_key="a")
    asks = [
        (acme.key, job()), (other.key, job(priority=9)), (acme.key, Ask(b"{")),
        (other.key, job(model="full")),
        (acme.key, job(model="nobody")), ("nobody's", job()), (other.key, job(if_busy="reject")),
        (acme.key, keyed), (other.key, keyed), (acme.key, keyed),
        (acme.key, Ask(JOB | {"priority": 1}, {"idempotency-key": "a"})),
    ]  # fmt: skip
    responses = batcher.ask_as(*asks)
    assert [one.status for one in responses] == [202, 202, 400, 429, 422, 401, 503, 202, 202, 202, 422]
    made = [responses[at].json()["job_id"] for at in (0, 1, 7, 8, 9)]
    tenants = [Job.objects.get(id=one).tenant_id for one in made]
    assert tenants == [acme.tenant.pk, other.tenant.pk, acme.tenant.pk, other.tenant.pk, acme.tenant.pk]
    assert made[2] == made[4]
    assert Job.objects.count() == 4


def test_a_limit_counts_all_submits_of_the_group(acme: Account, other: Account, batcher: Site) -> None:
    limit(acme, max_queued=3)
    responses = batcher.ask_as(*[(acme.key, job()), (other.key, job())] * 10)
    statuses = [[one.status for one in responses[at::2]] for at in (0, 1)]
    assert [statuses[0].count(202), statuses[0].count(429)] == [3, 7]
    assert statuses[1] == [202] * 10
    assert Job.objects.count() == 13


def test_a_group_takes_one_token_per_submit(acme: Account, batcher: Site, api: ApiHarness) -> None:
    limit(acme, submits_per_second=1.0, submit_burst=5)
    assert api.leases.tokens == {}
    responses = batcher.ask(acme.key, *[job()] * 8)
    assert sorted(one.status for one in responses) == [202] * 5 + [429] * 3
    left = [dict(one.headers)[b"ratelimit"] for one in responses]
    assert [text.split(b";")[1] for text in left[:5]] == [b"r=4", b"r=3", b"r=2", b"r=1", b"r=0"]
    assert all(text == b'"submits";r=0;t=5' for text in left[5:])
    assert all(b"retry-after" in dict(one.headers) for one in responses[5:])
    assert Job.objects.count() == 5


def test_tokens_for_the_whole_group_are_taken_in_one_call(
    acme: Account, batcher: Site, api: ApiHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(acme, submits_per_second=2.0, submit_burst=5)
    calls, take = [], api.leases.take_tokens

    def note(tenant: str, tokens: int, **limits: Any) -> Any:
        calls.append(tokens)
        return take(tenant, tokens, **limits)

    monkeypatch.setattr(api.leases, "take_tokens", note)
    responses = batcher.ask(acme.key, *[job()] * 3)
    assert [dict(one.headers)[b"ratelimit"] for one in responses] == [
        b'"submits";r=4;t=1', b'"submits";r=3;t=1', b'"submits";r=2;t=2',
    ]  # fmt: skip
    assert calls == [3]


def test_a_scheduled_and_a_queued_job_share_a_group(acme: Account, batcher: Site, api: ApiHarness) -> None:
    responses = batcher.ask(acme.key, job(), job(run_at="2026-03-05T00:00:00Z"), job())
    assert [one.json()["status"] for one in responses] == ["queued", "scheduled", "queued"]
    assert len(api.leases.line) == 2


def test_the_response_is_json_with_its_length(acme: Account, batcher: Site) -> None:
    (result,) = batcher.ask(acme.key, Ask())
    assert dict(result.headers)[b"content-length"] == str(len(result.body)).encode()
    assert json.loads(result.body)["status"] == "queued"


def test_idempotency_keys_of_a_group_belong_to_their_tenant(
    batcher: Site, acme: Account, other: Account
) -> None:
    responses = batcher.ask_as(*[(one.key, with_headers(idempotency_key="a")) for one in (acme, other)])
    assert responses[0].json()["job_id"] != responses[1].json()["job_id"]
