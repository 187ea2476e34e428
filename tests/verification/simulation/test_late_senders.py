"""A full server is the dispatcher's fault, unless a sender could not be stopped."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from django.conf import settings

from foundation.ids import new_id
from verification.simulation import world
from verification.simulation.active_faults import ActiveFaults
from verification.simulation.gpu import GpuServer, RunRecord, origin
from verification.simulation.gpu_link import GpuLink
from verification.simulation.redis_link import RedisServer
from verification.simulation.scheduler import START, Process, Scheduler

FIRST, SECOND = new_id(START.timestamp()), new_id(START.timestamp() + 1)
"""Attempts, by when they were claimed."""
LEASE_SECONDS = settings.DISPATCHER.lease_seconds


def sender(link: GpuLink, attempt: str, fence: int, *, seconds: float = 5.0) -> Callable[[], object]:
    headers = {"Idempotency-Key": attempt, "X-Slot": "gpu/0", "X-Fence": str(fence)}
    return request(
        link, "POST", "run", {"X-Attempt": attempt, **headers}, json.dumps({"seconds": seconds}).encode()
    )


def poll(link: GpuLink, attempt: str) -> Callable[[], object]:
    return request(link, "GET", "status/1", {"X-Attempt": attempt}, None)


def request(
    link: GpuLink, method: str, path: str, headers: Mapping[str, str], body: bytes | None
) -> Callable[[], object]:
    return lambda: link.request(
        method,
        f"{origin('gpu')}/{path}",
        headers={"X-Job-Id": f"job of {headers['X-Attempt']}", **headers},
        body=body,
        connect_timeout_seconds=5.0,
        deadline_seconds=600.0,
        max_bytes=1000,
    )


@pytest.mark.parametrize(
    ("stood_still", "is_excused"), [(LEASE_SECONDS + 1.0, True), (LEASE_SECONDS - 1.0, False)]
)
def test_a_sender_that_was_stopped_for_a_lease_is_excused(stood_still: float, is_excused: bool) -> None:
    """Its lease has expired, and the next one's request comes a moment after its own."""
    scheduler, chance = Scheduler(1), random.Random(1)
    server = GpuServer("gpu", scheduler, chance, slots=1, is_async=False)
    link = GpuLink(scheduler, ActiveFaults(chance), {"gpu": server})
    stopped = Process("stopped")
    scheduler.spawn(stopped, sender(link, FIRST, 1))
    scheduler.spawn(Process("nemesis"), lambda: scheduler.stop(stopped))
    scheduler.run(stood_still)
    assert server.running() == []
    scheduler.resume(stopped)
    scheduler.run(stood_still + 1.0)
    assert [one.attempt_id for one in server.running()] == [FIRST]
    scheduler.spawn(Process("other"), sender(link, SECOND, 2))
    scheduler.run(stood_still + 2.0)
    scheduler.end()
    assert (server.oversubscribed == []) is is_excused
    assert server.late_senders == is_excused


def test_a_stopped_poll_is_no_excuse() -> None:
    """Its run began in time, so its slot must not have been reused."""
    scheduler, chance = Scheduler(1), random.Random(1)
    server = GpuServer("gpu", scheduler, chance, slots=1, is_async=True)
    link = GpuLink(scheduler, ActiveFaults(chance), {"gpu": server})
    polls = Process("polls")
    scheduler.spawn(Process("starts"), sender(link, FIRST, 1, seconds=100))
    scheduler.run(1.0)
    scheduler.spawn(polls, poll(link, FIRST))
    scheduler.spawn(Process("nemesis"), lambda: scheduler.stop(polls))
    scheduler.run(LEASE_SECONDS + 2.0)
    scheduler.resume(polls)
    scheduler.run(LEASE_SECONDS + 3.0)
    scheduler.spawn(Process("other"), sender(link, SECOND, 2))
    scheduler.run(LEASE_SECONDS + 4.0)
    scheduler.end()
    assert len(server.oversubscribed) == 1


@pytest.mark.parametrize(("anonymous", "is_known", "is_excused"), [
    (True, False, True),
    (True, True, False),
    (False, False, False),
])  # fmt: skip
def test_a_run_without_a_row_excuses_a_server_that_names_no_jobs(
    anonymous: bool, is_known: bool, is_excused: bool
) -> None:
    scheduler, chance = Scheduler(1), random.Random(1)
    server = GpuServer("gpu", scheduler, chance, slots=1, is_async=False, anonymous=anonymous)
    server.only_here_known = lambda ran: ran.sender == "forgotten" and not is_known
    link = GpuLink(scheduler, ActiveFaults(chance), {"gpu": server})
    scheduler.spawn(Process("forgotten"), sender(link, FIRST, 1, seconds=100))
    scheduler.run(1.0)
    scheduler.spawn(Process("other"), sender(link, SECOND, 2))
    scheduler.run(2.0)
    scheduler.end()
    assert (server.oversubscribed == []) is is_excused


