"""A rebuilt index quarantines a slot for each run that only its server has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from gpus.health.pinned_servers import probe_with_heartbeats
from gpus.models import Pause, QuarantinedSlot, Server
from gpus.protocol import Lease
from gpus.registry import controls
from jobs import transitions
from jobs.domain.retry import Ending, RetryPolicy
from jobs.index_rebuild import rebuild as rebuilding
from jobs.index_rebuild import unknown_runs
from jobs.sweeps import lock_sync, quarantine
from jobs.transitions import End
from tests.support.by_process import run_sweep
from tests.support.queue_harness import QueueHarness
from tests.support.rebuilds import ended_without_proof, rebuild
from tests.support.servers.health_server import HealthServer


def unwritten_run(queue: QueueHarness, gpu: HealthServer) -> Lease:
    """Claim a job for a run whose worker dies before its start is committed; its server lists it."""
    queue.server(slots=2, url=f"{gpu.url}/run")
    queue.job()
    lost = queue.claim(written=False)
    gpu.lists((lost.job_id, lost.attempt_id))
    return lost


def test_an_unknown_run_keeps_a_slot_in_quarantine_until_it_is_over(
    queue: QueueHarness, gpu: HealthServer
) -> None:
    lost = unwritten_run(queue, gpu)
    queue.flush()
    rebuild(queue)
    row = QuarantinedSlot.objects.get()
    assert (row.attempt_id, row.job_id, row.reason) == (lost.attempt_id, lost.job_id, unknown_runs.REASON)
    assert sorted(queue.slots()) == ["free", "quarantined"]
    assert queue.leases.claim("m", worker="w", attempt_id="again") is not None, "the job waits"
    queue.clock.advance(3)
    assert quarantine.sweep(queue.ports).repaired == 0
    gpu.lists()
    assert quarantine.sweep(queue.ports).repaired == 1
    assert "quarantined" not in queue.slots()


def test_each_unknown_run_keeps_one_slot_however_often_the_index_is_rebuilt(
    queue: QueueHarness, gpu: HealthServer
) -> None:
    queue.server(slots=4, url=f"{gpu.url}/run")
    for _ in range(3):
        queue.job()
    lost, held = queue.claim(written=False), queue.claim()
    gpu.lists((lost.job_id, lost.attempt_id), (held.job_id, held.attempt_id))
    queue.flush()
    rebuild(queue)
    another = queue.claim(written=False)
    gpu.lists(*((one.job_id, one.attempt_id) for one in (lost, held, another)))
    queue.flush()
    rebuild(queue)
    assert sorted(queue.slots()) == ["free", "leased", "quarantined", "quarantined"]
    rows = QuarantinedSlot.objects.values_list("attempt_id", flat=True)
    assert sorted(rows) == sorted([lost.attempt_id, another.attempt_id])


def test_a_server_paused_meanwhile_keeps_its_slot_in_quarantine_after_the_resume(
    queue: QueueHarness, gpu: HealthServer
) -> None:
    unwritten_run(queue, gpu)
    controls.pause(Pause.Kind.SYSTEM, by="cli:ada", leases=queue.ports.leases)
    queue.flush()
    rebuild(queue)
    assert sorted(queue.slots()) == ["off", "quarantined"]
    controls.resume(Pause.Kind.SYSTEM, by="cli:ada", leases=queue.ports.leases)
    assert sorted(queue.slots()) == ["free", "quarantined"]


def test_no_second_slot_is_quarantined_for_a_known_run(queue: QueueHarness, gpu: HealthServer) -> None:
    queue.server(slots=6, url=f"{gpu.url}/run")
    jobs = [queue.job() for _ in range(3)]
    written, announced = queue.claim(), queue.claim(written=False)
    ended = ended_without_proof(queue)  # its own slot is already kept
    queue.job()
    over = queue.claim()  # a moment ago
    transitions.end_attempt(
        End(over.job_id, over.attempt_id, 1, over.slot, Ending(), RetryPolicy(), queue.clock.now())
    )
    gpu.lists(
        *((one.job_id, one.attempt_id) for one in (written, announced, ended, over)),
        ("not a job of ours", "another dispatcher's"),
        (jobs[2].id, ""),
    )
    queue.flush()
    run_sweep("generation", queue.ports)
    queue.leases.renew("w1", [announced], [])
    rebuild(queue)
    assert QuarantinedSlot.objects.get().attempt_id == ended.attempt_id
    assert sorted(queue.slots()) == ["free"] * 3 + ["leased"] * 2 + ["quarantined"]


def test_silent_servers_and_servers_without_runs_are_not_probed_again(
    queue: QueueHarness, gpu: HealthServer
) -> None:
    queue.server(url=f"{gpu.url}/run")
    queue.flush()
    rebuild(queue)
    assert gpu.asked == []
    queue.job()
    Server.objects.update(healthy=False)
    queue.flush()
    rebuild(queue)
    assert gpu.asked == []
    Server.objects.update(healthy=True)
    gpu.status = 500
    queue.flush()
    rebuild(queue)
    assert len(gpu.asked) == 1
    assert queue.slot() == "free"


def test_the_rebuild_does_not_wait_for_many_servers_that_do_not_answer(queue: QueueHarness) -> None:
    for number in range(4):
        queue.server(f"gpu-{number}")
    queue.job()
    queue.ports = replace(queue.ports, parallel_probes=1)
    calls: list[str] = []

    def time_out(servers: list[Server], *_: object) -> None:
        calls.extend(server.name for server in servers)
        queue.clock.advance(3)

    queue.flush()
    with patch.object(rebuilding, "quarantine_unknown_runs", time_out):
        rebuild(queue)
    assert calls == ["gpu-0", "gpu-1"]
    assert queue.leases.claim("m", worker="w", attempt_id="a") is not None


def lost_while_away(queue: QueueHarness, gpu: HealthServer) -> Lease:
    """Rebuild the index while the server of an unwritten run does not answer."""
    lost = unwritten_run(queue, gpu)
    gpu.status = 500
    run_sweep("lock_sync", queue.ports)
    queue.flush()
    rebuild(queue)
    assert not QuarantinedSlot.objects.exists()
    gpu.status = 200
    return lost


def test_a_server_that_was_away_is_checked_once_it_answers(queue: QueueHarness, gpu: HealthServer) -> None:
    lost = lost_while_away(queue, gpu)
    count = run_sweep("lock_sync", queue.ports)
    assert (count.repaired, count.failed) == (1, 0)
    assert QuarantinedSlot.objects.get().attempt_id == lost.attempt_id
    assert sorted(queue.slots()) == ["free", "quarantined"]
    assert run_sweep("lock_sync", queue.ports).repaired == 0, "once"


def test_a_run_that_ends_between_two_reads_keeps_no_slot(
    queue: QueueHarness, gpu: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost_while_away(queue, gpu)
    looks: list[str] = []

    def ask(asked: Any, **how: Any) -> Any:
        looks.append("look")
        if len(looks) == 2:
            gpu.lists()
        return probe_with_heartbeats(asked, **how)

    monkeypatch.setattr(lock_sync, "probe_with_heartbeats", ask)
    assert run_sweep("lock_sync", queue.ports).repaired == 0
    assert looks == ["look", "look"]
    assert not QuarantinedSlot.objects.exists()


def test_a_prefetched_run_of_a_slot_is_no_unknown_run(queue: QueueHarness, gpu: HealthServer) -> None:
    queue.server(slots=2, url=f"{gpu.url}/run")
    for _ in range(2):
        queue.job()
    held = queue.claim(worker="w")
    follower = queue.leases.reserve(held.ref, worker="w", next_attempt_id="follower")
    assert follower is not None
    gpu.lists((held.job_id, held.attempt_id), (follower.job_id, follower.attempt_id))
    assert run_sweep("lock_sync", queue.ports).repaired == 0
    assert not QuarantinedSlot.objects.exists()
