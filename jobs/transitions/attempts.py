"""Transitions of attempts and of the jobs that they run: started, accepted, taken over, ended."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from django.db.models import Count, Max

from artifacts.outputs import Maker, OutputsChanged, Secured, record
from artifacts.refs import rename_refs
from foundation.database import statements
from foundation.database.row_codec import new_row
from foundation.database.statements import value
from foundation.json_text import unwrap
from gpus.errors import ConnectFailed, GpuBusy, GpuError, LeaseLost, OutputNotStored
from gpus.models import QuarantinedSlot, Server
from gpus.protocol import LeaseRef, split_slot
from jobs.domain.retry import AttemptHistory, Ending, RetryPolicy, decide_end
from jobs.domain.states import LIVE_ATTEMPT_STATES, AttemptState, JobState, is_final
from jobs.models import Attempt, Event, Job
from jobs.transitions.unit_of_work import (
    flush_changes,
    insert_attempt,
    insert_callback,
    lock_job,
    log_event,
    move_attempt,
    move_job,
    read_attempt,
)
from jobs.transitions.waiting import WAITING, Ended, note_cancel

_ENDED = (
    "error_code",
    "error_message",
    "counted",
    "slot_freed",
    "evidence",
    "finished_at",
    "gpu_seconds",
)
_faults = statements.Read(
    lambda: statements.summed(
        Attempt.objects.filter(
            job__pk=value(Job, "id", "job_id"),
            round=value(Attempt, "round"),
            server=value(Attempt, "server"),
            error_code="gpu_fault",
        ),
        faults=Count("pk"),
    )
)
_LAST_EVENTS = 200
"""Events that are searched for a repeated one: more than a transaction holds
(`jobs.execution.group_commit.MAX_BATCH`)."""


class StartOutcome(StrEnum):
    """Whether the database accepted an attempt's start, or why not."""

    STARTED = "started"
    JOB_MOVED = "job_moved"
    """The job is not QUEUED any more (cancelled, ended, run elsewhere)."""
    SLOT_TAKEN = "slot_taken"
    """The database has another live attempt on this slot: Redis was wrong, and the slot is suspect."""


class Start(NamedTuple):
    """The start of an attempt, to be written: the job runs, under this attempt, on this slot."""

    job_id: str
    attempt_id: str
    slot: str
    model: str
    worker: str
    at: datetime


def start_attempt(start: Start) -> StartOutcome:
    """Move a job QUEUED → RUNNING, with a new attempt. STARTED also if this start was written before."""
    job = lock_job(start.job_id)
    if job is None:
        return StartOutcome.JOB_MOVED
    if job.state != JobState.QUEUED:
        is_ours = job.live_attempt == start.attempt_id or _has_begun(start)
        return StartOutcome.STARTED if is_ours else StartOutcome.JOB_MOVED
    return _write(start, job, AttemptState.SENT)


def restore_start(start: Start) -> bool:
    """Write a start that was committed before and that a promoted standby lacks.

    The standby may lack earlier commits, too: that the job was queued, and that earlier attempts, of its job
    and on its slot, have ended. If the slot's row still is live, this attempt is written as LOST; the caller
    writes its end in the same transaction. Returns False if the job has ended or has moved past this attempt.
    """
    job = lock_job(start.job_id)
    if job is None or not _row_predates(start, job):
        return False
    if job.state == JobState.RUNNING:
        _end_run_before(start, job)
    elif job.state != JobState.QUEUED:
        job.due_at = None
        move_job(job, JobState.QUEUED, start.at, {}, "due_at")
    if _write(start, job, AttemptState.SENT) is StartOutcome.SLOT_TAKEN:
        _write(start, job, AttemptState.LOST)
    return True


def _row_predates(start: Start, job: Job) -> bool:
    """Return True if the job's row is from before this start: the job waits, or runs an earlier attempt."""
    before = read_attempt(job.live_attempt) if job.live_attempt else None
    return job.state in WAITING if before is None else before.started_at < start.at


def _end_run_before(start: Start, job: Job) -> None:
    """End the job's earlier attempt as LOST; the worker of that attempt may restore its real end."""
    before = read_attempt(job.live_attempt or "")
    assert before is not None
    before.finished_at = start.at
    move_attempt(before, AttemptState.LOST, "finished_at")
    job.live_attempt = None
    move_job(job, JobState.QUEUED, start.at, {"attempt": before.number}, "live_attempt")


