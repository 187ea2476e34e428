"""Who would rather be refused than wait: is a slot free, and is there one at all."""

from __future__ import annotations

from typing import Any

import pytest

from gpus.models import ModelConfig, Server
from jobs.models import IdempotencyKey, Job
from tests.builders import make_server

from .conftest import Account, World
from .test_bad_input import problem
from .test_limits import BATCH, JOB, REJECT, nothing_remembered, server, submit

__all__ = ["nothing_remembered", "server"]


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
    assert (told["outcome"], told["wait_reason"]) == ("queued", "no_capacity")


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
