"""Which run a process advances next."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from django.db import OperationalError

from tests.support.waiting import wait_for
from workflows.execution.due_runs import TOGETHER, DueRuns
from workflows.execution.fair_queue import FairQueue

BOMB, LIGHT, OTHER = 1, 2, 3


def test_a_tenant_with_a_thousand_runs_delays_another_by_one_transaction() -> None:
    queue = FairQueue()
    for number in range(1_000):
        queue.add(f"bomb{number}", BOMB)
    for _ in range(50):
        run = queue.take()
        assert run is not None
        queue.give_back(run, 0.02, more=True)
    underway = queue.take()
    queue.add("light", LIGHT)
    assert underway is not None
    queue.give_back(underway, 0.02, more=True)
    assert queue.take() == "light"


def test_tenants_with_work_get_the_same_time_whatever_their_transactions_take() -> None:
    queue = FairQueue()
    costs = {BOMB: 0.5, LIGHT: 0.01, OTHER: 0.1}
    for tenant in costs:
        for number in range(10):
            queue.add(f"{tenant}.{number}", tenant)
    used = Counter[int]()
    for _ in range(2_000):
        run = queue.take()
        assert run is not None
        tenant = int(run.split(".")[0])
        used[tenant] += round(costs[tenant] * 1000)
        queue.give_back(run, costs[tenant], more=True)
    assert max(used.values()) - min(used.values()) <= 1_000 * max(costs.values())


def test_a_tenant_that_comes_anew_saved_up_no_time() -> None:
    queue = FairQueue()
    queue.add("old", BOMB)
    for _ in range(100):
        assert queue.take() == "old"
        queue.give_back("old", 1.0, more=True)
    queue.add("new", LIGHT)
    turns = []
    for _ in range(6):
        run = queue.take()
        assert run is not None
        turns.append(run)
        queue.give_back(run, 1.0, more=True)
    assert Counter(turns) == {"old": 3, "new": 3}


def test_a_run_is_in_the_queue_once_and_one_thread_has_it() -> None:
    queue = FairQueue()
    queue.add("a", BOMB)
    queue.add("a", BOMB)
    assert (queue.take(), queue.take()) == ("a", None)
    queue.add("a", BOMB)
    assert queue.take() is None, "another thread has it"
    queue.give_back("a", 0.0, more=False)
    assert queue.take() == "a", "it was woken meanwhile"
    queue.give_back("a", 0.0, more=False)
    assert queue.take() is None


# -- threads ------------------------------------------------------------------------------------------------


class Recorded(DueRuns):
    """Due runs whose tenant is the first letter of their id."""

    def __init__(self, threads: int = 1) -> None:
        super().__init__(self, threads=threads)  # type: ignore[arg-type]
        self.order: list[list[str]] = []
        self.hints: list[str] = []
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        self.may_go_on.set()
        self.fails = False

    def add(self, run_ids) -> None:  # type: ignore[no-untyped-def]
        for run_id in run_ids:
            self.queue.add(run_id, int(run_id[0]))

    def advance_together(self, run_ids: list[str]) -> dict[str, bool]:
        self.order.append(list(run_ids))
        self.begun.set()
        assert self.may_go_on.wait(10)
        if self.fails:
            raise OperationalError
        return {run_id: run_id[0] == "1" and len(self.order) < 5 for run_id in run_ids}

    @property
    def ports(self) -> Recorded:
        return self

    def wake_followers(self, followers: list[str]) -> None:
        self.hints += followers


def test_a_wake_is_taken_at_once_while_other_threads_advance() -> None:
    due = Recorded()
    due.may_go_on.clear()
    thread = threading.Thread(target=due.wake, args=([f"1.{number}" for number in range(10)],))
    thread.start()
    assert due.begun.wait(10)
    due.wake(["2.light"])  # returns, though the other thread is in a transaction
    due.may_go_on.set()
    thread.join(10)
    assert due.order[1][0] == "2.light"
    assert due.busy() == 0


def test_runs_that_a_dead_database_dropped_do_not_stop_the_next_wake() -> None:
    due = Recorded()
    due.fails = True
    with pytest.raises(OperationalError):
        due.wake(["1.a", "1.b"])
    due.fails = False
    due.wake(["2.a"])
    assert due.order == [["1.a", "1.b"], ["2.a"]]
    assert due.busy() == 0


def test_a_stopping_process_leaves_its_runs_to_others() -> None:
    due = Recorded()
    due.may_go_on.clear()
    runs = [f"1.{number}" for number in range(TOGETHER + 3)]
    thread = threading.Thread(target=due.wake, args=(runs,))
    thread.start()
    assert due.begun.wait(10)
    due.drain()
    due.may_go_on.set()
    thread.join(10)
    wait_for(lambda: due.busy() == 0)
    assert due.order == [runs[:TOGETHER]]
    assert sorted(due.hints) == sorted(f"run:{run}" for run in runs[TOGETHER:])


def test_a_defect_of_one_run_does_not_stop_the_others() -> None:
    class Defective(Recorded):
        def advance_together(self, run_ids: list[str]) -> dict[str, bool]:
            if "1.bad" in run_ids:
                raise ValueError("a defect")
            return super().advance_together(run_ids)

        def advance(self, run_id: str | None = None) -> Any:
            return self.advance_together([run_id])[run_id] if run_id else super().advance()

    due = Defective()
    due.wake(["1.a", "1.bad", "2.a"])
    assert sorted(run for runs in due.order for run in runs if run[0] == "2") == ["2.a"]
    assert any("1.a" in runs for runs in due.order)
    assert due.busy() == 0
