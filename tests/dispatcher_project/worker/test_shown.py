"""What Flower is told of a run; that it shows it is tests/dispatcher_project/test_flower.py's."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher_project.worker import shown
from gpus.protocol import Lease

LEASE = Lease("zimg", "gpu-1/2", "J1", "A1", 1, "zimg", "7", 5, 1, 0, 2.0)


def test_nothing_is_told_outside_a_task_or_before_there_is_a_way(monkeypatch: pytest.MonkeyPatch) -> None:
    shown.show_run(LEASE)
    sent: list[Any] = []
    way = SimpleNamespace(send=lambda *args, **fields: sent.append(fields), mutex=threading.Lock())
    monkeypatch.setattr(shown, "_eventer", way)
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


def test_a_broker_that_does_not_answer_holds_up_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **fields: Any) -> None:
        raise ConnectionError("the broker is away")

    way = SimpleNamespace(send=refuse, mutex=threading.Lock())
    monkeypatch.setattr(shown, "_eventer", way)
    monkeypatch.setattr(shown, "current_task", SimpleNamespace(request=SimpleNamespace(id="t1")))
    shown.show_run(LEASE)
    sent: list[Any] = []
    way.send = lambda *args, **fields: sent.append(fields)
    with way.mutex:  # somebody waits for it already
        shown.show_run(LEASE)
    assert sent == []
