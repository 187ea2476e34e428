"""Builds the response bodies of jobs, submits and pauses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from django.conf import settings

from artifacts.refs import only_ref
from artifacts.uses import is_result_of
from foundation.http_api.problems import FieldError, Problem
from gpus.leasing.values import StartsIn
from gpus.models import Pause
from jobs.api import answers
from jobs.domain.access import shown_error, shown_evidence
from jobs.domain.errors import Refused
from jobs.domain.states import JobState
from jobs.models import Attempt, Job, Timings
from jobs.ports import Ports
from jobs.reports.jobs import SHOWN_ATTEMPTS, last_attempts
from jobs.reports.progress import partial_output_of, progress_of
from jobs.submission.request import Submitted

API_ROOT = "/api/v1"


def job_url(job_id: str, *rest: str) -> str:
    return "/".join((f"{API_ROOT}/queue/jobs/{job_id}", *rest))


def run_id_of(job: Job) -> str | None:
    """Return the id of the workflow run that a job belongs to."""
    return job.followed_by.partition(":")[2] if job.followed_by else None


def nodes_of_jobs(jobs: Sequence[Job], ports: Ports) -> Mapping[str, str]:
    """Return the key of the node of each of these jobs that belongs to a workflow run, by job id."""
    ids = [job.id for job in jobs if job.followed_by]
    return ports.nodes_of(ids) if ids else {}


def pause_json(pause: Pause, name: str) -> dict[str, Any]:
    """Return the body of a pause. name: display name of the paused model or tenant."""
    return {"kind": pause.kind, "name": name, "since": pause.since, "by": pause.actor, "reason": pause.reason}


def summary_json(
    job: Job,
    attempts: Sequence[Attempt] | None = None,
    *,
    node: str | None = None,
    with_result: bool = True,
    in_full: bool = False,
) -> answers.JobSummary:
    """Return a job's body without its result, which may have megabytes.

    attempts: sorted by number; None: the last ones, queried unless prefetched with the job, as is the
    progress of a running job. node: of a workflow run, from `nodes_of_jobs`. with_result: the reader may
    see results. in_full: with the details for operators (`jobs.domain.access`).
    """
    shown = _last_attempts(job) if attempts is None else attempts
    url = job_url(job.id)
    return {
        "job_id": job.id,
        "model": job.model,
        "status": str(job.state),
        "priority": job.priority,
        "tags": job.tags,
        "metadata": job.metadata,
        "created_at": job.created_at.isoformat(),
        "run_at": _time(job.run_at),
        "started_at": _time(job.started_at),
        "finished_at": _time(job.finished_at),
        "deadline_at": _time(job.deadline_at),
        "start_deadline_at": _time(job.start_deadline_at),
        "queue_deadline_at": _time(job.queue_deadline_at),
        "cancel_requested_at": _time(job.cancel_requested_at),
        "progress": progress_json(job, with_text=with_result),
        "error": _error(job.error_code, job.error_message, in_full=in_full),
        "attempts": [_attempt(attempt, in_full=in_full) for attempt in shown],
        "attempts_count": job.attempts_made,
        "refusals_folded": job.refusals_folded,
        "rerun_of": job.rerun_of,
        "run_id": run_id_of(job),
        "node": node,
        "urls": {
            "self": url,
            "events": f"{url}/events",
            "logs": f"{url}/logs",
            "cancel": f"{url}/cancel",
            "rerun": f"{url}/rerun",
        },
    }


def job_json(
    job: Job,
    now: datetime,
    attempts: Sequence[Attempt] | None = None,
    *,
    node: str | None = None,
    with_result: bool = True,
    in_full: bool = False,
) -> answers.Job:
    """Return a job's body. now: until which the timings of what goes on are counted. attempts, node,
    with_result, in_full: see `summary_json`."""
    shown = _last_attempts(job) if attempts is None else attempts
    found = partial_output_of(job) if with_result and job.state == JobState.RUNNING else None
    return {
        **summary_json(job, shown, node=node, with_result=with_result, in_full=in_full),
        "result": job.result if with_result else None,
        "result_url": _result_url(job) if with_result else None,
        "result_hidden": not with_result,
        "partial_output": {"output": found.pieces, "left_out": found.left_out} if found else None,
        "timings": timings_json(job.timings(shown, now)),
    }


def _result_url(job: Job) -> str | None:
    """Return the URL of a result that became an artifact; None of any other result."""
    artifact_id = only_ref(job.result) if job.result is not None else None
    if artifact_id is None or not is_result_of(job.id, artifact_id):
        return None
    return f"{API_ROOT}/artifacts/{artifact_id}"


def progress_json(job: Job, *, with_text: bool) -> answers.Progress | None:
    """Return the body of a running job's progress. with_text: the reader may see results."""
    progress = progress_of(job) if job.state == JobState.RUNNING else None
    if progress is None:
        return None
    text = progress.text if with_text else ""
    return {"value": progress.value, "text": text or None, "at": progress.at.isoformat()}