def flushed(redis: RedisServer) -> None:
    redis.flush()


def restarted(redis: RedisServer) -> None:
    redis.restart(empty=False)


def failed_over(redis: RedisServer) -> None:
    redis.fail_over()


Events = Sequence[tuple[str, int] | Callable[[RedisServer], None]]
OLDER, NEWER = (FIRST, 1), (SECOND, 2)
"""Claims of one slot: attempt and fence."""


@pytest.mark.parametrize("lost", [flushed, restarted, failed_over])
def test_a_request_whose_lease_was_lost_with_the_index_is_excused(
    lost: Callable[[RedisServer], None],
) -> None:
    """It waited in a hung server, which reads the request of the slot's next claim before it."""
    server = serve_in_turn(NEWER, OLDER, after=[OLDER, lost, NEWER])
    assert server.refused_fences == []
    assert [one.attempt_id for one in server.ran] == [SECOND]
    assert server.late_senders == 1


@pytest.mark.parametrize("events", [
    [OLDER, NEWER],
    [flushed, OLDER, NEWER],
    [OLDER, NEWER, flushed],
    [flushed, OLDER, NEWER, restarted],
], ids=["no loss", "before both claims", "after both claims", "before and after"])  # fmt: skip
def test_a_loss_of_the_index_excuses_a_refused_fence_only_between_the_two_claims(events: Events) -> None:
    """The older lease was still there when its slot was granted again."""
    server = serve_in_turn(NEWER, OLDER, after=events)
    (refused,) = server.refused_fences
    assert f"refused fence 1 of {FIRST}" in refused


def test_a_later_claim_with_a_lower_fence_is_no_late_request() -> None:
    """Fences fell, even if Redis has lost the index in between."""
    server = serve_in_turn((FIRST, 2), (SECOND, 1), after=[(FIRST, 2), flushed, (SECOND, 1)])
    (refused,) = server.refused_fences
    assert f"refused fence 1 of {SECOND}" in refused


def test_a_claim_that_redis_carried_out_twice_was_made_once() -> None:
    """Its second reply comes from an index that was lost before."""
    server = serve_in_turn(NEWER, OLDER, after=[OLDER, NEWER, flushed, NEWER])
    assert len(server.refused_fences) == 1


def serve_in_turn(*requests: tuple[str, int], after: Events) -> GpuServer:
    """Let a server read requests in this order: attempt and fence, of one slot. after: what happened before
    in Redis: claims, and losses of its index."""
    scheduler, chance = Scheduler(1), random.Random(1)
    server = GpuServer("gpu", scheduler, chance, slots=2, is_async=False)
    redis = RedisServer(Mock(), scheduler, ActiveFaults(chance))
    server.index_lost_between = redis.lost_index_between
    for event in after:
        if isinstance(event, tuple):
            scheduler.spawn(Process("worker"), partial(claim, redis, *event))
            scheduler.run(scheduler.now + 0.1)
        else:
            event(redis)
    link = GpuLink(scheduler, ActiveFaults(chance), {"gpu": server})
    for attempt, fence in requests:
        scheduler.spawn(Process(f"sender of {attempt}"), sender(link, attempt, fence))
        scheduler.run(scheduler.now + 1.0)
    scheduler.end()
    return server


def claim(redis: RedisServer, attempt: str, fence: int) -> None:
    lease = [b"m", b"gpu/0", b"job", attempt.encode(), 1, b"m", b"1", 5, fence, fence, b"1", 0]
    redis.call("main", redis.term, "claim", {}, lambda: lease)


@dataclass
class Remembered:
    """The world's record of a run of worker-1 that began after two seconds."""

    is_dead: bool = True
    index_lost_at: float = 3.0
    has_row: bool = False
    known: dict[str, Process] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.known["worker-1"] = Process("worker-1", alive=not self.is_dead)
        self.redis = SimpleNamespace(index_lost_at=self.index_lost_at)


@pytest.mark.parametrize(("remembered", "is_lost"), [
    (Remembered(), True),
    (Remembered(is_dead=False), False),
    (Remembered(index_lost_at=1.0), False),
    (Remembered(has_row=True), False),
])  # fmt: skip
def test_a_run_is_known_while_its_worker_its_lease_or_its_row_is_there(
    remembered: Remembered, is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "has_attempt", lambda attempt_id: remembered.has_row)
    ran = RunRecord("job", FIRST, began=2.0, sender="worker-1")
    assert world.World._only_server_knows(cast(Any, remembered), ran) is is_lost
