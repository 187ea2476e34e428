"""Events of runs for Flower; that Flower shows them is tested in test_flower.py."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from dispatcher_project.celery_transport import events
from dispatcher_project.celery_transport.events import BoundedEventDispatcher, ShownRuns
from gpus.protocol import Lease

LEASE = Lease("zimg", "gpu-1/2", "J1", "A1", 1, "zimg", "7", 5, 1, 0, 2.0)


def test_no_event_is_sent_outside_a_task_or_before_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = ShownRuns()
    runs.show(LEASE)
    sent: list[Any] = []
    way = SimpleNamespace(send=lambda *args, **fields: sent.append(fields))
    runs.eventer = way
    runs.show(LEASE)
    assert sent == []
    monkeypatch.setattr(events, "current_task", SimpleNamespace(request=SimpleNamespace(id="t1")))
    runs.show(LEASE)
    assert sent == [{"uuid": "t1", "args": "zimg on gpu-1/2", "kwargs": "{'job_id': 'J1'}"}]


def test_each_connection_has_its_own_event_dispatcher() -> None:
    runs = ShownRuns()
    consumer = SimpleNamespace(event_dispatcher="new one")
    runs.step()(consumer).start(consumer)
    assert runs.eventer == "new one"


def test_a_refusing_broker_blocks_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **fields: Any) -> None:
        raise ConnectionError("the broker is away")

    runs = ShownRuns()
    runs.eventer = SimpleNamespace(send=refuse)
    monkeypatch.setattr(events, "current_task", SimpleNamespace(request=SimpleNamespace(id="t1")))
    runs.show(LEASE)


def test_a_run_that_begins_during_a_heartbeat_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Events leave by a thread of their own, so the dispatcher's mutex is never held for long."""
    app = Celery("test")
    sent: list[Any] = []
    app.events = SimpleNamespace(publisher=SimpleNamespace(put=lambda event, options: sent.append(event)))
    connection = SimpleNamespace(transport=SimpleNamespace(driver_type="redis"))
    eventer = BoundedEventDispatcher(connection, app=app, enabled=False)
    eventer.enabled, eventer.producer = True, object()
    runs = ShownRuns()
    runs.eventer = eventer
    monkeypatch.setattr(events, "current_task", SimpleNamespace(request=SimpleNamespace(id="t1")))
    run = threading.Thread(target=runs.show, args=[LEASE])
    with eventer.mutex:  # the heartbeat's
        run.start()
        run.join(0.2)
    run.join()
    assert [event["kwargs"] for event in sent] == ["{'job_id': 'J1'}"]
