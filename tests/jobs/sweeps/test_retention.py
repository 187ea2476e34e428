"""The sweep `retention`: old rows are deleted and counted; rows that are still needed stay."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from foundation.ids import new_id
from jobs import transitions
from jobs.domain.states import JobState
from jobs.models import (
    Callback,
    Event,
    IdempotencyKey,
    Job,
    PurgeLedger,
    PushedResult,
    ReceiverCircuit,
    SweepRun,
    Tenant,
)
from jobs.ports import Ports
from jobs.reports.rollups import CURSOR
from jobs.sweeps import retention
from tests.support.factories import create_jobs
from tests.support.fakes import START, WrongClocks
from tests.support.queue_harness import NoRedis, VirtualClock

pytestmark = pytest.mark.django_db


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def ports(clock: VirtualClock) -> Ports:
    return Ports(
        clock=clock,
        leases=lambda _: NoRedis(),
        send_wakes=len,
        wake_callbacks=lambda _: None,
        announce=lambda _: None,
        after=lambda seconds, work: None,
    )


@pytest.fixture(autouse=True)
def all_is_summed_up() -> None:
    SweepRun.objects.create(name=CURSOR, at=START, note=str(10**12))


@pytest.fixture
def tenant() -> Tenant:
    return Tenant.objects.create(name="t")


def ended(tenant: Tenant, at: datetime, state: JobState = JobState.CANCELLED, **fields: Any) -> Job:
    job = Job(
        id=new_id(at.timestamp()),
        tenant=tenant,
        model="m",
        pool="m",
        payload={},
        place_us=1,
        created_at=at,
        tags=["x"],
    )
    create_jobs([job], at)
    transitions.end_waiting(job.id, state, at, code="c", message="m")
    Job.objects.filter(id=job.id).update(**fields)
    return job


def test_old_jobs_are_deleted_with_their_rows_and_counted(
    ports: Ports, clock: VirtualClock, tenant: Tenant
) -> None:
    old = clock.now() - timedelta(days=31)
    gone = [ended(tenant, old) for _ in range(3)]
    IdempotencyKey.objects.create(tenant=tenant, key="k", fingerprint="f", job=gone[0])
    kept = ended(tenant, clock.now() - timedelta(days=29))
    assert retention.sweep(ports).repaired == 3
    assert list(Job.objects.values_list("id", flat=True)) == [kept.id]
    assert set(Event.objects.values_list("job_id", flat=True)) == {kept.id}
    assert not IdempotencyKey.objects.exists()
    assert list(PurgeLedger.objects.values_list("tenant", "state", "count")) == [(tenant.pk, "cancelled", 3)]
    ended(tenant, old)
    retention.sweep(ports)
    assert PurgeLedger.objects.get().count == 4


@pytest.mark.database
def test_a_job_with_a_pending_callback_stays(ports: Ports, clock: VirtualClock, tenant: Tenant) -> None:
    """The pending message would be deleted with the job."""
    old = clock.now() - timedelta(days=31)
    job, result = ended(tenant, old), ended(tenant, old)
    for one, state in ((job, "pending"), (result, "delivered")):
        Callback.objects.create(
            id=one.id, job=one, url="u", body="{}", state=state, created_at=old, next_at=old
        )
    assert retention.sweep(ports).repaired == 1
    assert Callback.objects.get().job_id == job.id
    Callback.objects.update(state="gave_up")
    assert retention.sweep(ports).repaired == 1
    assert not Job.objects.exists()


def test_circuits_of_unused_receivers_are_deleted(ports: Ports, clock: VirtualClock, tenant: Tenant) -> None:
    for receiver, days in (("old:80", 8), ("new:80", 6)):
        failed_at = clock.now() - timedelta(days=days)
        since = {"failing_since": failed_at, "failed_at": failed_at}
        ReceiverCircuit.objects.create(tenant=tenant, receiver=receiver, failures=3, **since)
    retention.sweep(ports)
    assert ReceiverCircuit.objects.get().receiver == "new:80"


def test_dead_letters_stay_three_times_as_long_unless_dismissed(
    ports: Ports, clock: VirtualClock, tenant: Tenant
) -> None:
    old = clock.now() - timedelta(days=80)
    kept = ended(tenant, old, JobState.FAILED)
    ended(tenant, old, JobState.FAILED, dismissed_at=old)
    ended(tenant, clock.now() - timedelta(days=91), JobState.FAILED)
    assert retention.sweep(ports).repaired == 2
    assert Job.objects.get().id == kept.id


def test_an_old_job_that_still_waits_stays(ports: Ports, clock: VirtualClock, tenant: Tenant) -> None:
    at = clock.now() - timedelta(days=400)
    job = Job(
        id=new_id(at.timestamp()), tenant=tenant, model="m", pool="m", payload={}, place_us=1, created_at=at
    )
    create_jobs([job], at)
    assert retention.sweep(ports).repaired == 0
    assert Job.objects.filter(id=job.id).exists()


def test_a_dead_letter_that_is_retried_meanwhile_stays(
    ports: Ports, clock: VirtualClock, tenant: Tenant
) -> None:
    job = ended(tenant, clock.now() - timedelta(days=100), JobState.FAILED)
    transitions.requeue_failed(job.id, clock.now())
    assert retention.purge_jobs([job.id]) == 0
    assert Job.objects.filter(id=job.id).exists()
    assert not PurgeLedger.objects.exists()


def test_one_run_deletes_more_than_a_batch(ports: Ports, clock: VirtualClock, tenant: Tenant) -> None:
    for _ in range(5):
        ended(tenant, clock.now() - timedelta(days=31))
    count = retention.sweep(ports, batch=2)
    assert (count.looked, count.repaired) == (3, 5)


def test_a_run_is_limited_by_time_not_by_rows(
    ports: Ports, clock: VirtualClock, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        ended(tenant, clock.now() - timedelta(days=31))
    real = retention.purge_jobs

    def slowly(ids: list[str]) -> int:
        clock.advance(retention.BUDGET_SECONDS / 2.5)
        return real(ids)

    monkeypatch.setattr(retention, "purge_jobs", slowly)
    assert [retention.sweep(ports, batch=1).repaired for _ in range(3)] == [3, 2, 0]


def test_unused_pushed_results_are_deleted_after_a_day(ports: Ports, clock: VirtualClock) -> None:
    for name, hours in (("old", 25), ("new", 23)):
        PushedResult.objects.create(
            attempt_id=name, job_id="j", body={}, received_at=clock.now() - timedelta(hours=hours)
        )
    retention.sweep(ports)
    assert PushedResult.objects.get().attempt_id == "new"


def test_a_job_whose_end_is_in_no_rollup_yet_stays(tenant: Tenant, ports: Ports, clock: VirtualClock) -> None:
    counted = ended(tenant, clock.now() - timedelta(days=400))
    SweepRun.objects.filter(name=CURSOR).update(note=str(Event.objects.latest("id").id))
    uncounted = ended(tenant, clock.now() - timedelta(days=400))

    assert retention.sweep(ports).repaired == 1
    assert list(Job.objects.values_list("id", flat=True)) == [uncounted.id]
    assert PurgeLedger.objects.get().count == 1
    assert counted.id != uncounted.id


@pytest.mark.database
def test_no_row_is_deleted_while_clocks_disagree(ports: Ports, clock: VirtualClock, tenant: Tenant) -> None:
    old = ended(tenant, clock.now() - timedelta(days=31))
    clocks = WrongClocks()
    ports = replace(ports, clock_watch=clocks)
    count = retention.sweep(ports)
    assert (count.repaired, count.notes) == (0, ("paused: the clock of Redis is 3600 s ahead",))
    assert Job.objects.filter(id=old.id).exists()
    clocks.ahead = 0.0
    assert retention.sweep(ports).repaired == 1
