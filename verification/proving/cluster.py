"""A Redis Cluster for `prove --redis cluster`; the broker is a Valkey beside it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from gpus.leasing.connect import connect
from gpus.leasing.keys import prefix
from verification.proving.system import CannotProve
from verification.proving.valkey import OwnValkey

NODES, SLOTS = 3, 16384
_START_SECONDS = 30.0
_KEYS_AT_ONCE = 3
_MOVE_PAUSE_SECONDS = 0.05
"""Between two batches of keys: moving a large slot takes time."""


class ClusterValkeys:
    """The cluster's nodes."""

    def __init__(self, folder: Path, ports: Iterator[int], *, silent_seconds: float = 5.0) -> None:
        """silent_seconds: after this long without an answer the others consider a node down."""
        timeout = str(int(silent_seconds * 1000))
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", timeout, "--cluster-port")
        self._bus_ports = [next(ports) for _ in range(NODES)]
        self._nodes = [
            OwnValkey(folder / f"node-{number}", port=next(ports), extra=(*options, str(bus)))
            for number, bus in enumerate(self._bus_ports)
        ]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self._nodes)

    def start(self) -> None:
        """Start the nodes; return once all slots are served. Raises CannotProve."""
        for node in self._nodes:
            node.start()
        clients: list[Any] = [redis.Redis(port=node.port, decode_responses=True) for node in self._nodes]
        for number, client in enumerate(clients):
            first, last = SLOTS * number // NODES, SLOTS * (number + 1) // NODES - 1
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
        for node, bus in list(zip(self._nodes, self._bus_ports, strict=True))[1:]:
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        until = time.monotonic() + _START_SECONDS
        while not all(_is_whole(client) for client in clients):
            if time.monotonic() > until:
                raise CannotProve(f"the trial's cluster did not form in {_START_SECONDS:.0f} s")
            time.sleep(0.1)

    def stop(self) -> None:
        for node in self._nodes:
            node.stop()

    def move_fleet(self, fleet: str) -> int:
        """Move the fleet's hash slot to another node, like `redis-cli --cluster reshard`; return the number
        of its keys."""
        client: Any = connect(self.url)
        try:
            return move_slot(client, prefix(fleet))
        finally:
            client.close()


def move_slot(client: Any, key: str) -> int:
    """Move all keys of this key's hash slot to another node, in small batches; return their number.

    Raises redis.ResponseError (BUSYKEY) if the other node has one of them already."""
    slot, source = client.keyslot(key), client.get_node_from_key(key)
    target = next(node for node in client.get_primaries() if node.name != source.name)
    at_source, at_target = map(client.get_redis_connection, (source, target))
    source_id, target_id = at_source.cluster("MYID"), at_target.cluster("MYID")
    at_target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
    at_source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
    moved = 0
    while keys := at_source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, _KEYS_AT_ONCE):
        at_source.execute_command("MIGRATE", target.host, target.port, "", 0, 2000, "KEYS", *keys)
        moved += len(keys)
        time.sleep(_MOVE_PAUSE_SECONDS)
    for node in (at_target, at_source):
        node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target_id)
    return moved


def _is_whole(client: Any) -> bool:
    lines = str(client.execute_command("CLUSTER", "INFO")).splitlines()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    return facts.get("cluster_state") == "ok" and facts.get("cluster_known_nodes") == str(NODES)
