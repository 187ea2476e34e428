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
from tests.gpus.leasing.rig import POOL, WORKER, Rig
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
        rig = Rig(client, fleet).open()
        rig.server(slots=2, models=("flux", "zimg"))
        rig.push("j1", "j2", model="flux")
        rig.push("j3", tenant="t2", model="zimg", avoid="s2")
        lease = rig.must_claim()
        following = rig.release(lease, gpu_seconds=2.0, next_attempt_id="next")
        assert following is not None
        rig.leases.confirm_ends([lease.ref])
        assert rig.leases.renew("w1", [following], []) == []
        rig.release(following, "adopt")
        assert rig.must_claim(worker="w2").adopted
        for _ in range(4):
            rig.wait(4)
            expired = rig.leases.expired()
        assert [row.ref for row in expired] == [following.ref]
        assert rig.waiting() == 1
        assert rig.leases.depth(POOL).slots == {"free": 1, "leased": 1}
        rig.leases.begin_rebuild("again")
        while not rig.leases.wipe("again", max_keys=10):
            pass
        assert rig.all_keys() == {"rebuild"}
    client.close()


def test_a_library_missing_on_one_node_is_loaded_again(cluster: str) -> None:
    client: Any = connect(cluster)
    rig = Rig(client, "g").open()
    client.get_redis_connection(client.get_node_from_key(rig.prefix)).function_flush()
    assert rig.claim() is None
    client.close()


def test_a_fleets_keys_move_to_another_node_while_it_is_in_use(cluster: str) -> None:
    """As `redis-cli --cluster reshard` does it. No lease is granted meanwhile, and the move completes."""
    client: Any = connect(cluster)
    rig = Rig(client, "moving").open()
    rig.server(slots=2)
    rig.push(*(f"j{number}" for number in range(20)))
    first = rig.must_claim()
    slot, source = client.keyslot(rig.prefix), client.get_node_from_key(rig.prefix)
    ended, answers = threading.Event(), Counter[str]()

    def use(worker: str) -> None:
        leases = Rig(connect(cluster), "moving").leases
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
        assert move_slot(client, rig.prefix) > 3
    finally:
        ended.set()
        for user in users:
            user.join()
    assert "the fleet's keys move to another node of the cluster" in answers
    assert client.get_redis_connection(source).execute_command("CLUSTER", "COUNTKEYSINSLOT", slot) == 0
    assert rig.leases.generation() is None  # its marker came along and names another run
    rig.open()
    rig.server(slots=2)
    rig.push("j1")
    assert rig.must_claim().job_id == "j1"
    assert client.get_node_from_key(rig.prefix).name != source.name
    client.close()


def rebuild(leases: Any) -> bool:
    """As far as the sweep comes in a moment."""
    leases.begin_rebuild("rig")
    leases.wipe("rig")
    leases.configure_pool(PoolSpec(POOL))
    return True
