"""Checks a history at its end, once everything was repaired and drained, and some laws at any moment."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from artifacts.models import Artifact
from artifacts.refs import only_ref
from artifacts.store.contract import NoSuchObject
from foundation.database import statements
from gpus.errors import LeasingUnavailable
from gpus.models import QuarantinedSlot
from jobs.domain.errors import DEADLINE_EXCEEDED, POISON, STOPPED_BY_DEADLINE
from jobs.domain.states import FINAL_JOB_STATES, AttemptState, JobState
from jobs.models import Attempt, Job
from jobs.operations.erase import is_erased
from jobs.sweeps import expired_leases
from verification.laws import check_laws
from verification.simulation.clients import Clients, Order
from verification.simulation.gpu import RunRecord
from verification.simulation.nemesis import PlannedFault
from verification.simulation.scheduler import START
from verification.simulation.world import World

FINAL = {state.value for state in FINAL_JOB_STATES}
POISON_DEATHS = 3
CLOCKS_APART_SECONDS = 5.0
"""Largest difference, if two of them agree."""

_jobs = statements.Read(Job.objects.all)
_job_states = statements.Read(lambda: Job.objects.values_list("state", flat=True))
_attempt_states = statements.Read(lambda: Attempt.objects.values_list("state", flat=True))
_completed = statements.Read(
    lambda: Attempt.objects.filter(state=AttemptState.COMPLETED.value).values_list("job_id", "id")
)
_quarantined = statements.Read(QuarantinedSlot.objects.all)
_attempt_ids = statements.Read(lambda: Attempt.objects.order_by().values_list("id", flat=True))
_given_up = statements.Read(
    lambda: Attempt.objects.filter(
        state=AttemptState.LOST.value, error_message__in=expired_leases.LOSS_MESSAGES
    ).values_list("id", "job_id", "worker", "finished_at")
)
_failed_late = statements.ReadAmong(
    (Job, "id"),
    rows=lambda ids: Job.objects.filter(
        id__in=ids,
        state=JobState.FAILED.value,
        error_code__in=[DEADLINE_EXCEEDED, STOPPED_BY_DEADLINE],
    ).values_list("id", "deadline_at"),
)


def judge_now(world: World, clients: Clients) -> list[str]:
    """Return violations of the laws that hold at every moment."""
    return [*check_laws(drained=False, ports=world.true_ports()), *_too_soon(world, clients)]


def judge(world: World, clients: Clients, plan: Sequence[PlannedFault], workflow_jobs: int = 0) -> list[str]:
    """Return all violations in words. plan: the faults of this history. workflow_jobs: number of jobs that
    runs of workflows made."""
    jobs = {job.id: job for job in _jobs()}
    runs: dict[str, list[RunRecord]] = defaultdict(list)
    for server in world.servers.values():
        for ran in server.ran:
            runs[ran.job_id].append(ran)
    return [
        *_laws(world, clients, workflow_jobs),
        *_oversubscribed(world),
        *_ledger(clients, jobs),
        *_fates(clients, jobs),
        *_early(clients, runs),
        *_results(world, jobs, runs),
        *_cancelled(jobs, runs),
        *_at_most_once(world, jobs, runs),
        *blamed(world),
        *_poisoned(world, jobs),
        *_unknown_runs(world, jobs, runs, plan),
        *(
            f"slot {row.server_id}/{row.slot} is still quarantined for {row.attempt_id}"
            for row in _quarantined()
            if row.freed_at is None
        ),
    ]


def cost(world: World) -> dict[str, int]:
    """Return the cost of the faults: the runs beyond one per job."""
    attempts, jobs = Counter(_attempt_states()), Counter(_job_states())
    runs = sum(len(server.ran) for server in world.servers.values())
    return {
        "jobs": jobs.total(),
        "gpu_runs": runs,
        "async_runs": sum(len(server.ran) for server in world.servers.values() if server.is_async),
        "completed": jobs[JobState.COMPLETED],
        "attempts_lost": attempts[AttemptState.LOST],
        "quarantined": len(_quarantined()),
        "late_senders": sum(server.late_senders for server in world.servers.values()),
    }


def _laws(world: World, clients: Clients, workflow_jobs: int) -> list[str]:
    accepted = _accepted(clients) + workflow_jobs
    try:
        return check_laws(drained=True, ports=world.true_ports(), accepted=accepted)
    except LeasingUnavailable as error:
        return [f"Redis does not answer at the end: {error}"]


def _accepted(clients: Clients) -> int:
    return len({job_id for order in clients.orders for job_id in order.job_ids})


def _oversubscribed(world: World) -> Iterator[str]:
    for server in world.servers.values():
        yield from (f"oversubscribed: {what}" for what in server.oversubscribed)
        yield from (f"fence: {what}" for what in server.refused_fences)


def _ledger(clients: Clients, jobs: dict[str, Job]) -> Iterator[str]:
    for order in clients.orders:
        if len(order.job_ids) != 1:
            yield f"{order.key} has the jobs {sorted(order.job_ids)} instead of one"
        yield from (f"job {one} was accepted and is not there" for one in order.job_ids if one not in jobs)


def _fates(clients: Clients, jobs: dict[str, Job]) -> Iterator[str]:
    for order in clients.orders:
        for job in (jobs[job_id] for job_id in order.job_ids if job_id in jobs):
            if job.state not in FINAL:
                yield f"lost: job {job.id} is {job.state} in the end"
            elif order.must_complete and job.state != JobState.COMPLETED and not _used_up(job, order):
                yield f"job {job.id} ({order.model}) ended {job.state}: {job.error_code}, {job.error_message}"


def _early(clients: Clients, runs: dict[str, list[RunRecord]]) -> Iterator[str]:
    """Only workers' clocks are wrong here, and workers do not decide that a job's time has come."""
    for order in clients.orders:
        for ran in (ran for job_id in order.job_ids for ran in runs[job_id]):
            if order.run_at is not None and ran.began < order.run_at:
                yield f"early: job {ran.job_id} ran at {ran.began:.1f} s, not before {order.run_at:.1f} s"


def _used_up(job: Job, order: Order) -> bool:
    """Return True if three workers died of the job, or lost servers used up its budget of three retries."""
    return job.error_code == "poison" or order.max_retries == 3


def _results(world: World, jobs: dict[str, Job], runs: dict[str, list[RunRecord]]) -> Iterator[str]:
    """A completed job must have the result of the completed attempt, whose run must really have ended."""
    winners: dict[str, list[str]] = defaultdict(list)
    for job_id, attempt_id in _completed():
        winners[job_id].append(attempt_id)
    for job in jobs.values():
        won = winners[job.id]
        if (job.state == JobState.COMPLETED) != (len(won) == 1):
            yield f"job {job.id} is {job.state} with the completed attempts {won}"
        if job.state != JobState.COMPLETED or is_erased(job.result):
            continue
        attempt_id = _stored_result(world, job).get("attempt")
        if attempt_id not in won:
            yield f"job {job.id} has the result of {attempt_id}, completed are {won}"
        if not any(ran.attempt_id == attempt_id and ran.outcome == "success" for ran in runs[job.id]):
            yield f"job {job.id} has the result of {attempt_id}, which no GPU server ran to its end"


def _stored_result(world: World, job: Job) -> dict[str, Any]:
    """Return the result of a job, also one that is an artifact; empty if its object is missing."""
    found: dict[str, Any] = job.result or {}
    if (artifact_id := only_ref(found)) is None:
        return found
    row = Artifact.objects.filter(pk=artifact_id).first()
    try:
        text = b"" if row is None else b"".join(world.store.chunks(row.key))
    except NoSuchObject:
        return {}  # law (13) names it
    return dict(json.loads(text)) if text else {}


def _too_soon(world: World, clients: Clients) -> Iterator[str]:
    """A wrong clock must not end a job for good before its deadline.

    The deadline itself is set by the process that accepts the job: one that started without Redis has two
    clocks, and can't know which is right."""
    asked = [order for order in clients.orders if order.deadline_seconds is not None]
    job_ids = sorted(job_id for order in asked for job_id in order.job_ids)
    for job_id, deadline_at in _failed_late(job_ids) if job_ids else ():
        due = (deadline_at - START).total_seconds()
        if world.scheduler.now < due - 1.0:
            yield f"too soon: job {job_id} FAILED before {due:.1f}, which is its deadline"


