"""A cancel of a waiting job, with a real index: its ticket is removed first, so that it can't start."""

from __future__ import annotations

import pytest

from jobs import transitions
from jobs.domain.states import JobState
from jobs.models import Attempt
from jobs.operations import jobs
from jobs.operations.jobs import CancelOutcome, cancel_job
from tests.jobs.execution.by_hand import by_hand
from tests.support.factories import make_job
from tests.support.worker_harness import state

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_ticket_of_a_cancelled_job_is_removed(harness):
    hands = by_hand(harness)
    job, other = hands.submit(), hands.submit()
    assert cancel_job(job.id, ports=hands.worker.ports) is CancelOutcome.CANCELLED
    assert harness.leases.has_tickets("m", [job.ticket, other.ticket]) == [False, True]
    assert hands.waiting() == 1
    hands.worker.work("m")
    assert hands.gpu.sent == [other.id]
    assert (state(job), Attempt.objects.filter(job=job).count()) == (JobState.CANCELLED, 0)


def test_the_ticket_is_gone_before_the_row_says_cancelled(harness, monkeypatch):
    """In the other order a worker could claim a job that is cancelled already."""
    hands = by_hand(harness)
    job = hands.submit()
    seen = []
    real = transitions.end_cancelled

    def looking(*given, **named):
        seen.append(hands.waiting())
        return real(*given, **named)

    monkeypatch.setattr(jobs.transitions, "end_cancelled", looking)
    cancel_job(job.id, ports=hands.worker.ports)
    assert seen == [0]


def test_a_job_whose_ticket_was_never_pushed_is_cancelled_at_once(harness):
    """Redis was away when it was submitted: it has no ticket, and no worker holds it."""
    hands = by_hand(harness)
    job = make_job("m", at=hands.clock.now())
    assert cancel_job(job.id, ports=hands.worker.ports) is CancelOutcome.CANCELLED
    assert state(job) == JobState.CANCELLED


@pytest.mark.parametrize("has_ended", [False, True], ids=["leased", "settling"])
def test_a_job_that_a_worker_holds_is_only_asked_to_stop(harness, has_ended):
    """Its row may still say QUEUED: start, or start and end, are on their way to the database."""
    hands = by_hand(harness)
    job = hands.submit()
    hands.writer.at_once = False
    asked = []
    if has_ended:
        hands.worker.work("m")
        asked.append(cancel_job(job.id, ports=hands.worker.ports))
    else:
        hands.gpu.on_start = lambda run: asked.append(cancel_job(job.id, ports=hands.worker.ports))
        hands.worker.work("m")
    assert asked == [CancelOutcome.REQUESTED]
    assert state(job) == JobState.QUEUED
    hands.writer.commit()
    assert state(job) == JobState.COMPLETED, "a success that arrives first wins"