def _write(start: Start, job: Job, state: AttemptState) -> StartOutcome:
    """Insert the attempt of a QUEUED job, in this state, and move the job to RUNNING."""
    server, slot = split_slot(start.slot)
    number = job.attempts_made + 1
    attempt = new_row(
        Attempt,
        id=start.attempt_id,
        job_id=job.id,
        number=number,
        round=job.round,
        state=state.value,
        server=server,
        slot=slot,
        model=start.model,
        worker=start.worker,
        started_at=start.at,
    )
    if not insert_attempt(attempt):
        if _has_begun(start):  # written before, and its reply was lost
            return StartOutcome.STARTED
        number = _last_number(job) + 1
        if number <= attempt.number:
            return StartOutcome.SLOT_TAKEN
        # The job's row is older than its attempts (a file restored by hand): without this no start succeeds.
        attempt.number = number
        if not insert_attempt(attempt):
            return StartOutcome.SLOT_TAKEN
    job.live_attempt = start.attempt_id
    job.attempts_made = number
    job.started_at = job.started_at or start.at
    move_job(
        job,
        JobState.RUNNING,
        start.at,
        {"attempt": number, "server": server, "slot": slot},
        "live_attempt",
        "attempts_made",
        "started_at",
    )
    return StartOutcome.STARTED


def _last_number(job: Job) -> int:
    return Attempt.objects.filter(job_id=job.id).aggregate(last=Max("number"))["last"] or 0


def _has_begun(start: Start) -> bool:
    """Return True if the attempt's start is written."""
    return read_attempt(start.attempt_id) is not None


class End(NamedTuple):
    """The end of an attempt, to be written. The job's next state is decided inside the transaction, because a
    cancel may have come meanwhile.

    epoch: of the lease; must be the row's.
    gpu_seconds: charged to the tenant.
    run_limit_seconds: this time after the end, a suspect slot is free at the latest.
    evidence: proof that the slot is free; empty if there is none.
    usage: the server's counts (tokens). refused_url: the server's URL that refused connections then.
    start: the attempt's start, if its commit was confirmed: a database that failed over may have lost it.
    cancelled_by_operator: of a restored end whose job was cancelled before: True if by an operator; None: no
    cancel.
    outputs: of a success: those that become artifacts with it; None: none.
    """

    job_id: str
    attempt_id: str
    epoch: int
    slot: str
    ending: Ending
    policy: RetryPolicy
    at: datetime
    result: Any = None
    gpu_seconds: float = 0.0
    run_limit_seconds: float = 600.0
    evidence: str = ""
    usage: Mapping[str, Any] | None = None
    refused_url: str = ""
    start: Start | None = None
    cancelled_by_operator: bool | None = None
    outputs: Secured | None = None


def note_remote_id(job_id: str, attempt_id: str, epoch: int, remote_id: str, at: datetime) -> bool:
    """Move an attempt SENT → WAITING: from here on its run survives its worker. Returns False if the attempt
    has another epoch or state."""
    job = lock_job(job_id)
    attempt = read_attempt(attempt_id)
    if job is None or attempt is None or attempt.epoch != epoch:
        return False
    if attempt.state != AttemptState.SENT:
        # True: written before, with its reply lost
        return attempt.state == AttemptState.WAITING and attempt.remote_id == remote_id
    attempt.remote_id = remote_id
    move_attempt(attempt, AttemptState.WAITING, "remote_id")
    log_event(job, "accepted", at, {"attempt": job.attempts_made, "remote_id": remote_id})
    return True


def note_progress(
    ref: LeaseRef, kind: str, data: Mapping[str, Any], at: datetime, *, may_be_written: bool = True
) -> bool:
    """Log an event of progress, partial output or log lines, while the attempt is its job's live one.

    kind: of the event. at: when it arrived; time and data identify the event if a COMMIT's reply was lost.
    may_be_written: False: this is the write's first try, so that no such event is looked for.
    """
    job = lock_job(ref.job_id)
    attempt = read_attempt(ref.attempt_id)
    if job is None or attempt is None or attempt.epoch != ref.epoch or job.live_attempt != ref.attempt_id:
        return False
    progress = {"attempt": job.attempts_made, **data}
    if may_be_written:
        flush_changes()
        recent = Event.objects.filter(job_id=job.id, seq__gt=job.event_seq - _LAST_EVENTS, type=kind, at=at)
        if progress in recent.values_list("data", flat=True):
            return True
    log_event(job, kind, at, progress)
    return True


def take_over(job_id: str, attempt_id: str, epoch: int, worker: str, at: datetime) -> bool:
    """Raise the epoch of a WAITING attempt by one, so that its former worker's result does not count any
    more.

    epoch: the row's before. worker: the new one. Returns False if the attempt has another epoch or state.
    """
    job = lock_job(job_id)
    attempt = Attempt.objects.filter(id=attempt_id, epoch=epoch, state=AttemptState.WAITING).first()
    if job is None or attempt is None:
        return Attempt.objects.filter(
            id=attempt_id, epoch=epoch + 1, worker=worker, state=AttemptState.WAITING
        ).exists()
    Attempt.objects.filter(id=attempt_id).update(epoch=epoch + 1, worker=worker)
    log_event(job, "adopted", at, {"attempt": attempt.number, "epoch": epoch + 1})
    return True


