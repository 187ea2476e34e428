"""Row prefetch: which rows are read ahead, how old they may be, and which changes they must not hide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from gpus.protocol import Ticket
from jobs.domain.states import JobState
from jobs.execution import claiming, row_prefetch
from jobs.execution.row_prefetch import (
    FRESH_SECONDS,
    JUDGED_SECONDS,
    MAX_ROWS,
    REST_SECONDS,
    SHORT_SECONDS,
    RowPrefetch,
)
from jobs.models import Job
from tests.support.factories import make_job, make_model
from tests.support.fake_leases import FakeLeases
from tests.support.fakes import ManualClock, make_ports
from tests.support.waiting import wait_for
from tests.support.worker_harness import WorkerHarness, state

pytestmark = pytest.mark.django_db(transaction=True)


class Counted(FakeLeases):
    asked = 0

    def next_jobs(self, pool: str, most: int) -> list[str]:
        self.asked += 1
        return super().next_jobs(pool, most)


class Line:
    """A line on paper, and a reader of it under a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.leases = Counted()
        self.ahead = RowPrefetch(make_ports(cast(Any, self.leases), clock=self.clock))
        self.model = make_model("m")

    def jobs(self, count: int, **values: Any) -> list[str]:
        jobs = [make_job("m", payload={"number": number}, **values) for number in range(count)]
        self.leases.line += [Ticket(job.id, "m", "t", 5, 0) for job in jobs]
        return [job.id for job in jobs]

    def want(self, slots: int = 2, ran_seconds: float = 0.02) -> bool:
        """Whether there is something to look for."""
        self.ahead.request("main", "m", slots=slots, ran_seconds=ran_seconds)
        return self.ahead.requested.is_set()

    def look(self, slots: int = 2) -> None:
        self.want(slots)
        self.ahead.read_requested()

    def take(self, *job_ids: str) -> list[bool]:
        """Whether each one's row was at hand."""
        return [self.ahead.take("m", job_id) is not None for job_id in job_ids]


@pytest.fixture
def line() -> Line:
    return Line()


def test_a_prefetched_row_is_taken_once(line: Line) -> None:
    first, *others = line.jobs(5)
    assert line.take(first) == [False]
    line.look(slots=2)
    row = line.ahead.take("m", first)
    assert row is not None
    assert (row["payload"], row["attempts_made"]) == ({"number": 0}, 0)
    assert line.take(first) == [False]
    assert line.take(*others) == [True, True, True, False]


def test_no_row_is_read_while_each_slot_has_a_prefetched_one(line: Line) -> None:
    jobs = line.jobs(20)
    line.look(slots=2)
    assert not line.want(slots=2)
    del line.leases.line[:3]
    assert all(line.take(*jobs[:3]))
    assert line.want(slots=2)
    line.ahead.read_requested()
    assert all(line.take(*jobs[3:7]))


def test_rows_of_long_jobs_are_not_prefetched(line: Line) -> None:
    line.jobs(3)
    assert not line.want(ran_seconds=SHORT_SECONDS)
    assert line.want(ran_seconds=SHORT_SECONDS - 0.01)


def test_stale_rows_are_read_again(line: Line) -> None:
    jobs = line.jobs(6)
    line.look(slots=3)
    assert all(line.take(*jobs[:4]))
    line.clock.move(FRESH_SECONDS + 0.01)
    assert line.take(jobs[4]) == [False]
    del line.leases.line[:4]
    line.look()
    assert line.take(*jobs[4:]) == [True, True]


def test_rows_of_jobs_that_do_not_wait_are_not_kept(line: Line) -> None:
    waiting, moved = line.jobs(2)
    Job.objects.filter(id=moved).update(state=JobState.CANCELLED, finished_at=line.clock.now())
    line.look()
    assert line.take(waiting, moved) == [True, False]


def test_rows_of_jobs_claimed_during_the_read_are_not_kept(line: Line, monkeypatch) -> None:
    first, second = line.jobs(2)
    rows_among = row_prefetch._rows_among

    def meanwhile(ids: Sequence[str]) -> Any:
        assert line.take(first) == [False]
        return rows_among(ids)

    monkeypatch.setattr(row_prefetch, "_rows_among", meanwhile)
    line.look()
    assert line.take(first, second) == [False, True]


def test_rows_of_jobs_that_left_the_queue_are_dropped(line: Line) -> None:
    jobs = line.jobs(8)
    line.look()
    assert line.take(*jobs[:3]) == [True] * 3
    del line.leases.line[:4]  # the fourth went to another worker
    line.look()
    assert line.take(*jobs[3:8]) == [False, True, True, True, True]


def test_prefetched_rows_are_bounded_for_any_number_of_slots(line: Line) -> None:
    jobs = line.jobs(MAX_ROWS + 5)
    line.look(slots=1000)
    assert sum(line.take(*jobs)) == MAX_ROWS


def test_the_prefetch_pauses_where_most_rows_go_to_other_workers(line: Line) -> None:
    jobs = line.jobs(12)
    line.look()
    assert line.take(jobs[0]) == [True]
    del line.leases.line[:8]  # the others went to other workers
    line.clock.move(FRESH_SECONDS + JUDGED_SECONDS)
    line.look()
    asked = line.leases.asked
    line.clock.move(FRESH_SECONDS + JUDGED_SECONDS)
    assert not line.want()
    line.clock.move(REST_SECONDS)
    line.look()
    assert line.leases.asked == asked + 1
    assert line.take(jobs[8]) == [True]


def test_without_redis_the_row_prefetch_pauses_and_jobs_go_on(line: Line) -> None:
    line.jobs(3)
    line.leases.away = True
    line.look()
    line.leases.away = False
    line.look()
    assert line.leases.asked == 1
    line.clock.move(REST_SECONDS)
    line.look()
    assert line.leases.asked == 2


@pytest.mark.parametrize("harness", [{"slots": 1}], indirect=True)
def test_a_slot_goes_on_with_short_jobs_without_a_read(harness: WorkerHarness, monkeypatch, settings) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, hand_back_seconds=60.0)
    reads: list[str] = []
    to_run = claiming._to_run

    class Watched:
        def first(self, **values: Any) -> Any:
            reads.append(values["id"])
            return to_run.first(**values)

    monkeypatch.setattr(claiming, "_to_run", Watched())
    jobs = [harness.submit({"seconds": 0.1}) for _ in range(6)]
    thread = harness.work(harness.worker())
    wait_for(lambda: all(state(job) == JobState.COMPLETED for job in jobs))
    thread.join(10)
    assert reads[0] == jobs[0].id
    assert len(reads) < len(jobs) - 1
