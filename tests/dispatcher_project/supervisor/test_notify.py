from __future__ import annotations

from pathlib import Path

import pytest

from dispatcher_project.supervisor.notify import ALIVE, READY, NotifySocket, notify


@pytest.fixture
def listening(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> NotifySocket:
    socket = NotifySocket(Path(tmp_path_factory.mktemp("n")) / "web")
    monkeypatch.setenv("NOTIFY_SOCKET", str(socket.path))
    return socket


def test_messages_arrive(listening: NotifySocket) -> None:
    notify(READY)
    notify(ALIVE)
    notify(ALIVE)
    assert listening.read() == {READY, ALIVE}
    assert listening.read() == set()
    listening.close()


def test_without_a_listener_notify_does_nothing(
    listening: NotifySocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening.close()
    notify(READY)
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify(READY)


def test_a_listener_that_does_not_read_blocks_no_sender(listening: NotifySocket) -> None:
    for _ in range(5000):
        notify(ALIVE)
    listening.close()
