"""The judge's findings on rows with a known history."""

from __future__ import annotations

from typing import Any, cast

import pytest

from jobs.domain.states import AttemptState
from jobs.models import Attempt
from jobs.sweeps import expired_leases
from tests.support.queue_harness import QueueHarness, queue
from verification.simulation import world as simulated
from verification.simulation.database import Forgotten
from verification.simulation.judge import blamed
from verification.simulation.scheduler import Process

__all__ = ["queue"]

pytestmark = pytest.mark.django_db


class Known:
    """The part of the simulated world that the judge uses."""

    def __init__(self, process: Process) -> None:
        self.known, self.forgotten = {process.name: process}, Forgotten()


@pytest.mark.parametrize("verdict", expired_leases.LOSS_MESSAGES)
def test_a_run_taken_from_a_worker_that_lived_breaks_the_law(queue: QueueHarness, verdict: str) -> None:
    queue.server()
    queue.job()
    lease = queue.claim()
    worker = Process(Attempt.objects.get().worker)
    at = simulated.START
    Attempt.objects.update(state=AttemptState.LOST, error_message=verdict, finished_at=at)
    known = Known(worker)
    judged = cast(Any, known)
    assert len(list(blamed(judged))) == 1

    known.forgotten.attempts.add(lease.attempt_id)
    assert not list(blamed(judged)), "the database lost what the worker had written"
    known.forgotten.attempts.clear()
    worker.disturbed_at = -1.0
    assert not list(blamed(judged))
