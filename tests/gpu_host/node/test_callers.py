"""Which callers a node accepts, and limits of their connections."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foundation.threaded_http import Connections, RequestTimes, TimedReader
from gpu_host.node.config import TOKEN_VARIABLE, ConfigError, NodeConfig, token_from
from gpu_host.node.http_server import HttpServer, reply_json
from tests.gpu_host.node.caller import Caller
from tests.support.sockets import until_closed
from tests.support.waiting import wait_for

SIMULATOR = "gpu_host.node.simulator:run"
Start = Callable[..., Caller]


def connect(caller: Caller, send: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", caller.node.port), timeout=60)
    connection.sendall(send)
    return connection


# -- the token -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer ünd"}])
@pytest.mark.parametrize(
    "asked", ["POST /generate", "GET /health", "GET /runs", "POST /cancel/x", "POST /faults"]
)
def test_without_its_token_a_node_refuses_every_request(
    start: Start, asked: str, sent: dict[str, str]
) -> None:
    method, path = asked.split()
    caller = start(token="secret")
    answer = caller.ask(method, path, {"seconds": 0}, {name: value.encode() for name, value in sent.items()})
    assert (answer.status, answer.body["code"]) == (401, "invalid_token")
    assert caller.node.runs() == []


def test_a_length_of_thousands_of_digits_is_refused(start: Start) -> None:
    head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n"
    assert b" 400 " in until_closed(connect(start(), head)).partition(b"\r\n")[0]


@pytest.mark.parametrize(
    "line", [b"Content-Length : 36", b"Content-Length: 0\r\nContent-Length: 36", b"no header at all"]
)
def test_a_body_after_a_head_that_can_not_be_read_is_no_request(start: Start, line: bytes) -> None:
    caller = start()
    head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\n" + line + b"\r\n\r\n"
    said = until_closed(connect(caller, head + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    assert said.count(b"HTTP/1.1 ") == 1
    assert b" 400 " in said.partition(b"\r\n")[0]
    assert caller.node.runs() == []


def test_with_its_token_it_serves(start: Start) -> None:
    caller = start(token="secret")
    answer = caller.direct({"seconds": 0}, Authorization="Bearer secret")
    assert (answer.status, answer.body["status"]) == (200, "success")


def test_a_body_is_not_read_before_the_token(start: Start) -> None:
    caller = start(token="secret")
    head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30000000\r\n\r\n"
    assert b"401" in until_closed(connect(caller, head)).partition(b"\r\n")[0]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.1.2.3", "gpu-box"])
def test_a_node_that_others_can_reach_needs_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match=r"other machines reach .*--token-file.*--open") as refused:
        NodeConfig(handler=SIMULATOR, host=host)
    assert "\n" not in str(refused.value)
    NodeConfig(handler=SIMULATOR, host=host, token="secret")
    NodeConfig(handler=SIMULATOR, host=host, open_to_all=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_a_node_on_loopback_needs_no_token(host: str) -> None:
    NodeConfig(handler=SIMULATOR, host=host)


@pytest.mark.parametrize("token", ["two words", "bell\x07", "ü"])
def test_a_token_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="printable ASCII"):
        NodeConfig(handler=SIMULATOR, token=token)


def test_a_token_is_in_no_repr() -> None:
    assert "secret" not in repr(NodeConfig(handler=SIMULATOR, token="secret"))


def test_where_the_token_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("of the file\n".replace(" ", "-"))
    given: dict[str, Any] = {"token": "", "token_file": None}
    assert token_from(given) == ""
    monkeypatch.setenv(TOKEN_VARIABLE, "of-the-environment")
    assert token_from(given) == "of-the-environment"
    assert token_from(given | {"token_file": file}) == "of-the-file"
    assert token_from(given | {"token_file": file, "token": "said"}) == "said"
    file.write_text("\n")
    with pytest.raises(ConfigError, match="no token in its first line"):
        token_from(given | {"token_file": file})
    with pytest.raises(ConfigError, match="can't be read"):
        token_from(given | {"token_file": tmp_path / "none"})


# -- fences --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fence", [str(2**53 + 1), "9" * 30, "-1", "1.5", "²"])
def test_a_fence_beyond_the_dispatchers_range_blocks_no_slot(start: Start, fence: str) -> None:
    caller = start()
    wrong = caller.ask(
        "POST",
        "/generate",
        {"seconds": 0},
        {"X-Slot": "box/0", "X-Fence": fence.encode()},  # type: ignore[dict-item]
    )
    assert (wrong.status, wrong.body["code"]) == (400, "bad_input")
    assert caller.dispatch({"seconds": 0}, X_Slot="box/0", X_Fence="1").status == 200


def test_the_largest_fence_is_taken(start: Start) -> None:
    assert start().dispatch({"seconds": 0}, X_Slot="box/0", X_Fence=str(2**53)).status == 200


def test_the_number_of_remembered_slots_is_limited(start: Start) -> None:
    caller = start(slots=4, max_slot_names=3)
    for slot in range(5):
        caller.dispatch({"seconds": 0}, X_Slot=f"box/{slot}", X_Fence="1")
    assert set(caller.node.admission._fences) == {"box/2", "box/3", "box/4"}


# -- connections ---------------------------------------------------------------------------------------------


HURRIED = RequestTimes(head=0.2, body=0.4, body_idle=0.2)
PATIENT = RequestTimes(head=3600.0)
"""No connection is closed for being late."""


@pytest.mark.parametrize(
    "sent",
    [
        b"", b"GET /hea", b"GET /health HTTP/1.1\r\nHost: localhost\r\n",
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n[1",
    ],
    ids=["nothing", "a word", "half a head", "no body", "half a body"],
)  # fmt: skip
def test_a_connection_without_a_request_times_out(start: Start, sent: bytes) -> None:
    assert until_closed(connect(start(request_times=HURRIED), sent)) == b""


@pytest.mark.parametrize("body", [False, True], ids=["head", "body"])
def test_a_dripping_request_times_out(start: Start, body: bool) -> None:
    head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n" + (
        b"\r\n" if body else b"X: "
    )
    connection = connect(start(request_times=HURRIED), head)
    connection.settimeout(0.05)
    is_open = True
    while is_open:
        try:
            connection.sendall(b"1")
            is_open = bool(connection.recv(1))
        except TimeoutError:
            continue
        except ConnectionError:
            break


def test_a_kept_connection_waits_longer_for_its_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        kept, buffer = TimedReader(ours, RequestTimes()), memoryview(bytearray(10))
        kept.await_next_head()
        now += RequestTimes().idle - 1
        theirs.sendall(b"GE")
        assert kept.readinto(buffer) == 2
        now += RequestTimes().head
        theirs.sendall(b"T")
        with pytest.raises(TimeoutError):
            kept.readinto(buffer)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"x" * 70_000,
        b"GET / HTTP/1.1\r\n" + b"X-Long: " + b"x" * 70_000,
        b"GET / HTTP/1.1\r\n" + b"A: %s\r\n" % (b"x" * 1000) * 70,
    ],
    ids=["the URL", "a header", "many headers"],
)
def test_the_size_of_a_head_is_limited(start: Start, head: bytes) -> None:
    said = until_closed(connect(start(), head))
    assert said.split(b" ")[1] in (b"431", b"414")


def test_at_the_limit_of_connections_the_oldest_idle_one_is_closed(start: Start) -> None:
    caller = start(max_connections=2, request_times=PATIENT)
    oldest, second = connect(caller), None
    wait_for(lambda: len(caller.node._http.connections._threads) == 1)
    second = connect(caller)
    wait_for(lambda: len(caller.node._http.connections._threads) == 2)
    assert caller.ask("GET", "/health").status == 200
    assert until_closed(oldest) == b""
    second.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert second.recv(65536).startswith(b"HTTP/1.1 200")


def test_connections_with_a_run_are_not_closed(start: Start, gate: Any) -> None:
    caller = start(
        handler="tests.gpu_host.node.custom_handlers:held", max_connections=1, request_times=PATIENT
    )
    run = caller.later(caller.direct, {})
    assert gate.begun.wait(60)
    assert until_closed(connect(caller)) == b""
    gate.release.set()
    assert run.result(60).status == 200


def test_without_a_descriptor_a_node_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux says that the listener is ready again at once."""
    tries, slept = [], threading.Event()
    server = HttpServer(
        "127.0.0.1", 0, lambda request: reply_json({}), max_body_bytes=1, max_connections=5, token=""
    )
    monkeypatch.setattr(
        "gpu_host.node.http_server.time.sleep", lambda seconds: slept.set() or os.sched_yield()
    )

    class Listener(socket.socket):
        def accept(self) -> Any:
            tries.append(1)
            if len(tries) < 3:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    ended = []
    monkeypatch.setattr(Connections, "end_oldest", lambda self: ended.append(1))
    plain = socket.create_server

    def create_server(*args: Any, **options: Any) -> socket.socket:
        made = plain(*args, **options)
        return Listener(made.family, made.type, made.proto, made.detach())

    monkeypatch.setattr("gpu_host.node.http_server.socket.create_server", create_server)
    server.open()
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        assert slept.is_set()
        assert len(ended) == 2
    finally:
        server.close()
        server.cut()
