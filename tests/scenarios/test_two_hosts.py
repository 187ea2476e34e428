"""A second host that shares the servers of the first: both work, and one may die."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.models import Attempt
from tests.support.system.gates import open_gate
from tests.support.system.gpu_server import GpuServer
from tests.support.system.judges import Judge
from tests.support.system.programs import Program
from tests.support.system.running import System
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.scenario, pytest.mark.database]

_SLOTS = 12


@pytest.fixture
def server(system: System) -> GpuServer:
    """Set up before the second host, which then listens for its wakes from the start."""
    return system.add_server("hosts", slots=_SLOTS, mode="async")


@pytest.fixture
def second_host(system: System, server: GpuServer, tmp_path: Path) -> Iterator[Program]:
    """Another GPU worker."""
    ready = tmp_path / "ready"
    with (system.folder / "log" / "second_host.log").open("wb") as log:
        host = system.start_worker("--ready-file", str(ready), data_folder=tmp_path / "var", log=log)
    try:
        wait_for(lambda: ready.exists() or host.poll() is not None, seconds=90, what="the second host")
        yield host
    finally:
        host.kill()
        host.wait()


def test_two_hosts_share_the_work_and_one_that_dies_is_replaced_by_the_other(
    system: System, server: GpuServer, judge: Judge, second_host: Program
) -> None:
    held: list[str] = []

    def full_and_shared() -> bool:
        """One more at a time: a single worker might take all wakes that come at once."""
        workers = _workers(judge, held)
        if len(workers) == len(held) < _SLOTS:
            held.append(system.tenant.submit("hosts", {"gate": "hosts"}))
        return len(workers) == _SLOTS

    wait_for(full_and_shared, seconds=60, what="accepted runs on all slots")
    assert len(set(_workers(judge, held))) == 2, "one host took everything"
    waiting = system.tenant.submit_batch("hosts", [{"gate": "hosts"}] * _SLOTS)

    second_host.kill()
    second_host.wait()
    open_gate("hosts")

    ids = [*held, *waiting]
    jobs = [system.tenant.finished(job_id) for job_id in ids]
    assert {job["status"] for job in jobs} == {"completed"}
    assert {len(job["attempts"]) for job in jobs} == {1}
    server.assert_each_ran_once(ids)
    server.assert_never_full()


def _workers(judge: Judge, job_ids: list[str]) -> list[str]:
    """Who holds them, as far as they were accepted by the GPU server."""
    with judge.rows():
        found = Attempt.objects.filter(job_id__in=job_ids, state="waiting")
        return list(found.values_list("worker", flat=True))
