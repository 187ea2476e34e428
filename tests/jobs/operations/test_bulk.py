"""Actions on many jobs: all that match a filter, a bounded number per call, one entry in the audit."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from foundation.ids import new_id
from gpus.errors import BadInput, GpuError, RunFailed
from gpus.models import AuditEntry
from jobs import transitions
from jobs.domain.errors import NotCancellable
from jobs.domain.retry import Ending, RetryPolicy
from jobs.domain.states import JobState
from jobs.models import Job
from jobs.operations import bulk as bulk_operations
from jobs.operations import jobs as job_operations
from jobs.operations.bulk import BulkAction, BulkOutcome, cancel_jobs, count, dismiss_jobs, retry_jobs
from jobs.operations.jobs import cancel_job, dismiss_dead_letter, retry_dead_letter
from jobs.reports.jobs import JobFilter
from jobs.reports.retried import jobs_of_entries
from jobs.transitions import End
from tests.support.factories import make_job, make_running, make_tenant
from tests.support.fake_leases import FakeLeases
from tests.support.fakes import START, PortCalls, make_ports

pytestmark = pytest.mark.django_db

BY = "user:boss"


def make_dead_letter(error: GpuError | None = None, **values: Any) -> Job:
    job = make_job(**values)
    ending = Ending(error or RunFailed("no"))
    end = End(job.id, make_running(job), 1, "gpu-1/0", ending, RetryPolicy(max_retries=0), START)
    with transaction.atomic():
        transitions.end_attempt(end)
    job.refresh_from_db()
    return job


def states(jobs: list[Job]) -> list[str]:
    return [Job.objects.get(id=job.id).state for job in jobs]


# -- the filter ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "matches"),
    [
        (JobFilter(), True),
        (JobFilter(model="flux"), True),
        (JobFilter(model="zimg"), False),
        (JobFilter(tenant="other"), True),
        (JobFilter(tenant="acme"), False),
        (JobFilter(state=JobState.FAILED), True),
        (JobFilter(state=JobState.QUEUED), False),
        (JobFilter(error_code="run_failed"), True),
        (JobFilter(error_code="timeout"), False),
        (JobFilter(fingerprint="0" * 16), False),
        (JobFilter(tag="night"), True),
        (JobFilter(tag="day"), False),
        (JobFilter(created_after=START), True),
        (JobFilter(created_after=START + timedelta(seconds=1)), False),
        (JobFilter(created_before=START + timedelta(seconds=1)), True),
        (JobFilter(created_before=START), False),
        (JobFilter(server="gpu-1"), True),
        (JobFilter(server="gpu-2"), False),
        (JobFilter(model="flux", tag="day"), False),
    ],
)
def test_a_job_matches_a_filter_if_all_its_conditions_do(chosen: JobFilter, matches: bool):
    job = make_dead_letter(model="flux", tenant=make_tenant("other"), tags=["night", "x"])
    assert list(chosen.rows()) == ([job] if matches else [])


def test_a_fingerprint_finds_its_kind():
    one, two = make_dead_letter(RunFailed("seed 5 is wrong")), make_dead_letter(RunFailed("seed 71 is wrong"))
    make_dead_letter(RunFailed("no prompt"))
    assert set(JobFilter(fingerprint=one.error_fingerprint).rows()) == {one, two}


def test_a_filter_describes_itself():
    chosen = JobFilter(model="m", state=JobState.FAILED, created_after=START)
    assert chosen.as_json() == {"model": "m", "state": "failed", "created_after": START.isoformat()}


# -- counting, and doing -----------------------------------------------------------------------------------


@pytest.mark.database
def test_a_dry_run_changes_nothing_and_counts_the_jobs():
    waiting, letter = make_job(), make_dead_letter()
    assert [count(JobFilter(), deed, make_ports()) for deed in BulkAction] == [1, 1, 1]
    assert states([waiting, letter]) == [JobState.QUEUED, JobState.FAILED]
    assert not AuditEntry.objects.exists()


@pytest.mark.database
def test_waiting_jobs_are_cancelled_and_running_ones_get_a_cancel_request():
    waiting, running, letter = make_job(), make_job(), make_dead_letter()
    other = make_job("flux")
    make_running(running)
    calls = PortCalls()
    done = cancel_jobs(JobFilter(model="zimg"), by=BY, ports=make_ports(calls=calls))
    assert done == BulkOutcome(2, 0, 0)
    assert states([waiting, running, letter, other]) == ["cancelled", "running", "failed", "queued"]
    assert Job.objects.get(id=running.id).cancel_requested_at is not None
    assert sorted(calls.announced) == sorted([waiting.id, running.id])
    assert cancel_jobs(JobFilter(model="zimg"), by=BY, ports=make_ports()) == BulkOutcome(0, 0, 0)


@pytest.mark.database
def test_tickets_of_cancelled_jobs_are_removed():
    leases: Any = FakeLeases()
    jobs = [make_job() for _ in range(3)]
    leases.push("zimg", [job.ticket for job in jobs])
    cancel_jobs(JobFilter(model="zimg"), by=BY, ports=make_ports(leases))
    assert leases.line == []


@pytest.mark.database
def test_waiting_jobs_are_cancelled_before_running_ones():
    """Else a slot that a cancel frees would be given to a job that is about to be cancelled."""
    running = make_job()
    make_running(running)
    waiting = make_job(at=START + timedelta(seconds=1))
    cancel_jobs(JobFilter(), by=BY, ports=make_ports(), at_most=1)
    assert states([waiting]) == [JobState.CANCELLED]
    assert Job.objects.get(id=running.id).cancel_requested_at is None


def test_dead_letters_are_retried_each_once():
    jobs, calls = [make_dead_letter() for _ in range(3)], PortCalls()
    waiting = make_job()
    assert retry_jobs(JobFilter(), by=BY, ports=make_ports(calls=calls)) == BulkOutcome(3, 0, 0)
    assert retry_jobs(JobFilter(), by=BY, ports=make_ports(calls=calls)) == BulkOutcome(0, 0, 0)
    assert {Job.objects.get(id=job.id).round for job in jobs} == {2}
    assert Job.objects.get(id=waiting.id).round == 1
    assert sorted(calls.announced) == sorted(job.id for job in jobs)


def test_dead_letters_are_dismissed_each_once():
    jobs = [make_dead_letter() for _ in range(3)]
    waiting = make_job()
    assert dismiss_jobs(JobFilter(), by=BY, ports=make_ports()) == BulkOutcome(3, 0, 0)
    assert dismiss_jobs(JobFilter(), by=BY, ports=make_ports()) == BulkOutcome(0, 0, 0)
    assert all(Job.objects.get(id=job.id).dismissed_at for job in jobs)
    assert Job.objects.get(id=waiting.id).dismissed_at is None


@pytest.mark.database
@pytest.mark.parametrize("action", [BulkAction.RETRY, BulkAction.DISMISS])
def test_client_errors_stand_apart_unless_the_filter_names_them(action: BulkAction) -> None:
    client = make_dead_letter(BadInput("steps must be positive"))
    letter = make_dead_letter()
    matches = {
        JobFilter(): [letter],
        JobFilter(model="zimg"): [letter],
        JobFilter(client_errors=True): [client],
        JobFilter(error_code="bad_input"): [client],
        JobFilter(fingerprint=client.error_fingerprint): [client],
        JobFilter(client_errors=True, error_code="run_failed"): [],
    }
    for chosen, jobs in matches.items():
        assert [job.id for job in chosen.dead_letters()] == [job.id for job in jobs], chosen
        assert count(chosen, action, make_ports()) == len(jobs), chosen
    assert count(JobFilter(client_errors=True), BulkAction.CANCEL, make_ports()) == 0, (
        "it matches failed jobs only"
    )


@pytest.mark.database
def test_a_retry_without_a_filter_leaves_client_errors_alone() -> None:
    client, letter = make_dead_letter(BadInput("no")), make_dead_letter()
    outcome = retry_jobs(JobFilter(), by=BY, ports=make_ports())
    assert (states([client, letter]), outcome.done) == (["failed", "queued"], 1)
    assert outcome.entry is not None
    assert jobs_of_entries([outcome.entry]) == [letter.id]
    assert retry_jobs(JobFilter(client_errors=True), by=BY, ports=make_ports()).done == 1
    last = AuditEntry.objects.order_by("id").last()
    assert last is not None
    assert last.detail["filter"] == {"client_errors": "True"}


@pytest.mark.parametrize("deed", [retry_jobs, dismiss_jobs])
def test_a_call_does_a_bounded_number_and_says_what_remains(deed):
    most = bulk_operations._BATCH + 1
    like = make_dead_letter()
    fields = {field.attname: getattr(like, field.attname) for field in Job._meta.concrete_fields}
    Job.objects.bulk_create(Job(**{**fields, "id": new_id()}) for _ in range(most + 1))
    assert deed(JobFilter(), by=BY, ports=make_ports(), at_most=most) == BulkOutcome(most, 2, 0)
    assert deed(JobFilter(), by=BY, ports=make_ports(), at_most=most) == BulkOutcome(2, 0, 0)


def test_the_oldest_failures_are_retried_first():
    """A job that fails again at once goes to the end, whatever its id."""
    again, other = make_dead_letter(), make_dead_letter()
    Job.objects.filter(id=again.id).update(finished_at=START + timedelta(seconds=9))
    assert retry_jobs(JobFilter(), by=BY, ports=make_ports(), at_most=1) == BulkOutcome(1, 1, 0)
    assert states([other]) == [JobState.QUEUED]


@pytest.mark.database
def test_jobs_that_changed_meanwhile_are_counted_as_refused(monkeypatch):
    jobs = [make_job() for _ in range(3)]
    real = job_operations.move_to_cancelled

    def one_is_over(job_id, ports, **by):
        if job_id == jobs[1].id:
            raise NotCancellable
        return real(job_id, ports, **by)

    monkeypatch.setattr(job_operations, "move_to_cancelled", one_is_over)
    done = cancel_jobs(JobFilter(), by=BY, ports=make_ports())
    assert (done.done, done.refused) == (2, 1)


# -- the record ----------------------------------------------------------------------------------------------


@pytest.mark.database
def test_a_call_leaves_one_entry_with_the_filter_and_the_jobs():
    ids = [make_dead_letter().id for _ in range(3)]
    retry_jobs(JobFilter(model="zimg"), by=BY, ports=make_ports())
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.action, entry.target) == (BY, "retry_jobs", "jobs:filter")
    assert entry.detail == {"filter": {"model": "zimg"}, "jobs": 3, "job_ids": ids}


def test_the_audit_entry_is_written_before_the_first_job_is_changed(monkeypatch):
    """Who dies in the middle has still said what it was about to do."""
    make_dead_letter()

    def die(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(bulk_operations, "open_rounds", die)
    with pytest.raises(KeyboardInterrupt):
        retry_jobs(JobFilter(), by=BY, ports=make_ports())
    assert AuditEntry.objects.count() == 1


def test_single_actions_are_audited_if_an_operator_is_named():
    waiting, running, one, two = make_job(), make_job(), make_dead_letter(), make_dead_letter()
    make_running(running)
    for job in (waiting, running):
        cancel_job(job.id, ports=make_ports(), by=BY)
    retry_dead_letter(one.id, ports=make_ports(), by=BY)
    dismiss_dead_letter(two.id, ports=make_ports(), by=BY)
    cancel_job(make_job().id, ports=make_ports())
    entries = AuditEntry.objects.order_by("id").values_list("actor", "action", "target")
    assert list(entries) == [
        (BY, "cancel_job", f"job:{waiting.id}"),
        (BY, "cancel_job", f"job:{running.id}"),
        (BY, "retry_dead_letter", f"job:{one.id}"),
        (BY, "dismiss_dead_letter", f"job:{two.id}"),
    ]


def test_an_action_that_changed_no_job_is_not_audited():
    job = make_job()
    cancel_job(job.id, ports=make_ports())
    cancel_job(job.id, ports=make_ports(), by=BY)
    assert not AuditEntry.objects.exists()
