"""Time-outs by the operating system, and the connections that use them."""

from __future__ import annotations

import socket
import struct

import pytest
import redis

from dispatcher_project.supervisor.embedded import EmbeddedValkey
from foundation import network
from gpus.leasing.connect import TIMEOUT_SECONDS, _Blocking, connect
from gpus.runners.connections import Connection


def limit_of(sock: socket.socket, option: int) -> float:
    seconds, micros = struct.unpack("@ll", sock.getsockopt(socket.SOL_SOCKET, option, 16))
    return float(seconds + micros / 1e6)


def test_a_read_and_a_write_end_when_their_time_is_over() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        network.use_system_timeouts(ours)
        network.limit_reads(ours, 0.02)
        network.limit_writes(ours, 0.02)
        with pytest.raises(BlockingIOError):
            ours.recv(1)
        with pytest.raises(BlockingIOError):
            ours.sendall(b"x" * 10_000_000)


@pytest.mark.parametrize("seconds", [0.0, 1e-9, -1.0])
def test_a_time_out_of_zero_does_not_block_for_ever(seconds: float) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        network.use_system_timeouts(ours)
        network.limit_reads(ours, seconds)
        assert limit_of(ours, socket.SO_RCVTIMEO) > 0
        with pytest.raises(BlockingIOError):
            ours.recv(1)


def test_a_connection_to_a_gpu_server_waits_in_the_system() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.settimeout(1.0)
        connection = Connection(ours)
        assert ours.gettimeout() is None
        connection.close()


@pytest.mark.parametrize(("scheme", "waits_there"), [("redis", True), ("unix", True), ("rediss", False)])
def test_all_but_tls_waits_in_the_system(scheme: str, waits_there: bool) -> None:
    client = connect(f"{scheme}://somewhere")
    assert isinstance(client, redis.Redis)
    assert issubclass(client.connection_pool.connection_class, _Blocking) is waits_there


def test_connections_of_the_leases_wait_in_the_system(valkey: EmbeddedValkey) -> None:
    client = connect(valkey.url)
    assert isinstance(client, redis.Redis)
    connection = client.connection_pool.get_connection()
    try:
        sock = connection._sock
        assert sock.gettimeout() is None
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            assert limit_of(sock, option) == pytest.approx(TIMEOUT_SECONDS, abs=0.02)
    finally:
        connection.disconnect()
        client.close()