def blamed(world: World) -> Iterator[str]:
    """A run must not be LOST if its worker lived all the time and could reach every service: a silent Redis
    is no death.

    Excepted are runs whose start, acceptance or end the database lost."""
    for attempt_id, job_id, worker, at in _given_up():
        process = world.known.get(worker)
        if process is None or attempt_id in world.forgotten.attempts:
            continue
        lost_at = (at - START).total_seconds() + CLOCKS_APART_SECONDS
        if process.disturbed_at is None or lost_at < process.disturbed_at:
            yield f"blamed: attempt {attempt_id} of job {job_id} was LOST, and nothing kept {worker} from it"


def _poisoned(world: World, jobs: dict[str, Job]) -> Iterator[str]:
    """A poison job must have killed three workers, not only lost their leases."""
    for job in jobs.values():
        if job.error_code != POISON:
            continue
        workers = [worker for _, job_id, worker, _ in _given_up() if job_id == job.id]
        died = [worker for worker in workers if (known := world.known.get(worker)) and not known.alive]
        if len(died) < POISON_DEATHS:
            yield f"poisoned: job {job.id} is poison, lost by {workers}, of which died {died}"


def _unknown_runs(
    world: World, jobs: dict[str, Job], runs: dict[str, list[RunRecord]], plan: Sequence[PlannedFault]
) -> Iterator[str]:
    """Every run that ended must be in the history, even if the database lost its start, or in quarantine: a
    start that is refused may have been sent already."""
    if {planned.name for planned in plan} != {"database_forgets"}:
        return
    known = {*_attempt_ids(), *(row.attempt_id for row in _quarantined())}
    for job in jobs.values():
        for ran in runs[job.id]:
            went_on = ran.ended is not None and not world.forgotten.covers(ran.ended)
            if went_on and ran.outcome == "success" and ran.attempt_id not in known:
                yield f"unknown: attempt {ran.attempt_id} of job {job.id} ran to its end and is in no history"


def _at_most_once(world: World, jobs: dict[str, Job], runs: dict[str, list[RunRecord]]) -> Iterator[str]:
    """A run whose server reported a failure is certain to be over: such a job may run again.

    Jobs that the database lost can run again (docs/how-to/deploying.md asks for a synchronous standby)."""
    for job in jobs.values():
        uncertain = [
            ran
            for ran in runs[job.id]
            if ran.outcome != "failed"
            and not world.forgotten.covers(ran.began)
            and not (ran.ended and world.forgotten.covers(ran.ended))
        ]
        if job.model == "once" and len(uncertain) > 1:
            yield f"job {job.id} runs at most once and ran {len(uncertain)} times"


def _cancelled(jobs: dict[str, Job], runs: dict[str, list[RunRecord]]) -> Iterator[str]:
    for job in jobs.values():
        if job.state != JobState.CANCELLED or job.finished_at is None:
            continue
        at = (job.finished_at - START).total_seconds()
        for ran in runs[job.id]:
            if ran.began + 0.01 < at and (ran.ended is None or ran.ended > at + 31.0):
                yield f"job {job.id} was CANCELLED at {at:.2f} and ran from {ran.began:.2f} to {ran.ended}"
