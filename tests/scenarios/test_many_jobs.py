"""Hundreds of jobs at once, and the GPU server's own word on what became of them."""

from __future__ import annotations

import pytest

from tests.support.system.running import System
from tests.support.waiting import wait_for

pytestmark = pytest.mark.scenario

JOBS, SLOTS, SECONDS = 400, 8, 0.1


def test_hundreds_of_jobs_on_eight_slots_run_once_each_and_meet_no_busy_server(system: System) -> None:
    server = system.add_server("hundreds", slots=SLOTS)
    ids = system.tenant.submit_batch("hundreds", [{"seconds": SECONDS, "echo": n} for n in range(JOBS)])
    wait_for(lambda: system.tenant.unfinished("hundreds") == 0, seconds=240, what="the end of all jobs")
    server.assert_each_ran_once(ids)
    server.assert_never_full()
    assert system.tenant.job(ids[-1])["result"] == {"echo": {"seconds": SECONDS, "echo": JOBS - 1}}
