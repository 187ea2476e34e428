"""Starts the target of a schedule by the functions that serve a submit and a run's start over HTTP: the same
checks, limits and quotas. Checks come before the transaction; rows are inserted inside it; tickets and hints
follow its commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
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
from jobs.operations.erase import is_erased
from jobs.ports import Ports
from jobs.reports import counters
from jobs.reports.counters import Key, Name
from jobs.submission.insert import Entry, store
from jobs.submission.request import Submitted, read_request
from jobs.submission.submit import Submission, prepare_entries, push_and_wake
from workflows.domain.budget import measure
from workflows.domain.errors import TargetInvalid
from workflows.domain.states import RunState
from workflows.domain.template import UNRESOLVED_REF, Unresolved
from workflows.execution.counts import bucket
from workflows.execution.long_outputs import shown_output
from workflows.execution.model_access import KeyModels, common_models, models_of
from workflows.models import Run, follower_of
from workflows.operations.start import insert_run, make_run
from workflows.schedules.domain.policy import Outcome
from workflows.schedules.domain.target import DUE_AT, LAST, SUBMIT, names_used, resolved
from workflows.schedules.models import Firing, Schedule

LAG_BOUNDS_SECONDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
_VALUE_BYTES = 50
"""A value in memory, beside the bytes of its JSON."""
LAST_OUTPUT_ERASED = "last_output_erased"
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


@dataclass(slots=True)
class Launch:
    """A target to start: the submission of a job, or a run. entry: of the job, once `check` has made it.
    weight: of its body, about its bytes in memory."""

    submission: Submission | None = None
    run: Run | None = None
    entry: Entry | None = None
    weight: int = 0


def check(launches: Sequence[Launch], ports: Ports) -> list[Refused | None]:
    """Check the submits of jobs; return the refusal of each launch. Limits are counted for all of them."""
    asked = [launch for launch in launches if launch.submission is not None]
    entries = prepare_entries([launch.submission for launch in asked if launch.submission], ports)
    for launch, entry in zip(asked, entries, strict=True):
        launch.entry = entry
    return [
        launch.entry.request
        if launch.entry is not None and isinstance(launch.entry.request, Refused)
        else None
        for launch in launches
    ]


def insert(starts: Sequence[tuple[Firing, Launch]], launched: Launched, ports: Ports) -> None:
    """Insert the jobs and runs of these firings, and set their ids in the firings, which are not saved.

    The caller has opened a transaction. Raises StartRefused for a limit that is counted inside it.
    """
    jobs = [(firing, launch.entry) for firing, launch in starts if launch.entry is not None]
    items = store([entry for _, entry in jobs]) if jobs else []
    for (firing, _), item in zip(jobs, items, strict=True):
        if isinstance(item, Refused):
            raise StartRefused(firing, item)
        launched.jobs.append(item)
        firing.job_id = item.job.id
    for firing, launch in starts:
        if launch.run is None:
            continue
        try:
            insert_run(launch.run, ports)
        except Refused as refused:
            raise StartRefused(firing, refused) from None
        launched.runs.append(launch.run)
        firing.run_id = launch.run.id


class StartRefused(Exception):
    """A limit refused a start inside the transaction."""

    def __init__(self, firing: Firing, refused: Refused) -> None:
        super().__init__(str(refused))
        self.firing, self.refused = firing, refused


def prepare(schedule: Schedule, due_at: datetime, ports: Ports, key_models: KeyModels = None) -> Launch:
    """Resolve the target of a schedule for a due time. A job is not checked yet. key_models: of a request
    that asks for it; the schedule's own apply, too. Raises Refused."""
    target: Mapping[str, Any] = schedule.target
    scope: dict[str, Any] = {DUE_AT: text_of(due_at)}
    last = last_of(schedule) if LAST in names_used(target) else Last()
    scope[LAST] = last.value
    try:
        body = resolved(target, scope)
        models = common_models(models_of(schedule.key_models), key_models)
        size = measure(body, None)
        weight = size.count + _VALUE_BYTES * size.values
        if SUBMIT in target:
            return Launch(submission=_submission(schedule, body, models, ports), weight=weight)
        return Launch(run=_run(schedule, body, models, ports), weight=weight)
    except Unresolved as error:
        if last.is_erased and error.code == UNRESOLVED_REF:
            why = f"The output of the last completed firing was erased: {error}."
            raise TargetInvalid(why, code=LAST_OUTPUT_ERASED) from None
        raise TargetInvalid(str(error), code=error.code) from None
    except Problem as problem:  # of a body that an earlier version of this code had accepted
        places = ", ".join(f"{error.pointer}: {error.detail}" for error in problem.errors)
        raise TargetInvalid(places or problem.detail, code=problem.code) from None


def text_of(time: datetime) -> str:
    """Return a time as references see it, such as 2026-02-01T12:00:00Z."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _submission(schedule: Schedule, body: Mapping[str, Any], models: KeyModels, ports: Ports) -> Submission:
    request = read_request(body)
    if (refused := admit(schedule.tenant_id, 1, ports).refused) is not None:
        raise refused
    return Submission([request], schedule.tenant_id, models, log_fields={"schedule": schedule.name})


def _run(schedule: Schedule, body: Mapping[str, Any], models: KeyModels, ports: Ports) -> Run:
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
        key_models=models,
    )


@dataclass(frozen=True, slots=True)
class Last:
    """The last firing that completed. value: for references: `due_at` and `output`, of a long one the
    reference to its artifact; None: there is none. is_erased: the output was erased, and is null here."""

    value: dict[str, Any] | None = None
    is_erased: bool = False


def last_of(schedule: Schedule) -> Last:
    """Return the last firing of a schedule that completed."""
    if schedule.pk is None:
        return Last()
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
            output = Job.objects.filter(id=one.job_id).values_list("result", flat=True).first()
        elif one.run_id in runs:
            run = Run.objects.only("output", "output_artifact").filter(id=one.run_id).first()
            output = None if run is None else shown_output(run)
        else:
            continue
        erased = is_erased(output)
        return Last({DUE_AT: text_of(one.due_at), "output": None if erased else output}, erased)
    return Last()
