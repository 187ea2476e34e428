"""The same scripts on a Redis Cluster: every key of a fleet lies on one node."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from dispatcher_project.supervisor.embedded import find_valkey
from gpus.errors import LeasingUnavailable
from gpus.leasing.clock import time_of
from gpus.leasing.connect import connect
from gpus.protocol import PoolSpec
from tests.gpus.leasing.lease_harness import POOL, WORKER, LeaseHarness
from tests.support.ports import free_port
from verification.proving.cluster import NODES, ClusterValkeys, move_slot


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of three nodes that share the slots."""
    if find_valkey() is None:
        pytest.skip("no Valkey or Redis server binary on this machine")
    valkeys = ClusterValkeys(tmp_path_factory.mktemp("n"), iter(free_port, None), silent_seconds=15.0)
    try:
        valkeys.start()
        yield valkeys.url
    finally:
        valkeys.stop()


def test_a_clusters_clock_is_read(cluster: str) -> None:
    assert abs(time_of(cluster)() - time.time()) < 60.0


def test_a_jobs_whole_way_on_every_node(cluster: str) -> None:
    client: Any = connect(cluster)
    fleets = {
        client.get_node_from_key(f"{{{name}}}").name: name for name in ("main", "b", "c", "d", "e", "f")
    }
    assert len(fleets) == NODES
    for fleet in fleets.values():
        harness = LeaseHarness(client, fleet).open()
        harness.server(slots=2, models=("flux", "zimg"))
        harness.push("j1", "j2", model="flux")
        harness.push("j3", tenant="t2", model="zimg", avoid="s2")
        lease = harness.must_claim()
        following = harness.release(lease, gpu_seconds=2.0, next_attempt_id="next")
        assert following is not None
        harness.leases.confirm_ends([lease.ref])
        assert harness.leases.renew("w1", [following], []) == []
        harness.release(following, "adopt")
        assert harness.must_claim(worker="w2").adopted
        for _ in range(4):
            harness.wait(4)
            expired = harness.leases.expired()
        assert [row.ref for row in expired] == [following.ref]
        assert harness.waiting() == 1
        assert harness.leases.depth(POOL).slots == {"free": 1, "leased": 1}
        harness.leases.begin_rebuild("again")
        while not harness.leases.wipe("again", max_keys=10):
            pass
        assert harness.all_keys() == {"rebuild"}
    client.close()


def test_a_library_missing_on_one_node_is_loaded_again(cluster: str) -> None:
    client: Any = connect(cluster)
    harness = LeaseHarness(client, "g").open()
    client.get_redis_connection(client.get_node_from_key(harness.prefix)).function_flush()
    assert harness.claim() is None
    client.close()


def test_a_fleets_keys_move_to_another_node_while_it_is_in_use(cluster: str) -> None:
    """As `redis-cli --cluster reshard` does it. No lease is granted meanwhile, and the move completes."""
    client: Any = connect(cluster)
    harness = LeaseHarness(client, "moving").open()
    harness.server(slots=2)
    harness.push(*(f"j{number}" for number in range(20)))
    first = harness.must_claim()
    slot, source = client.keyslot(harness.prefix), client.get_node_from_key(harness.prefix)
    ended, answers = threading.Event(), Counter[str]()

    def use(worker: str) -> None:
        leases = LeaseHarness(connect(cluster), "moving").leases
        while not ended.is_set():
            for call in (
                lambda: leases.claim(POOL, worker=worker, attempt_id=worker),
                lambda: leases.renew(WORKER, [first], []),
                lambda: leases.generation() or rebuild(leases),
            ):
                try:
                    call()
                except LeasingUnavailable as error:
                    answers[str(error)] += 1

    users = [threading.Thread(target=use, args=(f"w{number}",)) for number in range(3)]
    for user in users:
        user.start()
    try:
        assert move_slot(client, harness.prefix) > 3
    finally:
        ended.set()
        for user in users:
            user.join()
    assert "the fleet's keys move to another node of the cluster" in answers
    assert client.get_redis_connection(source).execute_command("CLUSTER", "COUNTKEYSINSLOT", slot) == 0
    assert harness.leases.generation() is None  # its marker came along and names another run
    harness.open()
    harness.server(slots=2)
    harness.push("j1")
    assert harness.must_claim().job_id == "j1"
    assert client.get_node_from_key(harness.prefix).name != source.name
    client.close()


def rebuild(leases: Any) -> bool:
    """As far as the sweep comes in a moment."""
    leases.begin_rebuild("harness")
    leases.wipe("harness")
    leases.configure_pool(PoolSpec(POOL))
    return True
