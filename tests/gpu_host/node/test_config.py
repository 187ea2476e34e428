from __future__ import annotations

import socket
import threading

import pytest

from gpu_host.node.config import ConfigError, NodeConfig, read_handlers
from gpu_host.node.handlers import load_handlers
from gpu_host.node.server import Node

SIMULATOR = "gpu_host.node.simulator:run"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"handler": SIMULATOR, "handlers": {"a": SIMULATOR}},
        {"handler": SIMULATOR, "mode": "later"},
        {"handler": SIMULATOR, "slots": 0},
        {"handler": SIMULATOR, "direct_queue": -1},
        {"handler": SIMULATOR, "port": 70_000},
        {"handlers": {"health": SIMULATOR}},
        {"handlers": {"a/b": SIMULATOR}},
    ],
)
def test_an_invalid_configuration_is_refused(settings):
    with pytest.raises(ConfigError):
        NodeConfig(**settings)


def test_handlers_are_read_from_the_command_line():
    assert read_handlers(["m:run"]) == {"handler": "m:run"}
    assert read_handlers(["a=m:run", "b=n:run"]) == {"handlers": {"a": "m:run", "b": "n:run"}}
    for texts in (["m:run", "n:run"], ["a=m:run", "n:run"], ["a=m:run", "a=n:run"]):
        with pytest.raises(ConfigError):
            read_handlers(texts)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "gpu_host.node.http_server",
        "no.such.module:run",
        "gpu_host.node.simulator:nothing",
        ":run",
        "tests.gpu_host.node.custom_handlers:not_a_function",
        "tests.gpu_host.node.badly_named",
    ],
)
def test_a_handler_that_cannot_be_loaded_is_reported_with_the_reason(path):
    with pytest.raises(ConfigError, match=r"handler"):
        load_handlers(path)


def test_a_module_that_names_its_models_is_given_no_other_name():
    with pytest.raises(ConfigError, match="leave out flux="):
        load_handlers("tests.gpu_host.node.many_models", model="flux")


def test_a_taken_port_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        Node(NodeConfig(handler=SIMULATOR, port=taken.getsockname()[1])).start()


def test_a_node_ends_with_its_threads_and_may_be_stopped_twice():
    before = set(threading.enumerate())
    node = Node(NodeConfig(handler=SIMULATOR, mode="async"))
    node.start()
    with socket.create_connection(("127.0.0.1", node.port)) as kept:
        kept.sendall(b"GET /health HTTP/1.1\r\n\r\n")
        assert kept.recv(10_000)
        node.stop()
        assert kept.recv(1) == b""
    node.stop()
    assert set(threading.enumerate()) <= before
