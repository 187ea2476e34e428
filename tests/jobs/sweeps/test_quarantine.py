"""The sweep `quarantine`: a slot is freed when its server proves it free, and not before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import requests

from gpu_host.node.config import NodeConfig
from gpu_host.node.server import Node
from gpus.leasing.contract import Leases
from gpus.leasing.values import Wakes
from gpus.models import Placement, QuarantinedSlot, Server
from gpus.protocol import Lease, ReleaseMode
from gpus.registry.index_sync import quarantine_slots
from gpus.registry.quarantine import free_slot
from gpus.runners.base import Health
from jobs import transitions
from jobs.index_rebuild import rebuild as rebuilding
from jobs.models import Attempt, Job
from jobs.sweeps import quarantine
from jobs.sweeps.base import SweepCount
from tests.support.ports import free_port
from tests.support.quarantines import LIMIT, quarantine_slot
from tests.support.queue_harness import QueueHarness
from tests.support.rebuilds import rebuild
from tests.support.servers.health_server import HealthServer
from tests.support.servers.plain_server import PlainServer


@pytest.fixture
def lease(queue: QueueHarness, gpu: HealthServer) -> Lease:
    """The run timed out two seconds ago; the GPU may still work on it."""
    queue.server(url=f"{gpu.url}/run")
    queue.job()
    return quarantine_slot(queue, queue.claim())


def sweep(queue: QueueHarness, **limits: int) -> SweepCount:
    count = quarantine.sweep(queue.ports, **limits)
    assert count.failed == 0
    return count


def row() -> QuarantinedSlot:
    return QuarantinedSlot.objects.latest("pk")


def freed_before_the_index_is_written(queue: QueueHarness, patch: pytest.MonkeyPatch) -> None:
    """An operator frees the slot after its row was read and before the index is written."""
    quarantine = queue.leases.quarantine

    def free_first(slot: str, attempt_id: str, *, pool: str = "") -> bool:
        patch.undo()
        free_slot(slot, by="user:ada", leases=queue.ports.leases, at=queue.clock.now())
        return quarantine(slot, attempt_id, pool=pool)

    patch.setattr(queue.leases, "quarantine", free_first)


@pytest.mark.usefixtures("lease")
def test_a_slot_freed_before_its_quarantine_is_repeated_stays_free(
    queue: QueueHarness, gpu: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.status = 500
    freed_before_the_index_is_written(queue, monkeypatch)
    sweep(queue)
    assert queue.slot() == "free"


@pytest.mark.usefixtures("lease")
def test_a_slot_freed_before_a_rebuild_writes_its_quarantine_is_free(
    queue: QueueHarness, gpu: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.status = 500
    queue.flush()
    quarantine = rebuilding.quarantine_slots

    def free_first(leases: Leases, suspects: Iterable[tuple[str, str]]) -> tuple[Wakes, ...]:
        freed_before_the_index_is_written(queue, monkeypatch)
        return quarantine(leases, suspects)

    monkeypatch.setattr(rebuilding, "quarantine_slots", free_first)
    rebuild(queue)
    assert queue.slot() == "free"


def test_a_slot_in_quarantine_for_another_run_is_not_freed(queue: QueueHarness) -> None:
    """The row of that run is not committed yet."""
    queue.server()
    queue.job()
    queue.release(queue.claim(), ReleaseMode.SUSPECT)
    assert quarantine_slots(queue.leases, [("gpu-1/0", "an older attempt")]) == ()
    assert queue.slot() == "quarantined"


def test_a_server_that_still_runs_the_attempt_keeps_the_quarantine(
    queue: QueueHarness, gpu: HealthServer, lease: Lease
) -> None:
    gpu.runs(lease.attempt_id)
    assert sweep(queue).repaired == 0
    assert queue.slot() == "quarantined"
    assert (row().freed_at, row().probed_at) == (None, queue.clock.now())


def test_a_server_that_does_not_run_the_attempt_frees_the_slot_and_sends_wakes(
    queue: QueueHarness, gpu: HealthServer, lease: Lease
) -> None:
    gpu.runs("another")
    queue.job()
    queue.wakes.clear()
    assert sweep(queue).repaired == 1
    assert queue.slot() == "free"
    assert (row().freed_at, row().evidence) == (queue.clock.now(), "the server does not run it")
    assert sum(wake.count for wake in queue.wakes) == 1
    assert not quarantine.is_needed(queue.ports)


def test_the_proof_is_stored_as_evidence_of_the_attempt(
    queue: QueueHarness, gpu: HealthServer, lease: Lease
) -> None:
    gpu.runs("another")
    sweep(queue)
    attempt = Attempt.objects.get()
    assert (attempt.evidence, attempt.slot_freed) == ("the server does not run it", False), (
        "not by the attempt's end"
    )


def test_a_slot_is_freed_although_retention_deleted_the_attempt(
    queue: QueueHarness, gpu: HealthServer, lease: Lease
) -> None:
    Job.objects.all().delete()
    gpu.runs("another")
    assert sweep(queue).repaired == 1


def test_a_restart_after_the_first_probe_frees_the_slot(
    queue: QueueHarness, gpu: HealthServer, lease: Lease
) -> None:
    gpu.counts(1, boot_id="boot-1")
    assert sweep(queue).repaired == 0
    assert row().boot_id == "boot-1"
    gpu.counts(1, boot_id="boot-2")
    assert sweep(queue).repaired == 1
    assert row().evidence == "the server restarted"


def test_a_restart_after_the_attempt_was_sent_is_detected_from_the_servers_row(
    queue: QueueHarness, gpu: HealthServer, lease: Lease
) -> None:
    Server.objects.update(boot_id="boot-1", checked_at=queue.clock.now())
    gpu.counts(1, boot_id="boot-2")
    assert sweep(queue).repaired == 1


def test_a_boot_seen_only_before_the_attempt_was_sent_proves_nothing(
    queue: QueueHarness, gpu: HealthServer, lease: Lease
) -> None:
    queue.clock.advance(-60)
    Server.objects.update(boot_id="boot-1", checked_at=queue.clock.now())
    queue.clock.advance(60)
    gpu.counts(1, boot_id="boot-2")
    assert sweep(queue).repaired == 0
    assert row().boot_id == "boot-2"


def test_a_job_count_frees_the_slot_once_leases_are_unchanged_for_five_seconds(
    queue: QueueHarness, gpu: HealthServer, lease: Lease
) -> None:
    gpu.counts(0)
    assert sweep(queue).repaired == 0
    queue.clock.advance(3.1)
    assert sweep(queue).repaired == 1
    assert queue.slot() == "free"


def test_a_job_count_below_leases_and_quarantines_frees_the_oldest_slot(
    queue: QueueHarness, gpu: HealthServer
) -> None:
    queue.server(url=f"{gpu.url}/run", slots=3)
    for _ in range(3):
        queue.job()
    leases = [queue.claim() for _ in range(3)]
    for lease in leases[:2]:
        quarantine_slot(queue, lease)
    queue.clock.advance(5)
    gpu.counts(2)  # the lease may be of a run that has ended
    assert sweep(queue).repaired == 0
    queue.clock.advance(15)
    gpu.counts(3)
    assert sweep(queue).repaired == 0
    gpu.counts(2)
    assert sweep(queue).repaired == 1
    assert QuarantinedSlot.objects.get(freed_at=None).attempt_id == leases[1].attempt_id


def test_after_the_run_limit_the_slot_is_freed_without_an_answer(queue: QueueHarness, lease: Lease) -> None:
    Server.objects.get().placements.update(endpoint="http://127.0.0.1:9/run")
    queue.clock.advance(LIMIT - 3)
    assert sweep(queue).repaired == 0
    queue.clock.advance(20)
    assert sweep(queue).repaired == 1
    assert row().evidence == "the model's run limit has passed"
    assert queue.slot() == "free"


def test_a_silent_server_is_recorded_and_probed_less_often(
    queue: QueueHarness, gpu: HealthServer, lease: Lease
) -> None:
    gpu.status = 503
    sweep(queue)
    first = row().probed_at
    assert (Server.objects.get().healthy, row().freed_at) == (False, None)
    assert Server.objects.get().last_error
    assert first is not None
    queue.clock.advance(2)  # the server may be restarting
    sweep(queue)
    assert row().probed_at == queue.clock.now() > first
    queue.clock.advance(60)
    sweep(queue)
    long_gone = row().probed_at
    queue.clock.advance(9)
    sweep(queue)
    assert row().probed_at == long_gone
    queue.clock.advance(1)
    sweep(queue)
    assert row().probed_at == queue.clock.now()


@pytest.mark.usefixtures("lease")
def test_a_server_without_models_is_probed_once_it_has_one_again(
    queue: QueueHarness, gpu: HealthServer
) -> None:
    gpu.runs("another")
    placement = Placement.objects.get()
    placement.delete()
    for _ in range(3):
        assert sweep(queue).repaired == 0
        queue.clock.advance(quarantine.UNREACHABLE_AGAIN_SECONDS)
    assert queue.slot() == "quarantined"
    Placement.objects.create(server=placement.server, model=placement.model, endpoint=placement.endpoint)
    assert sweep(queue).repaired == 1
    assert queue.slot() == "free"


def test_a_quarantine_lost_by_redis_is_written_again(
    queue: QueueHarness, gpu: HealthServer, lease: Lease
) -> None:
    gpu.runs(lease.attempt_id)
    queue.leases.free_slot(lease.slot)
    assert queue.slot() == "free"
    sweep(queue)
    assert queue.slot() == "quarantined"


def test_without_redis_no_row_is_freed(queue: QueueHarness, gpu: HealthServer, lease: Lease) -> None:
    gpu.runs()
    queue.redis_is_gone = True
    count = sweep(queue)
    assert (count.repaired, row().freed_at) == (0, None)
    assert "Redis does not answer" in count.notes[0]


def test_two_sweeps_at_once_free_a_slot_once(queue: QueueHarness, gpu: HealthServer, lease: Lease) -> None:
    gpu.runs()
    groups, _ = quarantine._groups(quarantine._open_rows(["gpu-1"], queue.clock.now()), queue.ports)
    assert sweep(queue).repaired == 1
    queue.job()
    following = queue.claim()
    assert quarantine._free(groups[0], {row().pk: "late"}, queue.ports).repaired == 0
    assert row().evidence == "the server does not run it"
    assert queue.leases.is_held(following.ref)


def test_the_sweep_is_not_needed_without_quarantines(queue: QueueHarness) -> None:
    queue.server()
    assert not quarantine.is_needed(queue.ports)
    assert quarantine.sweep(queue.ports) == SweepCount()


@pytest.fixture(params=[404, 405, 501])
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PlainServer]:
    with PlainServer(tmp_path, request.param) as server:
        yield server


def test_a_killed_plain_server_is_free_when_it_is_back(queue: QueueHarness, plain: PlainServer) -> None:
    queue.server(url=f"{plain.url}/run")
    queue.job()
    quarantine_slot(queue, queue.claim())
    assert sweep(queue).repaired == 0, "an answer alone proves nothing"
    assert Server.objects.get().checked_at == queue.clock.now()
    plain.kill()
    for seconds in (2, 20, 2):  # each time: a refusal costs no time-out
        queue.clock.advance(seconds)
        assert sweep(queue).repaired == 0
        assert (row().refused_at, row().freed_at) == (queue.clock.now(), None)
    plain.start()
    queue.clock.advance(2)
    assert sweep(queue).repaired == 1
    assert row().evidence == "the server refused connections, and answers now: it restarted"
    assert queue.slot() == "free"


def test_a_connection_refused_to_the_worker_counts_as_proof(queue: QueueHarness, plain: PlainServer) -> None:
    queue.server(url=f"{plain.url}/run")
    queue.job()
    quarantine_slot(queue, queue.claim(), refused_url=f"{plain.url}/health")
    assert sweep(queue).repaired == 1


def test_a_refusal_proves_nothing_of_another_origin(queue: QueueHarness, plain: PlainServer) -> None:
    queue.server(url=f"{plain.url}/run")
    queue.job()
    quarantine_slot(queue, queue.claim(), refused_url=f"{plain.url}/health")
    QuarantinedSlot.objects.update(model="gone from here")
    assert sweep(queue).repaired == 0


def test_a_refusal_at_a_wrong_url_proves_nothing_once_the_url_is_corrected(
    queue: QueueHarness, plain: PlainServer
) -> None:
    """The run continued: for a while the model was registered at a URL without a server."""
    queue.server(url=f"{plain.url}/run")
    queue.job()
    quarantine_slot(queue, queue.claim())
    Placement.objects.update(endpoint=f"http://127.0.0.1:{free_port()}/run")
    assert sweep(queue).repaired == 0
    assert row().refused_at == queue.clock.now()
    Placement.objects.update(endpoint=f"{plain.url}/run")
    queue.clock.advance(2)
    assert sweep(queue).repaired == 0
    assert queue.slot() == "quarantined"


def test_a_refusal_without_a_recorded_url_proves_nothing(queue: QueueHarness, plain: PlainServer) -> None:
    queue.server(url=f"{plain.url}/run")
    queue.job()
    quarantine_slot(queue, queue.claim())
    QuarantinedSlot.objects.update(refused_at=queue.clock.now())
    assert sweep(queue).repaired == 0


@pytest.mark.parametrize("lists", [True, False])
def test_a_refusal_does_not_free_slots_of_a_server_with_a_health_endpoint(
    queue: QueueHarness, gpu: HealthServer, lists: bool
) -> None:
    """A proxy in front of the server may have refused the connection."""
    queue.server(url=f"{gpu.url}/run")
    queue.job()
    lease = quarantine_slot(queue, queue.claim(), refused_url=f"{gpu.url}/health")
    if lists:
        gpu.runs(lease.attempt_id, boot_id="")
    else:
        gpu.counts(1, boot_id="boot-1")
    assert sweep(queue).repaired == 0


def test_the_reference_node_gives_the_proofs(queue: QueueHarness) -> None:
    with Node(NodeConfig(handler="gpu_host.node.simulator:run", slots=1, mode="async")) as node:
        queue.server(url=f"{node.url}/run")
        queue.job()
        lease = quarantine_slot(queue, queue.claim())
        headers = {"X-Source": "dispatcher", "X-Job-Id": lease.job_id, "X-Attempt": lease.attempt_id}
        run = requests.post(f"{node.url}/run", json={"seconds": 60}, headers=headers, timeout=10)
        assert run.json()["status"] == "processing"
        assert sweep(queue).repaired == 0
        assert row().boot_id == node.health()["boot_id"]
        node.restart()
        assert sweep(queue).repaired == 1
        assert row().evidence == "the server restarted"
        assert queue.slot() == "free"


def silent_servers(queue: QueueHarness, count: int, *, rows: int = 1) -> None:
    """A slot long in quarantine, whose server was just probed without an answer."""
    now, pool = queue.clock.now(), Server.objects.get().pool
    servers = Server.objects.bulk_create(
        Server(name=f"silent-{at:03}", pool=pool, slots=rows, healthy=False) for at in range(count)
    )
    QuarantinedSlot.objects.bulk_create(
        QuarantinedSlot(
            server=server,
            slot=slot,
            attempt_id=f"a{server.pk}-{slot}",
            since=now - timedelta(hours=1),
            until=now + timedelta(hours=1),
            probed_at=now - timedelta(seconds=1),
        )
        for server in servers
        for slot in range(rows)
    )


def seconds_until_free(queue: QueueHarness, **limits: int) -> float:
    """Count the probes, with a sweep every 2 s."""
    began = queue.clock.now()
    while queue.slot() != "free":
        assert (queue.clock.now() - began).total_seconds() < 60, "the server is never probed again"
        queue.clock.advance(2)
        sweep(queue, **limits)
    return (queue.clock.now() - began).total_seconds()


@pytest.mark.parametrize("rows", [1, 8])
def test_a_proven_slot_does_not_wait_for_silent_servers(
    queue: QueueHarness, gpu: HealthServer, lease: Lease, *, rows: int
) -> None:
    gpu.runs(lease.attempt_id)
    silent_servers(queue, 60, rows=rows)
    sweep(queue, limit=20)
    gpu.runs("another")
    assert seconds_until_free(queue, limit=20) <= 4


def test_silent_servers_are_probed_in_turn_within_the_time_limit(
    queue: QueueHarness, gpu: HealthServer, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each silent server costs a time-out; the responsive one is probed in each sweep, the others in turn."""
    silent_servers(queue, 30)
    calls: list[list[str]] = []
    running = frozenset({("j", lease.attempt_id)})

    def probe_with_heartbeats(pairs: Iterable[tuple[Server, str]], **_: object) -> list[Health]:
        names = [server.name for server, _ in pairs]
        calls.append(names)
        queue.clock.advance(0.1 if "gpu-1" in names else 3.0)
        return [Health(name == "gpu-1", jobs=running) for name in names]

    monkeypatch.setattr(quarantine, "probe_with_heartbeats", probe_with_heartbeats)
    queue.clock.advance(60)
    began = queue.clock.now()
    for _ in range(5):
        calls.clear()
        before = queue.clock.now()
        sweep(queue, at_once=4)
        assert calls[0] == ["gpu-1"], "the responsive server comes first"
        assert (queue.clock.now() - before).total_seconds() < 8
    assert {row.probed_at >= began for row in QuarantinedSlot.objects.all() if row.probed_at} == {True}


