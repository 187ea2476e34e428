"""The attempts that get the evidence of a closed quarantine."""

from __future__ import annotations

from typing import Any

import pytest

from gpus.models import QuarantinedSlot
from gpus.registry.quarantine import close_quarantine
from jobs.domain.states import AttemptState
from jobs.models import Attempt
from tests.support.queue_harness import QueueHarness, queue

__all__ = ["queue"]
pytestmark = pytest.mark.database
PROOF = "the server restarted"


def attempt(queue: QueueHarness, name: str, **values: Any) -> Attempt:
    values = {"state": AttemptState.LOST, "finished_at": queue.clock.now()} | values
    return Attempt.objects.create(
        id=name, job=queue.job(push=False), number=1, server="gpu-1", slot=0, model="m",
        started_at=queue.clock.now(), **values,
    )  # fmt: skip


def row(queue: QueueHarness, attempt_id: str, follower: str = "") -> QuarantinedSlot:
    now = queue.clock.now()
    return QuarantinedSlot.objects.create(
        server_id="gpu-1", slot=0, attempt_id=attempt_id, follower_attempt_id=follower, reason="lost",
        since=now, until=now,
    )  # fmt: skip


def evidence(name: str) -> str:
    return Attempt.objects.get(id=name).evidence


@pytest.fixture(autouse=True)
def server(queue: QueueHarness) -> None:
    queue.server()


def test_the_attempt_and_its_follower_get_the_evidence(queue: QueueHarness) -> None:
    attempt(queue, "a")
    attempt(queue, "b")
    attempt(queue, "other")
    assert close_quarantine(row(queue, "a", "b"), at=queue.clock.now(), evidence=PROOF)
    assert (evidence("a"), evidence("b"), evidence("other")) == (PROOF, PROOF, "")


def test_a_follower_with_a_quarantine_of_its_own_waits_for_its_own_proof(queue: QueueHarness) -> None:
    attempt(queue, "a")
    attempt(queue, "b")
    own = row(queue, "b")
    close_quarantine(row(queue, "a", "b"), at=queue.clock.now(), evidence=PROOF)
    assert (evidence("a"), evidence("b")) == (PROOF, "")
    close_quarantine(own, at=queue.clock.now(), evidence="later")
    assert evidence("b") == "later"


def test_a_live_a_cleanly_ended_and_a_proven_attempt_keep_their_own_evidence(queue: QueueHarness) -> None:
    attempt(queue, "clean", state=AttemptState.COMPLETED, slot_freed=True)
    attempt(queue, "proven", evidence="the server confirmed the cancel")
    attempt(queue, "lives", state=AttemptState.SENT, finished_at=None)
    for name in ("clean", "proven", "lives"):
        close_quarantine(row(queue, name), at=queue.clock.now(), evidence=PROOF)
    assert (evidence("clean"), evidence("lives")) == ("", "")
    assert evidence("proven") == "the server confirmed the cancel"


def test_a_quarantine_is_closed_once(queue: QueueHarness) -> None:
    attempt(queue, "a")
    closed = row(queue, "a")
    assert close_quarantine(closed, at=queue.clock.now(), evidence=PROOF)
    assert not close_quarantine(closed, at=queue.clock.now(), evidence="freed by user:ada")
    assert evidence("a") == PROOF
