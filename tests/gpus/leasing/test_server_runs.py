"""The index of a restarted or promoted server is not trusted until it is rebuilt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ResponseError

from dispatcher_project.supervisor.embedded import EmbeddedValkey
from gpus.errors import LeasingUnavailable
from gpus.leasing import scripts
from gpus.leasing.connect import connect
from gpus.leasing.library import library_code, library_name
from gpus.leasing.store import RedisLeases
from gpus.protocol import Ticket
from tests.gpus.leasing.lease_harness import POOL, LeaseHarness
from tests.support.ports import free_port
from tests.support.waiting import wait_for


def test_a_restarted_server_is_noticed_and_its_old_index_not_trusted(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path) as server:
        harness = LeaseHarness(connect(server.url), "main").open()
        harness.server()
        harness.push("j1")
        # a write to the append-only file is put off while another one is flushed
        wait_for(lambda: harness.client.info("persistence")["aof_buffer_length"] == 0)
        server.kill()
        with pytest.raises(LeasingUnavailable, match="does not answer"):
            harness.claim()
        server.stop()
        server.start()
        with pytest.raises(LeasingUnavailable, match="no generation"):
            harness.claim()
        assert harness.leases.generation() is None
        assert not harness.leases.check()
        assert "generation" in harness.all_keys()  # it came back with the file, and names another run
        harness.open()
        assert harness.leases.check()
        assert harness.claim() is None


def test_a_library_that_the_server_forgot_is_loaded_again(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path, append_only=False) as server:
        client = connect(server.url)
        harness = LeaseHarness(client, "main").open()
        harness.server()
        harness.push("j1")
        client.function_flush()
        assert harness.must_claim().job_id == "j1"


def test_a_server_without_a_run_id_is_not_used(
    harness: LeaseHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one name for all its runs, an index that an earlier one left behind would be believed."""
    monkeypatch.setattr(scripts, "_RUN_ID", re.compile(r"no_id:(\w*)"))
    with pytest.raises(LeasingUnavailable, match="run_id"):
        RedisLeases(harness.client, "another").generation()


def test_a_library_restored_from_a_file_or_a_replica_trusts_no_index(tmp_path: Path) -> None:
    """The server persists libraries and the index; only a process that was greeted with its run id trusts the
    index."""
    port, at_once = free_port(), ("--repl-diskless-sync-delay", "0")
    with (
        EmbeddedValkey(tmp_path / "first", port=port, extra=at_once) as first,
        EmbeddedValkey(tmp_path / "second", append_only=False) as second,
    ):
        harness = LeaseHarness(connect(first.url), "main").open()
        harness.server()
        harness.push("j1")
        replica: Any = connect(second.url)
        replica.replicaof("127.0.0.1", port)
        wait_for(
            lambda: replica.info("replication")["master_link_status"] == "up", what="the replica has all"
        )
        first.kill()
        first.stop()
        first.start()
        replica.replicaof("NO", "ONE")
        loaded = harness.leases._scripts._loaded
        assert loaded is not None
        for client in (connect(first.url), replica):
            assert "generation" in LeaseHarness(client, "main").all_keys()
            assert library_name(library_code()) in [found[1] for found in client.function_list()]
            with pytest.raises(ResponseError, match="UNGREETED"):
                client.fcall(f"{loaded.library}_claim", 1, harness.prefix)
            with pytest.raises(LeasingUnavailable, match="no generation"):
                RedisLeases(client, "main").claim(POOL, worker="w", attempt_id="a")


def test_a_marker_of_another_run_is_not_trusted(harness: LeaseHarness) -> None:
    harness.client.hset(harness.prefix + "generation", "run_id", "another")
    with pytest.raises(LeasingUnavailable, match="no generation"):
        harness.leases.push(POOL, [Ticket("j", "flux", "t", 5, 1)])


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    """Clients of a master and of its replica."""
    at_once = ("--repl-diskless-sync-delay", "0")
    first = EmbeddedValkey(tmp_path / "first", port=free_port(), append_only=False, extra=at_once)
    second = EmbeddedValkey(tmp_path / "second", port=free_port(), append_only=False, extra=at_once)
    with first, second:
        clients: tuple[Any, Any] = (connect(first.url), connect(second.url))
        follow(clients[1], first)
        yield clients
        for client in clients:
            client.close()


def follow(client: Any, server: EmbeddedValkey | int) -> None:
    port = server if isinstance(server, int) else server.port
    client.replicaof("127.0.0.1", port)
    wait_for(lambda: client.info("replication")["master_link_status"] == "up", what="the replica has all")


def test_a_master_that_was_a_replica_in_between_trusts_no_index(pair: tuple[Any, Any]) -> None:
    """Within one process: writes that it acknowledged and its replica lacked are lost."""
    first, second = pair
    harness = LeaseHarness(first, "main").open()
    harness.server(slots=2)
    harness.push("j1")
    wait_for(lambda: second.info("replication")["slave_repl_offset"] >= offset_of(first), what="in step")
    second.replicaof("NO", "ONE")
    lease = harness.must_claim("a1")
    follow(first, int(second.config_get("port")["port"]))
    first.replicaof("NO", "ONE")
    assert "generation" in harness.all_keys()
    with pytest.raises(LeasingUnavailable, match="no generation"):
        harness.claim("a2")  # the same job, on the same slot, under the same fence
    assert harness.leases.generation() is None
    assert lease.job_id == "j1"


def test_a_rebuild_interrupted_by_a_failover_starts_again(pair: tuple[Any, Any]) -> None:
    first, second = pair
    harness = LeaseHarness(first, "main")
    begun = harness.leases.begin_rebuild("one")
    assert harness.leases.wipe("one")
    wait_for(lambda: second.info("replication")["slave_repl_offset"] >= offset_of(first), what="in step")
    second.replicaof("NO", "ONE")
    harness.server()
    follow(first, int(second.config_get("port")["port"]))
    first.replicaof("NO", "ONE")
    with pytest.raises(LeasingUnavailable, match=r"another process|being rebuilt"):
        harness.leases.open_generation("one")
    assert harness.leases.begin_rebuild("one") not in ("", begun)


def test_an_index_of_the_previous_version_is_trusted_and_gets_its_replication_id(
    harness: LeaseHarness,
) -> None:
    harness.client.hdel(harness.prefix + "generation", "replication")
    assert harness.claim() is None
    assert harness.leases.generation() is not None
    assert harness.client.hget(harness.prefix + "generation", "replication")
    harness.client.hset(harness.prefix + "generation", "replication", "another")
    assert harness.leases.generation() is None


def offset_of(client: Any) -> int:
    return int(client.info("replication")["master_repl_offset"])
