"""The attempts that get the evidence of a closed quarantine."""

from __future__ import annotations

from typing import Any

import pytest

from gpus.models import QuarantinedSlot
from gpus.registry.quarantine import close_quarantine
from jobs.domain.states import AttemptState
from jobs.models import Attempt
from tests.support.queue_world import QueueWorld, world

__all__ = ["world"]
pytestmark = pytest.mark.database
PROOF = "the server restarted"


def attempt(world: QueueWorld, name: str, **values: Any) -> Attempt:
    values = {"state": AttemptState.LOST, "finished_at": world.clock.now()} | values
    return Attempt.objects.create(
        id=name, job=world.job(push=False), number=1, server="gpu-1", slot=0, model="m",
        started_at=world.clock.now(), **values,
    )  # fmt: skip


def row(world: QueueWorld, attempt_id: str, follower: str = "") -> QuarantinedSlot:
    now = world.clock.now()
    return QuarantinedSlot.objects.create(
        server_id="gpu-1", slot=0, attempt_id=attempt_id, follower_attempt_id=follower, reason="lost",
        since=now, until=now,
    )  # fmt: skip


def evidence(name: str) -> str:
    return Attempt.objects.get(id=name).evidence


@pytest.fixture(autouse=True)
def server(world: QueueWorld) -> None:
    world.server()


def test_the_attempt_and_its_follower_get_the_evidence(world: QueueWorld) -> None:
    attempt(world, "a")
    attempt(world, "b")
    attempt(world, "other")
    assert close_quarantine(row(world, "a", "b"), at=world.clock.now(), evidence=PROOF)
    assert (evidence("a"), evidence("b"), evidence("other")) == (PROOF, PROOF, "")


def test_a_follower_with_a_quarantine_of_its_own_waits_for_its_own_proof(world: QueueWorld) -> None:
    attempt(world, "a")
    attempt(world, "b")
    own = row(world, "b")
    close_quarantine(row(world, "a", "b"), at=world.clock.now(), evidence=PROOF)
    assert (evidence("a"), evidence("b")) == (PROOF, "")
    close_quarantine(own, at=world.clock.now(), evidence="later")
    assert evidence("b") == "later"


def test_a_live_a_cleanly_ended_and_a_proven_attempt_keep_their_own_evidence(world: QueueWorld) -> None:
    attempt(world, "clean", state=AttemptState.COMPLETED, slot_freed=True)
    attempt(world, "proven", evidence="the server confirmed the cancel")
    attempt(world, "lives", state=AttemptState.SENT, finished_at=None)
    for name in ("clean", "proven", "lives"):
        close_quarantine(row(world, name), at=world.clock.now(), evidence=PROOF)
    assert (evidence("clean"), evidence("lives")) == ("", "")
    assert evidence("proven") == "the server confirmed the cancel"


def test_a_quarantine_is_closed_once(world: QueueWorld) -> None:
    attempt(world, "a")
    closed = row(world, "a")
    assert close_quarantine(closed, at=world.clock.now(), evidence=PROOF)
    assert not close_quarantine(closed, at=world.clock.now(), evidence="freed by user:ada")
    assert evidence("a") == PROOF
