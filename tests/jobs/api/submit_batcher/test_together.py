"""Submits that come together: one group, and each its own answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dispatcher_project.web.submit_batcher import MOST
from jobs.models import Job, JobTag
from tests.jobs.api.conftest import Account, World
from tests.jobs.api.test_limits import limit

from .site import JOB, Ask, Site, job, with_headers

pytestmark = pytest.mark.django_db(transaction=True)


def test_those_that_come_together_are_answered_together(acme: Account, batcher: Site, world: World) -> None:
    told = batcher.ask(acme.key, *(job(payload={"n": n}, tags=[f"t{n}"]) for n in range(MOST + 10)))
    assert {one.status for one in told} == {202}
    assert batcher.viewed == 0
    assert sum(batcher.groups) == MOST + 10
    assert max(batcher.groups) > 1
    assert max(batcher.groups) <= MOST
    ids = [one.json()["job_id"] for one in told]
    assert len(set(ids)) == MOST + 10 == Job.objects.count() == len(world.leases.line)
    assert [Job.objects.get(id=one).payload for one in ids] == [{"n": n} for n in range(MOST + 10)]
    assert [one.json()["tags"] for one in told] == [[f"t{n}"] for n in range(MOST + 10)]
    assert JobTag.objects.count() == MOST + 10
    assert sorted(one.json()["position"] for one in told) == list(range(1, MOST + 11))


def test_each_client_gets_its_own_answer(acme: Account, other: Account, batcher: Site) -> None:
    keyed = with_headers(idempotency_key="a")
    asks = [
        (acme.key, job()), (other.key, job(priority=9)), (acme.key, Ask(b"{")),
        (other.key, job(model="full")),
        (acme.key, job(model="nobody")), ("nobody's", job()), (other.key, job(if_busy="reject")),
        (acme.key, keyed), (other.key, keyed), (acme.key, keyed),
        (acme.key, Ask(JOB | {"priority": 1}, {"idempotency-key": "a"})),
    ]  # fmt: skip
    told = batcher.ask_as(*asks)
    assert [one.status for one in told] == [202, 202, 400, 429, 422, 401, 503, 202, 202, 202, 422]
    made = [told[at].json()["job_id"] for at in (0, 1, 7, 8, 9)]
    tenants = [Job.objects.get(id=one).tenant_id for one in made]
    assert tenants == [acme.tenant.pk, other.tenant.pk, acme.tenant.pk, other.tenant.pk, acme.tenant.pk]
    assert made[2] == made[4]
    assert Job.objects.count() == 4


def test_a_limit_counts_everybody_in_the_group(acme: Account, other: Account, batcher: Site) -> None:
    limit(acme, max_queued=3)
    told = batcher.ask_as(*[(acme.key, job()), (other.key, job())] * 10)
    statuses = [[one.status for one in told[at::2]] for at in (0, 1)]
    assert [statuses[0].count(202), statuses[0].count(429)] == [3, 7]
    assert statuses[1] == [202] * 10
    assert Job.objects.count() == 13


def test_tokens_of_a_group_are_taken_one_for_each(acme: Account, batcher: Site, world: World) -> None:
    limit(acme, submits_per_second=1.0, submit_burst=5)
    assert world.leases.tokens == {}
    told = batcher.ask(acme.key, *[job()] * 8)
    assert sorted(one.status for one in told) == [202] * 5 + [429] * 3
    left = [dict(one.headers)[b"ratelimit"] for one in told]
    assert [text.split(b";")[1] for text in left[:5]] == [b"r=4", b"r=3", b"r=2", b"r=1", b"r=0"]
    assert all(text == b'"submits";r=0;t=5' for text in left[5:])
    assert all(b"retry-after" in dict(one.headers) for one in told[5:])
    assert Job.objects.count() == 5


def test_tokens_that_are_there_for_all_are_taken_in_one_go(
    acme: Account, batcher: Site, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(acme, submits_per_second=2.0, submit_burst=5)
    asked, take = [], world.leases.take_tokens

    def note(tenant: str, tokens: int, **limits: Any) -> Any:
        asked.append(tokens)
        return take(tenant, tokens, **limits)

    monkeypatch.setattr(world.leases, "take_tokens", note)
    told = batcher.ask(acme.key, *[job()] * 3)
    assert [dict(one.headers)[b"ratelimit"] for one in told] == [
        b'"submits";r=4;t=1', b'"submits";r=3;t=1', b'"submits";r=2;t=2',
    ]  # fmt: skip
    assert asked == [3]


def test_a_scheduled_and_a_queued_job_go_together(acme: Account, batcher: Site, world: World) -> None:
    told = batcher.ask(acme.key, job(), job(run_at="2026-03-05T00:00:00Z"), job())
    assert [one.json()["status"] for one in told] == ["queued", "scheduled", "queued"]
    assert len(world.leases.line) == 2


def test_the_answer_is_json_with_its_length(acme: Account, batcher: Site) -> None:
    (told,) = batcher.ask(acme.key, Ask())
    assert dict(told.headers)[b"content-length"] == str(len(told.body)).encode()
    assert json.loads(told.body)["status"] == "queued"


def test_keys_are_of_their_tenant(batcher: Site, acme: Account, other: Account) -> None:
    told = batcher.ask_as(*[(one.key, with_headers(idempotency_key="a")) for one in (acme, other)])
    assert told[0].json()["job_id"] != told[1].json()["job_id"]