# -- several attempts in quarantine on one slot
# -------------------------------------------------------------------------


def suspect_again(queue: QueueHarness, lease: Lease, attempt: str = "second") -> None:
    """The index was wrong about the slot, and a second run was sent to it (two quarantine rows)."""
    transitions.quarantine_slot(
        lease.slot,
        attempt_id=attempt,
        job_id="another",
        model="m",
        reason="start refused: slot_taken",
        at=queue.clock.now(),
        run_limit_seconds=LIMIT,
    )
    queue.clock.advance(2)


def open_suspects() -> set[str]:
    return set(QuarantinedSlot.objects.filter(freed_at=None).values_list("attempt_id", flat=True))


def test_a_proof_for_the_first_attempt_does_not_free_a_slot_that_runs_the_second(
    queue: QueueHarness, gpu: HealthServer, lease: Lease
) -> None:
    suspect_again(queue, lease)
    gpu.runs("second")
    assert sweep(queue).repaired == 1
    assert (open_suspects(), queue.slot()) == ({"second"}, "quarantined")
    gpu.runs("something else")
    assert sweep(queue).repaired == 1
    assert (open_suspects(), queue.slot()) == (set(), "free")


def test_proofs_for_both_attempts_free_the_slot(queue: QueueHarness, gpu: HealthServer, lease: Lease) -> None:
    suspect_again(queue, lease)
    gpu.runs("something else")
    assert sweep(queue).repaired == 2
    assert queue.slot() == "free"


def test_a_job_count_frees_the_slot_once_neither_attempt_can_run(
    queue: QueueHarness, gpu: HealthServer, lease: Lease
) -> None:
    suspect_again(queue, lease)
    queue.clock.advance(30)
    gpu.counts(1)
    assert sweep(queue).repaired == 1
    assert queue.slot() == "quarantined"
    gpu.counts(0)
    assert sweep(queue).repaired == 1
    assert queue.slot() == "free"


def test_an_attempt_has_one_quarantine_row(queue: QueueHarness, gpu: HealthServer, lease: Lease) -> None:
    suspect_again(queue, lease, lease.attempt_id)
    assert QuarantinedSlot.objects.count() == 1
