""".ci/find_postgresql.py, the one script outside the packages."""

from __future__ import annotations

import importlib.util
import socket
import threading
from collections.abc import Iterator
from types import ModuleType

import pytest

from dispatcher_project.supervisor.data_folder import ROOT

OK = b"R\x00\x00\x00\x08\x00\x00\x00\x00"
ASKS_FOR_A_PASSWORD = b"R\x00\x00\x00\x08\x00\x00\x00\x03"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("find_postgresql", ROOT / ".ci" / "find_postgresql.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[int]:
    """A port that answers a start-up message with the bytes of the parameter."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                assert b"user\0postgres\0" in connection.recv(1024)
                connection.sendall(request.param)

        thread = threading.Thread(target=answer)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


@pytest.mark.parametrize(
    ("server", "lets_in"), [(OK, True), (ASKS_FOR_A_PASSWORD, False), (b"E", False)], indirect=["server"]
)
def test_only_a_server_that_asks_for_nothing_counts(server: int, lets_in: bool, script: ModuleType) -> None:
    assert script.lets_in(("127.0.0.1", server), "postgres") is lets_in


def test_without_a_server_none_is_found(script: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert not script.lets_in(str(tmp_path_factory.mktemp("p") / "s"), "postgres")