def end_attempt(end: End) -> Ended:
    """End a live attempt and move its job. An end of another epoch (of a worker whose run was adopted) has no
    effect."""
    job, attempt = _read_or_restore(end)
    if attempt is None and (end.ending.suspect or _is_taken(end.slot)):
        # the start was refused: this run, or that of the slot's other attempt, may still be busy
        _quarantine(end, model=job.model if job else "")
        return Ended(won=False, job=job, quarantined=True)
    if job is None or attempt is None or attempt.epoch != end.epoch or job.live_attempt != end.attempt_id:
        return Ended(won=False, job=job)
    if attempt.state not in LIVE_ATTEMPT_STATES:
        return Ended(won=False, job=job)
    if end.cancelled_by_operator is not None:
        note_cancel(job, end.at, by_operator=end.cancelled_by_operator)
    if end.outputs is not None and end.ending.error is None:
        end = _with_artifacts(end, end.outputs, job)
    decision = decide_end(end.ending, _history(job, attempt, end.at), end.policy)
    attempt.error_code = end.ending.error.code if end.ending.error else ""
    attempt.error_message = _detail(end.ending.error) if end.ending.error else ""
    attempt.counted = decision.counted
    attempt.slot_freed = not end.ending.suspect
    attempt.evidence = end.evidence
    if decision.job is JobState.CANCELLED:
        attempt.evidence = attempt.evidence or _own_proof(end.ending)
    attempt.finished_at = end.at
    attempt.gpu_seconds = end.gpu_seconds
    if end.usage is None:
        move_attempt(attempt, decision.attempt, *_ENDED)
    else:
        attempt.usage = dict(end.usage)
        move_attempt(attempt, decision.attempt, *_ENDED, "usage")
    if end.ending.suspect:
        _quarantine(end, model=attempt.model)
    job.live_attempt = None
    job.tries, job.free_connects, job.deaths = decision.tries, decision.free_connects, decision.deaths
    job.avoid_server = attempt.server if decision.elsewhere and not is_final(decision.job) else ""
    job.error_code, job.error_message = decision.error_code, decision.error_message
    job.due_at = (
        end.at + timedelta(seconds=decision.delay_seconds) if decision.job is JobState.RETRYING else None
    )
    data: dict[str, Any] = {"attempt": attempt.number}
    if decision.job is JobState.CANCELLED:
        data["evidence"] = attempt.evidence
    if job.due_at is not None:
        data["due_at"] = job.due_at.isoformat()
    fields = ["live_attempt", "tries", "free_connects", "deaths", "avoid_server", "due_at"]
    if (job.same_failures, job.error_fingerprint) != (decision.same_failures, decision.failure):
        job.same_failures, job.error_fingerprint = decision.same_failures, decision.failure
        fields += ["same_failures", "error_fingerprint"]
    if job.queue_deadline_at is not None and not is_final(decision.job):
        job.queue_deadline_at += max(end.at - attempt.started_at, timedelta())  # only its waiting counts
        fields.append("queue_deadline_at")
    if decision.job is JobState.COMPLETED:
        job.result = end.result
        fields.append("result")
    move_job(job, decision.job, end.at, data, *fields, "error_code", "error_message")
    return Ended(
        won=True,
        job=job,
        decision=decision,
        callback_id=insert_callback(job, end.at),
        quarantined=end.ending.suspect,
    )


def _with_artifacts(end: End, outputs: Secured, job: Job) -> End:
    """Write the artifacts of a success, and return the end with their ids in its result. If one of them is
    gone, the end is a failure that is retried."""
    try:
        if outputs.tenant_id != job.tenant_id:
            raise OutputsChanged
        names = record(outputs, Maker(job.id, end.attempt_id, end.epoch), end.at)
    except OutputsChanged:
        error = OutputNotStored("An output of the run was removed before its end was written.")
        return end._replace(ending=Ending(error), result=None, outputs=None)
    if all(old == new for old, new in names.items()):
        return end
    return end._replace(result=rename_refs(unwrap(end.result), names))


