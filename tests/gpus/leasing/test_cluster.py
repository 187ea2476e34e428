"""The same scripts on a Redis Cluster: every key of a fleet lies on one node."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from dispatcher_project.embedded import EmbeddedValkey, find_valkey
from gpus.errors import LeasingUnavailable
from gpus.leasing.connect import connect
from gpus.protocol import PoolSpec
from tests.ports import free_port

from .rig import POOL, WORKER, Rig

NODES, SLOTS = 3, 16384


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of three nodes that share the slots."""
    if find_valkey() is None:
        pytest.skip("no Valkey or Redis server binary on this machine")
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "15000")
    servers = [
        EmbeddedValkey(Path(tmp_path_factory.mktemp("n")), append_only=False, port=free_port(), extra=options)
        for _ in range(NODES)
    ]
    try:
        for server in servers:
            server.start()
        nodes: list[Any] = [redis.Redis(port=server.port, decode_responses=True) for server in servers]
        for number, node in enumerate(nodes):
            first, last = SLOTS * number // NODES, SLOTS * (number + 1) // NODES - 1
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
        for server in servers[1:]:
            nodes[0].execute_command("CLUSTER", "MEET", "127.0.0.1", server.port)
        wait_until_whole(nodes)
        yield "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in servers)
    finally:
        for server in servers:
            server.stop()


def wait_until_whole(nodes: list[Any]) -> None:
    for _ in range(400):
        infos = [node.execute_command("CLUSTER", "INFO") for node in nodes]
        if all(
            _field(info, "cluster_state") == "ok" and _field(info, "cluster_known_nodes") == str(NODES)
            for info in infos
        ):
            return
        threading.Event().wait(0.05)
    raise AssertionError("the cluster did not form")


def _field(info: Any, name: str) -> str:
    return str(info[name]) if isinstance(info, dict) else dict(
        line.split(":", 1) for line in str(info).split() if ":" in line
    )[name]  # fmt: skip


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
        rig.leases.settled([lease.ref])
        assert rig.leases.renew("w1", [following], []) == []
        rig.release(following, "adopt")
        assert rig.must_claim(worker="w2").adopted
        rig.wait(16)
        assert [row.ref for row in rig.leases.expired()] == [following.ref]
        assert rig.waiting() == 1
        assert rig.leases.depth(POOL).slots == {"free": 1, "leased": 1}
        rig.leases.begin_rebuild("again")
        while not rig.leases.wipe("again", max_keys=10):
            pass
        assert rig.all_keys() == {"rebuild"}
    client.close()


def test_a_library_that_one_node_forgot_is_loaded_again(cluster: str) -> None:
    client: Any = connect(cluster)
    rig = Rig(client, "g").open()
    client.get_redis_connection(client.get_node_from_key(rig.prefix)).function_flush()
    assert rig.claim() is None
    client.close()


def test_a_fleets_keys_move_to_another_node_while_it_is_in_use(cluster: str) -> None:
    """As `redis-cli --cluster reshard` does it. Nothing is leased meanwhile, and the move ends."""
    client: Any = connect(cluster)
    rig = Rig(client, "moving").open()
    rig.server(slots=2)
    rig.push(*(f"j{number}" for number in range(20)))
    first = rig.must_claim()
    slot = client.keyslot(rig.prefix)
    source = client.get_node_from_key(rig.prefix)
    target = next(node for node in client.get_primaries() if node.name != source.name)
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
        move(client, slot, source, target)
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
    assert client.get_node_from_key(rig.prefix).name == target.name
    client.close()


def rebuild(leases: Any) -> bool:
    """As far as the sweep comes in a moment."""
    leases.begin_rebuild("rig")
    leases.wipe("rig")
    leases.configure_pool(PoolSpec(POOL))
    return True


def move(client: Any, slot: int, source: Any, target: Any) -> None:
    """All keys of the slot; fails where a key is at the target already (BUSYKEY)."""
    at_source, at_target = map(client.get_redis_connection, (source, target))
    source_id, target_id = at_source.cluster("MYID"), at_target.cluster("MYID")
    at_target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
    at_source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
    while keys := at_source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 3):
        at_source.execute_command("MIGRATE", target.host, target.port, "", 0, 2000, "KEYS", *keys)
        threading.Event().wait(0.01)  # a large slot takes its time
    for node in (at_target, at_source):
        node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target_id)
