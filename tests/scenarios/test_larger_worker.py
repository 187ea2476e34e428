"""A job that no worker is large enough for waits, says why, and runs on a larger one that joins later."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.large_models import LARGE_MB, SMALL_MB
from tests.scenarios.pinned_worker import PinnedWorker
from tests.support.system.running import System
from tests.support.waiting import wait_for

pytestmark = pytest.mark.scenario
MODEL = "pinned-large"


def test_a_job_that_no_worker_is_large_enough_for_waits_for_a_larger_one(
    system: System, tmp_path: Path
) -> None:
    workers = [worker(system, "small-box", tmp_path, SMALL_MB).wait()]
    try:
        job_id = system.tenant.submit(MODEL, {"n": 1}, max_retries=0)
        reason = wait_for(lambda: too_large(system, job_id), what="the reason")
        assert "needs 800 MB" in reason["message"]
        tried = len(system.tenant.job(job_id)["attempts"])
        with pytest.raises(AssertionError, match="no_capacity"):
            system.tenant.submit(MODEL, {}, if_busy="reject")
        assert "no server is large enough" in system.manage("doctor", check=False)

        workers.append(worker(system, "large-box", tmp_path, LARGE_MB).wait())
        job = system.tenant.finished(job_id)
        assert job["status"] == "completed"
        servers = [attempt["server"] for attempt in job["attempts"]]
        assert servers == ["small-box"] * tried + ["large-box"]
        assert tried <= 2, "it is not tried again and again"
    finally:
        for one in workers:
            one.kill()


def worker(system: System, name: str, folder: Path, budget_mb: int) -> PinnedWorker:
    return PinnedWorker(system, name, folder, models="tests.scenarios.large_models", budget_mb=budget_mb)


def too_large(system: System, job_id: str) -> dict[str, str] | None:
    assert system.tenant.job(job_id)["status"] != "failed"
    reasons = system.tenant.ask("GET", f"/queue/jobs/{job_id}/explain")["reasons"]
    return reasons[0] if reasons[0]["code"] == "too_large" else None
