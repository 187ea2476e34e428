"""What Flower is told of a run; that it shows it is tests/dispatcher_project/test_flower.py's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher_project.worker import shown
from gpus.protocol import Lease

LEASE = Lease("zimg", "gpu-1/2", "J1", "A1", 1, "zimg", "7", 5, 1, 0, 2.0)


def test_nothing_is_told_outside_a_task_or_before_there_is_a_way(monkeypatch: pytest.MonkeyPatch) -> None:
    shown.show_run(LEASE)
    sent: list[Any] = []
    monkeypatch.setattr(shown, "_eventer", SimpleNamespace(send=lambda *args, **fields: sent.append(fields)))
    shown.show_run(LEASE)
    assert sent == []
    monkeypatch.setattr(shown, "current_task", SimpleNamespace(request=SimpleNamespace(id="t1")))
    shown.show_run(LEASE)
    assert sent == [{"uuid": "t1", "args": "zimg on gpu-1/2", "kwargs": "{'job_id': 'J1'}"}]


def test_each_connection_has_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "_eventer", None)
    consumer = SimpleNamespace(event_dispatcher="new one")
    shown.ShownRuns(consumer).start(consumer)
    assert shown._eventer == "new one"
