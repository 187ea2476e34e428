"""The sweep `refusals`: a job with many refusals keeps its last attempts; older ones are only counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpus.errors import GpuBusy, Interrupted
from gpus.protocol import LeaseRef
from jobs import transitions
from jobs.domain.retry import Ending, RetryPolicy
from jobs.events import hub
from jobs.models import Event, Job, SweepRun
from jobs.ports import Ports
from jobs.reports import jobs as shown_jobs
from jobs.reports.rollups import CURSOR
from jobs.sweeps import refusals
from tests.support.factories import make_job, make_running
from tests.support.fakes import START, ManualClock, WrongClocks, make_ports
from verification.laws import replayed

pytestmark = pytest.mark.django_db
KEPT_SECONDS = refusals.KEPT.total_seconds()
KEPT_ATTEMPTS = refusals.ATTEMPTS_SHOWN
SHOWN = 8
"""In these tests."""
AT_ONCE = RetryPolicy(free_attempts=0)
"""A job does not pause between its attempts, however often it is refused."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ports(clock: ManualClock) -> Ports:
    return make_ports(clock=clock)


@pytest.fixture(autouse=True)
def all_is_summed_up() -> None:
    SweepRun.objects.create(name=CURSOR, at=START, note=str(10**12))


def attempt(
    job: Job, clock: ManualClock, error: type[GpuBusy | Interrupted] = GpuBusy, progress: float | None = None
) -> None:
    attempt_id = make_running(job, at=clock.now())
    if progress is not None:
        lease = LeaseRef("gpu-1/0", job.id, attempt_id, 1)
        assert transitions.note_progress(lease, "progress", {"progress": progress}, clock.now())
    clock.move(1.0)
    ending = Ending(error("answered 503"))
    transitions.end_attempt(transitions.End(job.id, attempt_id, 1, "gpu-1/0", ending, AT_ONCE, clock.now()))


def refused(clock: ManualClock, times: int) -> Job:
    job = make_job(at=clock.now())
    for _ in range(times):
        attempt(job, clock)
    return job


def numbers(job: Job) -> list[int]:
    return list(job.attempts.order_by("number").values_list("number", flat=True))


def test_as_many_attempts_stay_as_a_job_shows() -> None:
    assert KEPT_ATTEMPTS == shown_jobs.ATTEMPTS_SHOWN


def test_the_last_attempts_stay_and_the_events_remain_consistent(clock: ManualClock, ports: Ports) -> None:
    job = refused(clock, 3 * SHOWN)
    clock.move(KEPT_SECONDS)
    assert refusals.sweep(ports, kept=SHOWN).repaired == 1
    assert numbers(job) == list(range(2 * SHOWN + 1, 3 * SHOWN + 1))
    job.refresh_from_db()
    assert (job.attempts_made, job.refusals_folded) == (3 * SHOWN, 2 * SHOWN)
    events = list(job.events.order_by("seq").values_list("seq", "type"))
    assert len(events) == 1 + 2 * SHOWN
    assert events[1] == (2 + 4 * SHOWN, "started")
    assert not list(replayed())
    assert refusals.sweep(ports, kept=SHOWN).looked == 0


def test_attempts_with_other_errors_stay(clock: ManualClock, ports: Ports) -> None:
    job = make_job(at=clock.now())
    attempt(job, clock, error=Interrupted)
    for _ in range(3 * SHOWN):
        attempt(job, clock)
    clock.move(KEPT_SECONDS)
    refusals.sweep(ports, kept=SHOWN)
    assert numbers(job)[:2] == [1, 2 * SHOWN + 2]


def test_a_pair_with_an_event_between_stays(clock: ManualClock, ports: Ports) -> None:
    job = make_job(at=clock.now())
    attempt(job, clock, progress=0.5)
    for _ in range(3 * SHOWN):
        attempt(job, clock)
    clock.move(KEPT_SECONDS)
    refusals.sweep(ports, kept=SHOWN)
    assert numbers(job)[:2] == [1, 2 * SHOWN + 2]


def test_attempts_younger_than_an_hour_stay(clock: ManualClock, ports: Ports) -> None:
    job = refused(clock, 3 * SHOWN)
    clock.move(KEPT_SECONDS - 4 * SHOWN)
    assert refusals.sweep(ports, kept=SHOWN).repaired == 0
    assert len(numbers(job)) == 3 * SHOWN


@pytest.mark.database
def test_attempts_that_are_in_no_rollup_yet_stay(clock: ManualClock, ports: Ports) -> None:
    job = refused(clock, 3 * SHOWN)
    fifth = Event.objects.get(job=job, seq=5)
    SweepRun.objects.filter(name=CURSOR).update(note=str(fifth.id))
    clock.move(KEPT_SECONDS)
    refusals.sweep(ports, kept=SHOWN)
    assert numbers(job)[0] == 3


def test_no_row_is_deleted_while_clocks_disagree(clock: ManualClock) -> None:
    job = refused(clock, 3 * SHOWN)
    clock.move(KEPT_SECONDS)
    ports = make_ports(clock=clock)
    count = refusals.sweep(replace(ports, clock_watch=WrongClocks()), kept=SHOWN)
    assert "paused" in count.notes[0]
    assert len(numbers(job)) == 3 * SHOWN


@pytest.mark.database
def test_an_event_stream_continues_after_the_gap(clock: ManualClock, ports: Ports) -> None:
    job = refused(clock, 4 * SHOWN)
    clock.move(KEPT_SECONDS)
    refusals.sweep(ports, kept=SHOWN)
    seen: list[int] = []
    last = 3
    while True:
        read = hub.read_new_events({job.id: last}, 5)[job.id]
        seen += [event.seq for event in read.events]
        if not read.has_more:
            break
        last = seen[-1]
    assert seen == list(range(6 * SHOWN + 2, 8 * SHOWN + 2))
