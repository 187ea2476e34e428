"""Flower shows long runs before they begin; short ones don't pay for that."""

from __future__ import annotations

import pytest

from gpus.errors import GpuBusy
from gpus.protocol import Lease
from gpus.runners.base import Finished
from tests.jobs.execution.by_hand import OVER, by_hand, run_claimed

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize(("gpu_seconds", "times"), [(5.0, 2), (0.01, 1)])
def test_only_long_runs_are_shown(harness, gpu_seconds: float, times: int):
    hands = by_hand(harness)
    hands.gpu.seconds = gpu_seconds
    shown: list[tuple[Lease, bool]] = []
    hands.process.show_run = lambda lease: shown.append((lease, lease.job_id in hands.gpu.sent))
    for _ in range(2):  # the first one's time is the estimate of the second
        job = hands.submit()
        claimed = hands.worker.claims.claim_next("main", "m", None)
        run_claimed(hands.worker, OVER, claimed)
    assert len(shown) == times, "the first run has no estimate: it is shown"
    assert not any(was_sent for _, was_sent in shown), "before the GPU is asked"
    assert (shown[-1][0].job_id == job.id) == (times == 2)


@pytest.mark.parametrize(
    ("gpu_seconds", "answer", "level"),
    [(0.9, Finished("done"), "DEBUG"), (1.5, Finished("done"), "INFO"), (0.1, GpuBusy(), "INFO")],
    ids=["short", "long", "short and refused"],
)
def test_a_short_completed_run_is_logged_at_debug_level(
    harness, caplog, gpu_seconds: float, answer: Finished | GpuBusy, level: str
):
    hands = by_hand(harness, answer)
    hands.gpu.seconds = gpu_seconds
    hands.submit()
    claimed = hands.worker.claims.claim_next("main", "m", None)
    with caplog.at_level("DEBUG"):
        run_claimed(hands.worker, OVER, claimed)
    [record] = [record for record in caplog.records if "attempt_finished" in str(record.msg)]
    assert record.levelname == level
