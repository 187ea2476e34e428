"""How many connections there may be, and which one goes where there is no room for another."""

from __future__ import annotations

import errno
import json
import resource
import socket
import subprocess
import sys

import pytest

from dispatcher_project.web.protocol import Connections, Reason, WebLimits
from dispatcher_project.web.server import RESERVED_DESCRIPTORS
from foundation.network import network_of
from tests.support.servers.serving import HEAD, WHOLE, Served, answer, serving, status_and_code
from tests.support.sockets import until_closed

BODY = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\n"


def hold(web: Served, count: int, send: bytes = HEAD, source: str = "127.0.0.2") -> list[socket.socket]:
    """Opens them one after the other."""
    held = []
    for _ in range(count):
        before = len(web.server.connections)
        held.append(web.connect(source, send))
        web.wait_for(lambda before=before: len(web.server.connections) > before)  # type: ignore[misc]
    return held


def busy(web: Served, count: int, source: str = "127.0.0.2") -> list[socket.socket]:
    """Each owes the rest of a body."""
    held = hold(web, count, BODY, source)
    web.wait_for(lambda: not any(c._waits for c in web.server.connections._open))
    return held


def test_over_an_addresss_limit_its_oldest_connection_without_a_head_is_closed() -> None:
    with serving(WebLimits(per_address=3)) as web:
        oldest, *_ = hold(web, 3)
        newest = web.connect(send=WHOLE)
        assert status_and_code(until_closed(oldest)) == (503, "too_many_connections")
        assert answer(newest).startswith(b"HTTP/1.1 200")
        assert web.ended(Reason.EVICTED) == 1
        assert len(web.server.connections) == 3


def test_an_address_with_only_busy_connections_gets_no_more() -> None:
    with serving(WebLimits(per_address=3)) as web:
        busy(web, 3)
        said = until_closed(web.connect(send=WHOLE))
        assert status_and_code(said) == (503, "too_many_connections")
        assert b"\r\nRetry-After: 2\r\n" in said
        assert web.ended(Reason.REFUSED) == 1
        assert answer(web.connect("127.0.0.3", WHOLE)).startswith(b"HTTP/1.1 200"), "another address"


def test_a_closed_connection_frees_its_place() -> None:
    with serving(WebLimits(per_address=2)) as web:
        first, _ = busy(web, 2)
        first.close()
        web.wait_for(lambda: len(web.server.connections) == 1)
        assert answer(web.connect(send=WHOLE)).startswith(b"HTTP/1.1 200")


def test_the_limit_per_address_does_not_apply_to_a_proxy() -> None:
    with serving(WebLimits(per_address=2, connections=5), forwarded_allow_ips="127.0.0.2") as web:
        hold(web, 5)
        assert not web.server.connections.ended


def test_over_the_total_limit_the_oldest_connection_without_a_head_is_closed() -> None:
    with serving(WebLimits(connections=4)) as web:
        oldest = hold(web, 1, source="127.0.0.3")[0]
        hold(web, 3)
        assert answer(web.connect("127.0.0.4", WHOLE)).startswith(b"HTTP/1.1 200")
        assert status_and_code(until_closed(oldest)) == (503, "too_many_connections")


def test_after_those_the_connections_with_slow_bodies_are_closed() -> None:
    with serving(WebLimits(connections=3)) as web:
        busy(web, 3)
        web.let_pass(1.0)
        assert answer(web.connect("127.0.0.4", WHOLE)).startswith(b"HTTP/1.1 200")
        assert web.ended(Reason.EVICTED) == 3


def test_addresses_without_connections_are_dropped() -> None:
    with serving(WebLimits(per_address=1)) as web:
        for last in range(2, 6):
            (held,) = hold(web, 1, source=f"127.0.0.{last}")
            until_closed(web.connect(f"127.0.0.{last}", b"GET / HTTP/1.0\r\n\r\n"))
            held.close()
        web.wait_for(lambda: not web.server.connections._addresses)


def test_an_ipv6_client_counts_as_its_network() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::2:3:4") != network_of("2001:db8:0:1::1")
    assert network_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert network_of("fe80::1%eth0") == network_of("fe80::2")


def test_without_a_file_descriptor_the_oldest_connections_are_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving(WebLimits()) as web:
        hold(web, 3)
        loop_error = {"exception": OSError(errno.EMFILE, "Too many open files"), "message": "accept"}
        loop = next(iter(web.server.connections._open)).loop
        for _ in range(1000):  # asyncio says it for every connection that it can't accept
            loop.call_soon_threadsafe(web.server._on_exception, loop, dict(loop_error))
        web.wait_for(lambda: len(web.server.connections) == 0)
        assert web.ended(Reason.NO_DESCRIPTORS) == 3


def test_other_errors_of_the_loop_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with serving(WebLimits()) as web:
        hold(web, 1)
        loop = next(iter(web.server.connections._open)).loop
        loop.call_soon_threadsafe(web.server._on_exception, loop, {"message": "of something else"})
        web.wait_for(lambda: "of something else" in caplog.text)
        assert len(web.server.connections) == 1


def test_ended_connections_are_counted_for_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatcher_project.web.server._WRITE_SECONDS", 0.0)
    with serving(WebLimits(per_address=1)) as web:
        busy(web, 1)
        until_closed(web.connect())
        web.wait_for(lambda: web.counted == {Reason.REFUSED: 1})


_PROGRAM = """
import json, resource
from dispatcher_project.web.protocol import WebLimits
from dispatcher_project.web.server import within_descriptors
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
limits = within_descriptors(WebLimits(connections={wanted}))
print(json.dumps([limits.connections, *resource.getrlimit(resource.RLIMIT_NOFILE)]))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "given"),
    [(64, 1024, 4096, 1024 - RESERVED_DESCRIPTORS), (256, 1024, 100, 100), (64, 256, 4096, 128)],
)
def test_the_limit_of_connections_fits_the_descriptors(soft, hard, wanted, given) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < hard:
        pytest.skip("this process may open fewer files")
    code = _PROGRAM.format(soft=soft, hard=hard, wanted=wanted)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [given, hard, hard]


def test_eviction_without_connections_does_nothing() -> None:
    table = Connections(WebLimits())
    table.free_descriptors()
    table.sweep()
    assert len(table) == 0
