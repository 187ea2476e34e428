"""Runs a job again: a new job with the values of an earlier one, changed as the caller asks, submitted like
any other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foundation.http_api.problems import FieldError, validation_problem
from jobs.domain.errors import PayloadErased
from jobs.models import Job
from jobs.operations.erase import is_erased
from jobs.ports import Ports
from jobs.submission.request import SubmitRequest, Submitted, fingerprint, read_request
from jobs.submission.submit import submit_job

_EMPTY: tuple[Any, ...] = (None, "", [], {})


def submitted_values(job: Job) -> dict[str, Any]:
    """Return the body of the submit that would make this job again: without `run_at`, which is past, and
    without the deadlines of a dead letter that was retried."""
    start = job.run_at or job.created_at
    spans = {"deadline_seconds": job.deadline_at, "start_deadline_seconds": job.start_deadline_at}
    optional: dict[str, Any] = {
        "tags": job.tags,
        "metadata": job.metadata,
        "callback_url": job.callback_url,
        "max_retries": job.max_retries,
        "max_run_seconds": job.max_run_seconds,
        **{name: (at - start).total_seconds() for name, at in spans.items() if at is not None},
    }
    given = {name: value for name, value in optional.items() if value not in _EMPTY}
    return {"model": job.model, "payload": job.payload, "priority": job.priority, **given}


def rerun_request(
    job: Job, changes: Mapping[str, Any], *, idempotency_key: str | None = None, by: str | None = None
) -> SubmitRequest:
    """Return the request that runs a job again.

    job: with its payload. changes: fields of a submit except `model`; null: without the earlier value. by:
    actor of the audit entry. Raises Problem 422, and PayloadErased if the earlier payload was erased and
    `changes` has none.
    """
    if "payload" not in changes and is_erased(job.payload):
        raise PayloadErased(pointer="/payload")
    if "model" in changes:
        text = "The new job has the model of the earlier one. Submit a job for another model."
        raise validation_problem([FieldError("/model", "unknown_field", text)])
    read = read_request({**submitted_values(job), **changes})
    if idempotency_key is None:
        return SubmitRequest(read.body, rerun_of=job.id, by=by)
    hashed = fingerprint({"rerun_of": job.id, "changes": dict(changes)})
    return SubmitRequest(read.body, idempotency_key, hashed, rerun_of=job.id, by=by)


def rerun_job(
    job: Job,
    changes: Mapping[str, Any],
    *,
    ports: Ports,
    idempotency_key: str | None = None,
    by: str | None = None,
    key_models: frozenset[str] | None = None,
) -> Submitted:
    """Submit a job again for its tenant, within that tenant's limits.

    Arguments: see `rerun_request`. key_models: models that the caller's API key may submit to; None: all of
    the tenant's. Raises Problem 422 for invalid changes, and what `submit_job` raises.
    """
    request = rerun_request(job, changes, idempotency_key=idempotency_key, by=by)
    return submit_job(request, tenant=job.tenant_id, ports=ports, key_models=key_models)


def find_with_payload(job_id: str) -> Job | None:
    """Return the job with its payload, without its result; None if it does not exist any more."""
    return Job.objects.select_related("tenant").defer("result").filter(id=job_id).first()
