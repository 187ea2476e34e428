"""Starts the target of a schedule by the functions that serve a submit and a run's start over HTTP: the same
checks, limits and quotas. Checks come before the transaction; rows are inserted inside it; tickets and hints
follow its commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import DatabaseError

from foundation.http_api.problems import Problem
from jobs.domain.errors import Refused
from jobs.domain.states import JobState
from jobs.limits.submit_limits import admit
from jobs.models import Job
from jobs.ports import Ports
from jobs.reports import counters
from jobs.reports.counters import Key, Name
from jobs.submission.insert import Entry, store
from jobs.submission.request import Submitted, read_request
from jobs.submission.submit import Submission, prepare_entries, push_and_wake
from workflows.domain.errors import TargetInvalid
from workflows.domain.states import RunState
from workflows.domain.template import Unresolved
from workflows.execution.counts import bucket
from workflows.models import Run, follower_of
from workflows.operations import insert_run, make_run
from workflows.schedules.domain.policy import Outcome
from workflows.schedules.domain.target import DUE_AT, LAST, SUBMIT, names_used, resolved
from workflows.schedules.models import Firing, Schedule

LAG_BOUNDS_SECONDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
LAST_AMONG = 20
"""Newest firings among which the last completed one is looked for."""


@dataclass(slots=True)
class Launched:
    """What committed transactions started, until it is announced. counts: of their firings, for /metrics."""

    jobs: list[Submitted] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    counts: Counter[Key] = field(default_factory=Counter)

    def count(self, firing: Firing, jitter: timedelta) -> None:
        """Count a firing that was decided by the timetable, unless it waits."""
        if firing.outcome == Outcome.WAITING:
            return
        self.counts[Name.FIRINGS, firing.outcome, firing.reason] += firing.count
        if firing.outcome == Outcome.STARTED:
            late = max(0.0, (firing.at - firing.due_at - jitter).total_seconds())
            self.counts[Name.FIRING_LAGS, "", bucket(late, LAG_BOUNDS_SECONDS)] += 1

    def add(self, other: Launched) -> None:
        """Add what another transaction started."""
        self.jobs += other.jobs
        self.runs += other.runs
        self.counts += other.counts

    def announce(self, ports: Ports) -> None:
        """Push the tickets of the jobs, send the hints of the runs, and write the counts. All is best effort:
        sweeps repair lost tickets and hints."""
        items, runs, counts = self.jobs, self.runs, self.counts
        self.jobs, self.runs, self.counts = [], [], Counter()
        if items:
            push_and_wake(items, ports)
        if runs:
            ports.wake_followers([follower_of(run.id) for run in runs])
        if counts:
            with suppress(DatabaseError):
                counters.add(counts)


@dataclass(frozen=True, slots=True)
class Launch:
    """A checked target, ready to be inserted: a job's entry, or a run."""

    entry: Entry | None = None
    run: Run | None = None

    def insert(self, firing: Firing, launched: Launched, ports: Ports) -> None:
        """Insert the job or run, and write its id to the firing's row, which is not saved.

        The caller has opened a transaction. Raises Refused (a limit that is counted inside it).
        """
        if self.run is not None:
            insert_run(self.run, ports)
            launched.runs.append(self.run)
            firing.run_id = self.run.id
            return
        assert self.entry is not None
        (item,) = store([self.entry])
        if isinstance(item, Refused):
            raise item
        launched.jobs.append(item)
        firing.job_id = item.job.id


def prepare(schedule: Schedule, due_at: datetime, ports: Ports) -> Launch:
    """Resolve and check the target of a schedule for a due time. Raises Refused."""
    target: Mapping[str, Any] = schedule.target
    scope: dict[str, Any] = {DUE_AT: text_of(due_at)}
    if LAST in names_used(target):
        scope[LAST] = last_of(schedule)
    try:
        body = resolved(target, scope)
        if SUBMIT in target:
            return Launch(entry=_entry(schedule, body, ports))
        return Launch(run=_run(schedule, body, ports))
    except Unresolved as error:
        raise TargetInvalid(str(error), code=error.code) from None
    except Problem as problem:  # of a body that an earlier version of this code had accepted
        places = ", ".join(f"{error.pointer}: {error.detail}" for error in problem.errors)
        raise TargetInvalid(places or problem.detail, code=problem.code) from None


def text_of(time: datetime) -> str:
    """Return a time as references see it, such as 2026-02-01T12:00:00Z."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _entry(schedule: Schedule, body: Mapping[str, Any], ports: Ports) -> Entry:
    request = read_request(body)
    if (refused := admit(schedule.tenant_id, 1, ports).refused) is not None:
        raise refused
    submission = Submission([request], schedule.tenant_id, log_fields={"schedule": schedule.name})
    (entry,) = prepare_entries(submission, ports)
    if isinstance(entry.request, Refused):
        raise entry.request
    return entry


def _run(schedule: Schedule, body: Mapping[str, Any], ports: Ports) -> Run:
    return make_run(
        schedule.tenant_id,
        body["name"],
        body.get("inputs"),
        ports=ports,
        number=body.get("version"),
        priority=body.get("priority", 5),
        deadline_seconds=body.get("deadline_seconds"),
        tags=body.get("tags") or (),
        callback_url=body.get("callback_url"),
    )


def last_of(schedule: Schedule) -> dict[str, Any] | None:
    """Return the last firing that completed, for references: `due_at` and `output`. None: there is none."""
    if schedule.pk is None:
        return None
    newest = list(Firing.objects.filter(schedule=schedule, outcome=Outcome.STARTED.value)[:LAST_AMONG])
    jobs = dict(
        Job.objects.filter(
            id__in=[one.job_id for one in newest if one.job_id], state=JobState.COMPLETED.value
        ).values_list("id", "finished_at")
    )
    runs = set(
        Run.objects.filter(
            id__in=[one.run_id for one in newest if one.run_id], state=RunState.COMPLETED.value
        ).values_list("id", flat=True)
    )
    for one in newest:
        if one.job_id in jobs:
            output = Job.objects.values_list("result", flat=True).get(id=one.job_id)
        elif one.run_id in runs:
            output = Run.objects.values_list("output", flat=True).get(id=one.run_id)
        else:
            continue
        return {DUE_AT: text_of(one.due_at), "output": output}
    return None
