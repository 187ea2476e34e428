"""`if_busy: reject`: a submit is refused instead of queued without a free slot."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError
from django.utils import timezone

from foundation.database import statements
from gpus.models import ModelConfig, Server
from jobs.models import IdempotencyKey, Job
from tests.support.api_harness import Account, ApiHarness, make_model
from tests.support.factories import make_server
from tests.support.limits import BATCH, JOB, REJECT, limit, server, submit
from tests.support.problems import problem

__all__ = ["server"]


def test_a_submit_that_does_not_wait_is_refused_and_not_stored(
    acme: Account, server: Server, api: ApiHarness
) -> None:
    refused = submit(acme, REJECT, HTTP_IDEMPOTENCY_KEY="k")
    body = problem(refused, 503, "busy")
    assert body["retryable"] is True
    assert refused["Retry-After"]
    assert not Job.objects.exists()
    assert not IdempotencyKey.objects.exists()
    api.leases.free_slots = 1
    accepted = submit(acme, REJECT, HTTP_IDEMPOTENCY_KEY="k")
    assert (accepted.status_code, accepted.json()["outcome"]) == (202, "leased")


@pytest.mark.parametrize("change", [
    {"healthy": False}, {"desired": "off"}, {"desired": "draining"}, {"slots": 0},
])  # fmt: skip
def test_a_missing_server_and_a_missing_slot_have_different_codes(
    acme: Account, server: Server, api: ApiHarness, change: dict[str, Any]
) -> None:
    assert submit(acme).json()["wait_reason"] == "busy"
    for name, value in change.items():
        setattr(server, name, value)
    server.save()
    problem(submit(acme, REJECT), 503, "no_capacity")
    body = submit(acme, JOB | {"if_busy": "queue"}).json()
    assert (body["outcome"], body["wait_reason"], body["starts_in"]) == ("queued", "no_capacity", None)


def test_open_circuits_on_all_servers_count_as_no_capacity(
    acme: Account, server: Server, api: ApiHarness
) -> None:
    api.leases.failing = frozenset({"zimg"})
    problem(submit(acme, REJECT), 503, "no_capacity")
    body = submit(acme).json()
    assert (body["outcome"], body["wait_reason"], body["starts_in"]) == ("queued", "no_capacity", None)


def test_a_server_without_a_probe_counts_as_capacity(
    acme: Account, zimg: ModelConfig, api: ApiHarness
) -> None:
    make_server(model=zimg)
    assert submit(acme).json()["wait_reason"] == "busy"


def test_without_redis_the_number_of_free_slots_is_unknown(
    acme: Account, server: Server, api: ApiHarness
) -> None:
    api.leases.away = True
    refused = submit(acme, REJECT)
    problem(refused, 503, "leasing_unavailable")
    assert refused["Retry-After"] == "5"
    assert submit(acme).json()["wait_reason"] is None, "the number of free slots is unknown"
    assert Job.objects.count() == 1


def test_a_batch_that_does_not_wait_gets_the_free_slots(
    acme: Account, server: Server, api: ApiHarness
) -> None:
    api.leases.free_slots = 2
    answer = acme.client.post(BATCH, {"jobs": [REJECT] * 3}, format="json").json()["jobs"]
    assert [item.get("outcome", item.get("code")) for item in answer] == ["leased", "leased", "busy"]


def test_a_tenant_at_max_running_is_refused_despite_free_slots(
    acme: Account, server: Server, api: ApiHarness
) -> None:
    api.leases.free_slots, api.leases.most_running = 9, 1
    answer = acme.client.post(BATCH, {"jobs": [REJECT] * 2}, format="json").json()["jobs"]
    assert [item.get("outcome", item.get("code")) for item in answer] == ["leased", "tenant_running_full"]
    assert (answer[1]["status"], answer[1]["retry_after_seconds"]) == (429, 60)
    api.leases.most_running = 0
    refused = submit(acme, REJECT)
    body = problem(refused, 429, "tenant_running_full")
    assert (body["retryable"], refused["Retry-After"]) == (True, "60")


def test_a_waiting_submit_takes_a_slot_from_one_that_does_not_wait(
    acme: Account, server: Server, api: ApiHarness
) -> None:
    api.leases.free_slots = 1
    answer = acme.client.post(BATCH, {"jobs": [JOB, REJECT]}, format="json").json()["jobs"]
    assert [item.get("outcome", item.get("code")) for item in answer] == ["leased", "busy"]


def test_a_scheduled_job_is_not_checked_for_free_slots(
    acme: Account, server: Server, api: ApiHarness
) -> None:
    later = (timezone.now() + timedelta(hours=1)).isoformat()
    accepted = submit(acme, REJECT | {"run_at": later})
    assert (accepted.status_code, accepted.json()["outcome"]) == (202, "scheduled")
    api.leases.free_slots = 1
    answer = acme.client.post(BATCH, {"jobs": [REJECT | {"run_at": later}, REJECT]}, format="json")
    assert [item["outcome"] for item in answer.json()["jobs"]] == ["scheduled", "leased"]


def test_a_submit_refused_for_a_full_queue_takes_no_slot(
    acme: Account, server: Server, api: ApiHarness, zimg: ModelConfig
) -> None:
    make_model("flux", max_queued=0)
    make_server("gpu-2", model=ModelConfig.objects.get(name="flux"), healthy=True)
    limit(acme, max_queued=1)
    api.leases.free_slots, api.leases.most_running = 1, 1
    answer = acme.client.post(BATCH, {"jobs": [REJECT | {"model": "flux"}, REJECT]}, format="json")
    body = [item.get("outcome", item.get("code")) for item in answer.json()["jobs"]]
    assert body == ["model_queue_full", "leased"]


def test_a_race_for_a_key_takes_one_slot(
    acme: Account, server: Server, api: ApiHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try finds its key taken at the commit; the second one counts again."""
    api.leases.free_slots = 1
    write, raced = statements.write, []

    def race(rows: Any) -> None:
        if not raced:
            raced.append(True)
            raise IntegrityError("taken meanwhile")
        write(rows)

    monkeypatch.setattr(statements, "write", race)
    assert submit(acme, REJECT, HTTP_IDEMPOTENCY_KEY="k").json().get("outcome") == "leased"
    assert raced
