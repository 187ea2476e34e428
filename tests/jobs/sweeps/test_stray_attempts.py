"""The sweep `stray_attempts`: live attempts that are not their job's current one, as after a partly restored
backup."""

from __future__ import annotations

from typing import Any

import pytest

from gpus.models import QuarantinedSlot
from gpus.protocol import Lease
from jobs.domain.states import AttemptState, JobState
from jobs.models import Attempt, Job
from jobs.sweeps import stray_attempts
from tests.support.queue_harness import LEASE_SECONDS, QueueHarness

pytestmark = pytest.mark.database

BACKUPS: list[dict[str, Any]] = [
    {"state": JobState.QUEUED.value, "live_attempt": None},
    {"live_attempt": "01ANOTHERATTEMPT0000000000"},
]


@pytest.fixture
def lease(queue: QueueHarness) -> Lease:
    queue.server()
    queue.job()
    return queue.claim()


@pytest.mark.parametrize("backup", BACKUPS)
def test_a_stray_attempt_ends_and_its_slot_is_quarantined(
    queue: QueueHarness, lease: Lease, backup: dict[str, Any]
) -> None:
    Job.objects.update(**backup)
    assert stray_attempts.sweep(queue.ports).repaired == 0, "a start may be visible in part for a moment"
    queue.clock.advance(LEASE_SECONDS + 1)
    assert stray_attempts.sweep(queue.ports).repaired == 1
    attempt = Attempt.objects.get()
    assert (attempt.state, attempt.counted, attempt.slot_freed) == (AttemptState.LOST, False, False)
    assert QuarantinedSlot.objects.get().attempt_id == attempt.id
    assert queue.slot() == "quarantined"
    assert Job.objects.values("state", "live_attempt", "tries").get() == {
        "state": backup.get("state", JobState.RUNNING.value),
        "live_attempt": backup["live_attempt"],
        "tries": 0,
    }
    assert stray_attempts.sweep(queue.ports).looked == 0


def test_the_jobs_current_attempt_is_left_alone(queue: QueueHarness, lease: Lease) -> None:
    queue.clock.advance(LEASE_SECONDS + 1)
    assert stray_attempts.sweep(queue.ports).looked == 0
    assert Attempt.objects.get().state in Attempt.LIVE


def test_an_attempt_that_has_become_current_is_left_alone(
    queue: QueueHarness, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    Job.objects.update(**BACKUPS[0])
    queue.clock.advance(LEASE_SECONDS + 1)
    found = list(stray_attempts._stray())
    Job.objects.update(state=JobState.RUNNING.value, live_attempt=lease.attempt_id)
    assert not stray_attempts._end(found[0], queue.leases, queue.ports)
    assert Attempt.objects.get().state in Attempt.LIVE
    assert not QuarantinedSlot.objects.exists()
