"""A GPU worker that dies, and one that is replaced by a deploy."""

from __future__ import annotations

import signal

import pytest

from gpus.models import QuarantinedSlot
from jobs.models import Attempt
from tests.support.system.gates import open_gate
from tests.support.system.judges import Judge
from tests.support.system.running import System
from tests.support.waiting import wait_for

pytestmark = pytest.mark.scenario


def test_after_kill_9_a_polled_run_is_adopted_and_a_sync_one_waits_until_its_gpu_is_free(
    system: System, judge: Judge
) -> None:
    polled, sync = system.add_server("killed-async", mode="async"), system.add_server("killed-sync")
    adopted = system.tenant.submit("killed-async", {"gate": "killed-async"})
    lost = system.tenant.submit("killed-sync", {"gate": "killed-sync"})
    wait_for(lambda: _attempts(system, adopted) == ["waiting"], what="a remote id")
    wait_for(lambda: _attempts(system, lost) == ["sent"] and sync.running() == [lost], what="a sync run")
    behind = system.tenant.submit("killed-sync", {"n": 1})

    worker = system.signal("gpu_worker", signal.SIGKILL)
    system.wait_for_successor("gpu_worker", worker)

    wait_for(lambda: _epoch(judge, adopted) == 2, what="an adoption")
    open_gate("killed-async")
    assert system.tenant.finished(adopted)["status"] == "completed"
    assert _attempts(system, adopted) == ["completed"]
    polled.assert_each_ran_once([adopted])

    wait_for(lambda: _attempts(system, lost)[0] == "lost", what="an end of the first attempt")
    wait_for(lambda: _probed(judge, sync.name), what="a probe of the slot")
    assert sync.running() == [lost]
    assert _attempts(system, behind) == []
    open_gate("killed-sync")
    assert system.tenant.finished(lost)["status"] == "completed"
    assert _attempts(system, lost) == ["lost", "completed"]
    assert system.tenant.finished(behind)["status"] == "completed"
    assert [run["outcome"] for run in sync.runs_of(lost)] == ["success", "success"]
    assert _quarantines(judge, sync.name)[0]["evidence"]
    sync.assert_never_full()


def test_a_deploy_throws_no_run_away(system: System) -> None:
    polled = system.add_server("deploy-async", slots=3, mode="async")
    sync = system.add_server("deploy-sync")
    held = [system.tenant.submit("deploy-async", {"gate": "deploy"}) for _ in range(6)]
    grace = system.tenant.submit("deploy-sync", {"gate": "deploy-sync"})
    wait_for(lambda: len(polled.running()) == 3 and sync.running() == [grace], what="full slots")
    wait_for(lambda: _attempts(system, held[2]) == ["waiting"], what="remote ids")

    worker = system.signal("gpu_worker", signal.SIGTERM)
    open_gate("deploy-sync")
    system.wait_for_successor("gpu_worker", worker)
    open_gate("deploy")

    assert [system.tenant.finished(job_id)["status"] for job_id in [*held, grace]] == ["completed"] * 7
    assert [_attempts(system, job_id) for job_id in [*held, grace]] == [["completed"]] * 7
    polled.assert_each_ran_once(held)
    sync.assert_each_ran_once([grace])
    polled.assert_never_full()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_while_the_only_worker_drains_the_next_one_starts_new_jobs(
    system: System, number: signal.Signals
) -> None:
    name = f"drain-{number.name.lower()}"
    server = system.add_server(name, slots=2)
    long = system.tenant.submit(name, {"gate": name})
    wait_for(lambda: server.running() == [long], what="a long run")

    drains = _drains(system)
    worker = system.signal("gpu_worker", number)
    wait_for(lambda: _drains(system) > drains, what="the end of its claims")
    new = system.tenant.submit(name, {"n": 1})
    assert system.tenant.finished(new)["status"] == "completed"
    first = _attempts(system, long)[0]
    open_gate(name)

    if number is signal.SIGTERM:
        assert first == "sent", "it has its grace"
    assert system.tenant.finished(long)["status"] == "completed"
    assert system.pid("gpu_worker") != worker
    server.assert_never_full()


def _drains(system: System) -> int:
    return (system.folder / "log" / "gpu_worker.log").read_text().count("worker_draining")


def _attempts(system: System, job_id: str) -> list[str]:
    return [attempt["state"] for attempt in system.tenant.job(job_id)["attempts"]]


def _epoch(judge: Judge, job_id: str) -> int:
    with judge.rows():
        return Attempt.objects.get(job_id=job_id).epoch


def _probed(judge: Judge, server: str) -> bool:
    return any(row["probed_at"] for row in _quarantines(judge, server))


def _quarantines(judge: Judge, server: str) -> list[dict[str, object]]:
    with judge.rows():
        return list(QuarantinedSlot.objects.filter(server_id=server).values("probed_at", "evidence"))