def lose_stray(job_id: str, attempt_id: str, at: datetime, *, why: str) -> bool:
    """End a live attempt that is not its job's, as LOST; the job stays as it is. Returns False if it is the
    job's live attempt, or has ended."""
    job, attempt = lock_job(job_id), read_attempt(attempt_id)
    if job is None or attempt is None or job.live_attempt == attempt_id:
        return False
    if attempt.state not in LIVE_ATTEMPT_STATES:
        return False
    attempt.finished_at, attempt.error_code, attempt.error_message = at, LeaseLost.code, why
    move_attempt(attempt, AttemptState.LOST, "finished_at", "error_code", "error_message")
    flush_changes()
    return True


def _read_or_restore(end: End) -> tuple[Job | None, Attempt | None]:
    """Return the job, locked, and the attempt; restore its start if a failover of the database lost it."""
    job, attempt = lock_job(end.job_id), read_attempt(end.attempt_id)
    if attempt is None and end.start is not None and restore_start(end.start):
        job, attempt = lock_job(end.job_id), read_attempt(end.attempt_id)
        if attempt is not None:
            attempt.state = AttemptState.SENT.value  # no transition: `restore_start` may have written LOST
    return job, attempt


def restore_end(end: End) -> Ended:
    """Write an end that was committed before and that a promoted standby may lack.

    Has no effect if the row has it, or if the job has moved past this attempt; nor for a refusal
    (`GpuBusy`) whose start is missing, too: it cost nothing, or was counted and removed.
    """
    job, attempt = lock_job(end.job_id), read_attempt(end.attempt_id)
    is_live = attempt is not None and attempt.state in LIVE_ATTEMPT_STATES
    is_missing = (
        attempt is None and job is not None and end.start is not None and _row_predates(end.start, job)
    )
    if is_live or (is_missing and not isinstance(end.ending.error, GpuBusy)):
        return end_attempt(end)
    return Ended(won=False, job=job)


def _detail(error: GpuError) -> str:
    """Return the message with the traceback. Only the attempt stores that: jobs are grouped by their
    message."""
    return (f"{error.message}\n\n{error.detail}" if error.detail else error.message)[:4000]


def _own_proof(ending: Ending) -> str:
    """Return the evidence that the end itself gives for a run whose cancel was not confirmed."""
    error = ending.error
    if ending.unreachable:
        return f"no worker can reach its run: {ending.unreachable}"
    if error is None or not ending.sent or error.code == ConnectFailed.code:
        return "never sent"
    if ending.process_died:
        return "its process ended"
    return f"the server reported: {error.code}"


def _is_taken(slot: str) -> bool:
    server, index = split_slot(slot)
    flush_changes()
    return Attempt.objects.filter(server=server, slot=index, state__in=Attempt.LIVE).exists()


def _quarantine(end: End, *, model: str) -> None:
    quarantine_slot(
        end.slot,
        attempt_id=end.attempt_id,
        job_id=end.job_id,
        model=model,
        reason=end.ending.error.code if end.ending.error else "uncertain",
        at=end.at,
        run_limit_seconds=end.run_limit_seconds,
        refused_url=end.refused_url,
    )


def _history(job: Job, attempt: Attempt, at: datetime) -> AttemptHistory:
    faults = 0
    if attempt.error_code or job.attempts_made > 1:
        flush_changes()
        faults = _faults.first(job_id=job.id, round=job.round, server=attempt.server)["faults"]
    return AttemptHistory(
        tries=job.tries,
        free_connects=job.free_connects,
        deaths=job.deaths,
        cancel_requested=job.cancel_requested_at is not None,
        cancelled_by_operator=job.cancelled_by_operator,
        seconds_left=(job.deadline_at - at).total_seconds() if job.deadline_at else None,
        faults_here=faults,
        same_failures=job.same_failures,
        failure=job.error_fingerprint,
        attempts=job.attempts_made,
    )


def quarantine_slot(
    slot: str,
    *,
    attempt_id: str,
    job_id: str,
    model: str,
    reason: str,
    at: datetime,
    run_limit_seconds: float,
    refused_url: str = "",
) -> None:
    """Write a slot's quarantine: it is not used until this attempt is proven over. Once per attempt.

    at: the attempt's end. run_limit_seconds: this time after `at`, the run is over at the latest.
    refused_url: the server's URL that refused connections then; empty: none.
    """
    server, index = split_slot(slot)
    if not Server.objects.filter(name=server).exists():
        return
    QuarantinedSlot.objects.bulk_create(
        [
            QuarantinedSlot(
                server_id=server,
                slot=index,
                attempt_id=attempt_id,
                job_id=job_id,
                model=model,
                reason=reason[:200],
                since=at,
                until=at + timedelta(seconds=run_limit_seconds),
                refused_at=at if refused_url else None,
                refused_url=refused_url or None,
            )
        ],
        ignore_conflicts=True,
    )
