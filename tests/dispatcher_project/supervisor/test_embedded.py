from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from dispatcher_project.supervisor import embedded
from dispatcher_project.supervisor.data_folder import ROOT
from dispatcher_project.supervisor.embedded import EmbeddedValkey, answers_ping, find_valkey
from tests.support.processes import is_alive
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(find_valkey() is None, reason="no Valkey or Redis server binary")


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("v")


def test_written_data_survives_a_kill(folder: Path) -> None:
    with EmbeddedValkey(folder) as server:
        with redis.Redis.from_url(server.url) as client:
            client.set("kept", "yes")
            client.execute_command("WAITAOF", 1, 0, 5000)
        server.kill()
    with EmbeddedValkey(folder) as server, redis.Redis.from_url(server.url) as client:
        assert client.get("kept") == b"yes"


def test_a_ping_is_answered_only_while_it_runs(folder: Path) -> None:
    server = EmbeddedValkey(folder, append_only=False)
    assert not answers_ping(server.socket)
    server.start()
    assert answers_ping(server.socket)
    server.stop()
    server.stop()
    assert not answers_ping(server.socket)


def test_a_long_path_gets_a_short_socket(folder: Path) -> None:
    with EmbeddedValkey(folder / ("d" * 100), append_only=False) as server:
        assert len(server.socket) < 100
    assert not Path(server.socket).parent.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux")
def test_it_dies_with_its_parent(folder: Path) -> None:
    code = (
        "import sys, signal; from pathlib import Path\n"
        "from dispatcher_project.supervisor.embedded import EmbeddedValkey\n"
        "server = EmbeddedValkey(Path(sys.argv[1])); server.start()\n"
        "print(server.pid, flush=True); signal.pause()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        os.kill(parent.pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(pid))


def test_without_a_server_the_error_has_a_remedy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match="set REDIS_URL"):
        EmbeddedValkey(folder).start()
