"""The sweep `cancelling`: CANCELLED promises a free GPU; without a proof the job stays CANCELLING."""

from __future__ import annotations

import pytest

from gpus.models import QuarantinedSlot, Server
from gpus.protocol import Lease
from jobs.domain.states import AttemptState, JobState
from jobs.models import Attempt, Event, Job
from jobs.operations.jobs import CancelOutcome, cancel_job
from jobs.sweeps import cancelling, deadlines, expired_leases
from tests.support.queue_harness import LEASE_SECONDS, QueueHarness


@pytest.fixture
def lost(queue: QueueHarness) -> Lease:
    """A running job with a requested cancel whose worker died."""
    queue.server(max_run_seconds=100.0)
    queue.job(callback_url="https://example.com/hook")
    lease = queue.claim()
    assert cancel_job(lease.job_id, ports=queue.ports) is CancelOutcome.REQUESTED
    queue.clock.advance(LEASE_SECONDS + 0.1)
    assert expired_leases.sweep(queue.ports).repaired == 1
    return lease


def job() -> Job:
    return Job.objects.get()


def test_without_a_proof_the_job_is_cancelling_and_its_slot_in_quarantine(
    queue: QueueHarness, lost: Lease
) -> None:
    assert (job().state, job().finished_at, job().error_code) == (JobState.CANCELLING, None, "")
    assert Attempt.objects.get().state == AttemptState.LOST
    assert queue.slot() == "quarantined"
    assert cancelling.sweep(queue.ports).repaired == 0
    assert not job().callbacks.exists()
    assert cancel_job(lost.job_id, ports=queue.ports) is CancelOutcome.REQUESTED, "idempotent"


@pytest.mark.database
def test_the_proof_cancels_the_job_and_is_stored_as_evidence(queue: QueueHarness, lost: Lease) -> None:
    QuarantinedSlot.objects.update(freed_at=queue.clock.now(), evidence="boot id changed")
    assert cancelling.sweep(queue.ports).repaired == 1
    assert (job().state, job().error_code) == (JobState.CANCELLED, "cancelled")
    last = Event.objects.order_by("-seq").first()
    assert last is not None
    assert (last.type, last.data["evidence"]) == ("cancelled", "boot id changed")
    attempt = Attempt.objects.get()
    assert (attempt.evidence, attempt.slot_freed) == ("boot id changed", False), "not by its end"
    assert job().callbacks.count() == 1
    assert cancelling.sweep(queue.ports).looked == 0


def test_a_proof_from_before_the_attempts_end_does_not_count(queue: QueueHarness, lost: Lease) -> None:
    QuarantinedSlot.objects.update(freed_at=queue.clock.now() - (queue.clock.now() - queue.tenant.created_at))
    Attempt.objects.update(finished_at=queue.clock.now())
    queue.clock.advance(50)
    assert cancelling.sweep(queue.ports).repaired == 0


@pytest.mark.database
def test_without_a_quarantine_row_the_run_limit_is_the_proof(queue: QueueHarness, lost: Lease) -> None:
    Server.objects.all().delete()
    queue.clock.advance(99.9)
    assert cancelling.sweep(queue.ports).repaired == 0
    queue.clock.advance(0.2)
    assert cancelling.sweep(queue.ports).repaired == 1
    assert "run limit" in Event.objects.order_by("-seq")[0].data["evidence"]


def test_a_deadline_does_not_change_a_cancelling_job(queue: QueueHarness, lost: Lease) -> None:
    Job.objects.update(deadline_at=queue.clock.now())
    queue.clock.advance(1)
    assert deadlines.sweep(queue.ports).looked == 0
    assert job().state == JobState.CANCELLING


@pytest.mark.database
def test_another_quarantine_of_the_slot_does_not_delay_the_cancel(queue: QueueHarness, lost: Lease) -> None:
    QuarantinedSlot.objects.update(freed_at=queue.clock.now(), evidence="boot id changed")
    QuarantinedSlot.objects.create(
        server=Server.objects.get(),
        slot=0,
        attempt_id="another",
        reason="lost",
        since=queue.clock.now(),
        until=queue.clock.now(),
    )
    assert cancelling.sweep(queue.ports).repaired == 1
    assert job().state == JobState.CANCELLED
