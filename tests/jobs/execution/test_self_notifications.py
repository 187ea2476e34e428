"""A worker ignores its own announcements, and checks at once for those of other processes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dispatcher_project import wiring
from jobs import ports
from jobs.events.announce import SelfNotifications
from tests.support.fakes import PortCalls, make_ports


def test_each_own_announcement_is_dropped_once() -> None:
    sent: list[str] = []
    notifications = SelfNotifications()
    announce = notifications.tracking(sent.extend)
    announce(["a", "b"])
    announce(["a"])
    assert sent == ["a", "b", "a"]
    assert notifications.from_others(["a", "c"]) == {"c"}
    assert notifications.from_others(["a", "b"]) == set()
    assert notifications.from_others(["a", "b"]) == {"a", "b"}, "these are from others"


def test_announcements_that_never_come_back_do_not_pile_up() -> None:
    notifications = SelfNotifications(max_under_way=10)
    announce = notifications.tracking(lambda job_ids: None)
    for number in range(100):
        announce([str(number)])
    assert len(notifications._under_way) <= 11


@pytest.mark.django_db(transaction=True)
def test_a_worker_does_not_check_for_its_own_announcements(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = PortCalls()
    monkeypatch.setattr(ports, "production_ports", lambda: make_ports(calls=calls))
    worker = wiring.make_gpu_worker(
        threads=1, queues=tuple, on_registry=lambda: None, show_run=lambda _: None
    )
    assert worker._listener is not None
    worker.runs._runs = {"attempt": (SimpleNamespace(job_id="mine"), None)}  # type: ignore[dict-item]
    worker.completion.ports.announce(["mine"])
    assert calls.announced == ["mine"]
    worker.nudge(["mine"])
    assert not worker.nudged.is_set(), "its echo"
    worker.nudge(["mine"])
    assert worker.nudged.is_set(), "another process's"
