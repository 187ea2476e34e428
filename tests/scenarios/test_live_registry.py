"""The registry changes while everything runs: nothing is restarted."""

from __future__ import annotations

import pytest

from tests.support.system.gates import open_gate
from tests.support.system.gpu_server import GpuServer
from tests.support.system.running import System
from tests.support.waiting import wait_for

pytestmark = pytest.mark.scenario


def test_a_model_registered_now_is_served_by_the_worker_that_runs(system: System) -> None:
    worker = system.pid("gpu_worker")
    system.add_server("newcomer")
    job = system.tenant.finished(system.tenant.submit("newcomer", {"n": 1}))
    assert job["status"] == "completed"
    assert system.pid("gpu_worker") == worker


def test_slots_go_up_and_down_at_once_and_running_jobs_finish(system: System) -> None:
    server = system.add_server("resized", slots=3)
    system.resize(server, 1)
    ids = [system.tenant.submit("resized", {"gate": f"resized-{n}"}) for n in range(6)]
    wait_for(lambda: server.running() == ids[:1], what="one job on one slot")

    system.resize(server, 3)
    wait_for(lambda: sorted(server.running()) == sorted(ids[:3]), what="three jobs on three slots")

    system.resize(server, 1)
    above_the_number = sorted(ids[:3], key=lambda job_id: _slot(server, job_id))[1:]
    for job_id in [*above_the_number, *(one for one in ids if one not in above_the_number)]:
        open_gate(f"resized-{ids.index(job_id)}")
        assert system.tenant.finished(job_id)["status"] == "completed"
    first, *later = sorted((server.runs_of(job_id)[0] for job_id in ids), key=lambda run: run["ended"])[2:]
    for run in later:
        assert run["started"] >= first["ended"]
        first = run

    system.resize(server, 3)
    server.assert_each_ran_once(ids)


def _slot(server: GpuServer, job_id: str) -> str:
    return str(server.runs_of(job_id)[0]["slot"])
