"""Who would rather be refused than wait: is a slot free, and is there one at all."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError
from django.utils import timezone

from foundation.database import statements
from gpus.models import ModelConfig, Server
from jobs.models import IdempotencyKey, Job
from tests.support.factories import make_server

from .conftest import Account, World, make_model
from .test_bad_input import problem
from .test_limits import BATCH, JOB, REJECT, limit, server, submit

pytestmark = pytest.mark.sqlite_only

__all__ = ["server"]


def test_who_would_not_wait_is_refused_and_nothing_is_stored(
    acme: Account, server: Server, world: World
) -> None:
    refused = submit(acme, REJECT, HTTP_IDEMPOTENCY_KEY="k")
    told = problem(refused, 503, "busy")
    assert told["retryable"] is True
    assert refused["Retry-After"]
    assert not Job.objects.exists()
    assert not IdempotencyKey.objects.exists()
    world.leases.free_slots = 1
    accepted = submit(acme, REJECT, HTTP_IDEMPOTENCY_KEY="k")
    assert (accepted.status_code, accepted.json()["outcome"]) == (202, "leased")


@pytest.mark.parametrize("change", [
    {"healthy": False}, {"desired": "off"}, {"desired": "draining"}, {"slots": 0},
])  # fmt: skip
def test_no_server_is_another_answer_than_no_free_slot(
    acme: Account, server: Server, world: World, change: dict[str, Any]
) -> None:
    assert submit(acme).json()["wait_reason"] == "busy"
    for name, value in change.items():
        setattr(server, name, value)
    server.save()
    problem(submit(acme, REJECT), 503, "no_capacity")
    told = submit(acme, JOB | {"if_busy": "queue"}).json()
    assert (told["outcome"], told["wait_reason"], told["starts_in"]) == ("queued", "no_capacity", None)


def test_circuits_that_keep_a_model_from_every_server_are_no_capacity(
    acme: Account, server: Server, world: World
) -> None:
    world.leases.failing = frozenset({"zimg"})
    problem(submit(acme, REJECT), 503, "no_capacity")
    told = submit(acme).json()
    assert (told["outcome"], told["wait_reason"], told["starts_in"]) == ("queued", "no_capacity", None)


def test_a_server_that_was_not_looked_at_yet_is_no_missing_one(
    acme: Account, zimg: ModelConfig, world: World
) -> None:
    make_server(model=zimg)
    assert submit(acme).json()["wait_reason"] == "busy"


def test_without_redis_nobody_can_say_whether_a_slot_is_free(
    acme: Account, server: Server, world: World
) -> None:
    world.leases.away = True
    refused = submit(acme, REJECT)
    problem(refused, 503, "leasing_unavailable")
    assert refused["Retry-After"] == "5"
    assert submit(acme).json()["wait_reason"] is None, "nobody knows"
    assert Job.objects.count() == 1


def test_a_batch_that_would_not_wait_gets_as_many_as_are_free(
    acme: Account, server: Server, world: World
) -> None:
    world.leases.free_slots = 2
    answer = acme.client.post(BATCH, {"jobs": [REJECT] * 3}, format="json").json()["jobs"]
    assert [item.get("outcome", item.get("code")) for item in answer] == ["leased", "leased", "busy"]


def test_a_tenant_that_may_run_no_more_is_refused_whatever_is_free(
    acme: Account, server: Server, world: World
) -> None:
    world.leases.free_slots, world.leases.most_running = 9, 1
    answer = acme.client.post(BATCH, {"jobs": [REJECT] * 2}, format="json").json()["jobs"]
    assert [item.get("outcome", item.get("code")) for item in answer] == ["leased", "tenant_running_full"]
    assert (answer[1]["status"], answer[1]["retry_after_seconds"]) == (429, 60)
    world.leases.most_running = 0
    refused = submit(acme, REJECT)
    told = problem(refused, 429, "tenant_running_full")
    assert (told["retryable"], refused["Retry-After"]) == (True, "60")


def test_who_would_wait_takes_a_slot_from_who_would_not(acme: Account, server: Server, world: World) -> None:
    world.leases.free_slots = 1
    answer = acme.client.post(BATCH, {"jobs": [JOB, REJECT]}, format="json").json()["jobs"]
    assert [item.get("outcome", item.get("code")) for item in answer] == ["leased", "busy"]


def test_of_a_job_for_later_it_is_not_asked(acme: Account, server: Server, world: World) -> None:
    later = (timezone.now() + timedelta(hours=1)).isoformat()
    accepted = submit(acme, REJECT | {"run_at": later})
    assert (accepted.status_code, accepted.json()["outcome"]) == (202, "scheduled")
    world.leases.free_slots = 1
    answer = acme.client.post(BATCH, {"jobs": [REJECT | {"run_at": later}, REJECT]}, format="json")
    assert [item["outcome"] for item in answer.json()["jobs"]] == ["scheduled", "leased"]


def test_who_is_refused_for_want_of_room_takes_no_slot(
    acme: Account, server: Server, world: World, zimg: ModelConfig
) -> None:
    make_model("flux", max_queued=0)
    make_server("gpu-2", model=ModelConfig.objects.get(name="flux"), healthy=True)
    limit(acme, max_queued=1)
    world.leases.free_slots, world.leases.most_running = 1, 1
    answer = acme.client.post(BATCH, {"jobs": [REJECT | {"model": "flux"}, REJECT]}, format="json")
    told = [item.get("outcome", item.get("code")) for item in answer.json()["jobs"]]
    assert told == ["model_queue_full", "leased"]


def test_a_race_for_a_key_takes_one_slot(
    acme: Account, server: Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try finds its key taken when it commits; the second one counts anew."""
    world.leases.free_slots = 1
    write, raced = statements.write, []

    def race(rows: Any) -> None:
        if not raced:
            raced.append(True)
            raise IntegrityError("taken meanwhile")
        write(rows)

    monkeypatch.setattr(statements, "write", race)
    assert submit(acme, REJECT, HTTP_IDEMPOTENCY_KEY="k").json().get("outcome") == "leased"
    assert raced