def timings_json(timings: Timings) -> answers.Timings:
    ran = timings.ran
    return {
        "waited_seconds": round(timings.waited, 3),
        "ran_seconds": None if ran is None else round(ran, 3),
        "gpu_seconds": round(timings.gpu, 3),
        "total_seconds": round(timings.total, 3),
    }


def submitted_json(submitted: Submitted, job: answers.Job) -> answers.Submitted:
    """Return the response body of a submit. job: the job's body."""
    return {**job, **_outcome(submitted)}


def batch_item_json(item: Submitted | Refused, index: int) -> answers.SubmittedItem | dict[str, Any]:
    if isinstance(item, Submitted):
        return {
            "job_id": item.job.id,
            **_outcome(item),
            "status": str(item.job.state),
            "replayed": item.replayed,
        }
    pointer = f"/jobs/{index}{item.pointer or ''}"
    problem = Problem(
        item.status,
        item.code,
        str(item),
        errors=[FieldError(pointer, item.code, str(item))],
        retry_after_seconds=item.retry_after_seconds,
    )
    return problem.as_json()


def _outcome(submitted: Submitted) -> answers.Outcome:
    reason = submitted.wait_reason
    return {
        "outcome": submitted.outcome.value,
        "position": submitted.position,
        "wait_reason": reason.value if reason else None,
        "starts_in": starts_json(submitted.starts),
    }


def starts_json(starts: StartsIn | None) -> answers.StartsIn | None:
    if starts is None:
        return None
    return {"p50_seconds": starts.p50_seconds, "p90_seconds": starts.p90_seconds, "seen": starts.seen}


def _last_attempts(job: Job) -> Sequence[Attempt]:
    found: list[Attempt] | None = getattr(job, SHOWN_ATTEMPTS, None)
    if found is None:
        found = list(last_attempts(of=job))
    return found[::-1]


def _attempt(attempt: Attempt, *, in_full: bool) -> answers.Attempt:
    return {
        "number": attempt.number,
        "server": attempt.server,
        "slot": attempt.slot,
        "state": str(attempt.state),
        "error": _error(attempt.error_code, attempt.error_message, in_full=in_full),
        "slot_freed": attempt.slot_freed,
        "evidence": shown_evidence(attempt.evidence, in_full=in_full),
        "usage": attempt.usage,
        "started_at": attempt.started_at.isoformat(),
        "finished_at": _time(attempt.finished_at),
    }


def _error(code: str, message: str, *, in_full: bool) -> answers.Error | None:
    tenant_errors = settings.DISPATCHER.tenant_errors
    return cast(
        "answers.Error | None", shown_error(code, message, in_full=in_full, tenant_errors=tenant_errors)
    )


def _time(at: datetime | None) -> str | None:
    return at.isoformat() if at else None
