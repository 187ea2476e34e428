"""A job's deadline passes while it runs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gpus.leasing.clock import AgreedClocks, ClockWatch
from gpus.runners.base import Accepted
from jobs.domain.states import JobState
from tests.jobs.execution.by_hand import by_hand
from tests.support.fakes import WrongClocks
from tests.support.worker_harness import WorkerHarness, state

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("clocks", "end"), [(AgreedClocks(), JobState.FAILED), (WrongClocks(), JobState.COMPLETED)]
)
def test_a_deadline_stops_a_run_unless_clocks_differ(
    harness: WorkerHarness, clocks: ClockWatch, end: JobState
) -> None:
    hands = by_hand(harness, Accepted("r1"), clock_watch=clocks)
    job = hands.submit(deadline_at=hands.clock.now() + timedelta(seconds=hands.gpu.seconds - 1))
    hands.worker.work("m")
    assert state(job) == end
