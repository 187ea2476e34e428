"""A ticket that Redis did not accept is pushed again by its process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpus.errors import LeasingUnavailable
from gpus.leasing.values import Pushed
from gpus.protocol import Ticket
from jobs.ports import Ports
from jobs.submission import submit
from jobs.submission.submit import push_again
from tests.support.fakes import ManualClock


class Line:
    """A Redis that comes and goes, and a background that the test drives."""

    def __init__(self) -> None:
        self.is_there = False
        self.pushed: list[tuple[str, list[str]]] = []
        self.later: list[Callable[[], None]] = []
        leases: Any = self
        self.ports = Ports(
            clock=ManualClock(),
            leases=lambda fleet: leases,
            send_wakes=lambda wakes: 0,
            wake_callbacks=lambda ids: None,
            announce=lambda ids: None,
            after=lambda seconds, work: self.later.append(work),
        )

    def push(self, pool: str, tickets: Sequence[Ticket]) -> Pushed:
        if pool == "broken":
            raise ValueError("a bug")
        if not self.is_there:
            raise LeasingUnavailable("away")
        self.pushed.append((pool, [ticket.job_id for ticket in tickets]))
        return Pushed((), ())

    def a_second_passes(self) -> None:
        self.later.pop()()


def ticket(job: str) -> Ticket:
    return Ticket(job, "m", "1", 5, 0)


def test_a_ticket_is_pushed_every_second_until_redis_accepts_it() -> None:
    line = Line()
    push_again("main", "a", [ticket("1")], line.ports)
    line.a_second_passes()
    push_again("main", "a", [ticket("2")], line.ports)
    push_again("main", "b", [ticket("3")], line.ports)
    assert len(line.later) == 1
    line.is_there = True
    line.a_second_passes()
    assert line.pushed == [("a", ["1", "2"]), ("b", ["3"])]
    assert not line.later


def test_tickets_of_a_second_outage_are_pushed_again_too() -> None:
    line = Line()
    line.is_there = True
    for job in ("1", "2"):
        push_again("main", "a", [ticket(job)], line.ports)
        line.a_second_passes()
    assert line.pushed == [("a", ["1"]), ("a", ["2"])]


def test_pending_tickets_are_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr(submit, "MAX_TICKETS", 2)
    line = Line()
    push_again("main", "a", [ticket(str(number)) for number in range(5)], line.ports)
    push_again("main", "b", [ticket("9")], line.ports)
    line.is_there = True
    line.a_second_passes()
    assert line.pushed == [("a", ["0", "1"])]


def test_a_ticket_that_always_fails_does_not_stop_the_others() -> None:
    line = Line()
    push_again("main", "broken", [ticket("1")], line.ports)
    push_again("main", "a", [ticket("2")], line.ports)
    line.a_second_passes()
    line.is_there = True
    line.a_second_passes()
    assert line.pushed == [("a", ["2"])]
    assert not line.later
