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
from jobs.submission.request import Submit, SubmitRequest, Submitted, fingerprint, read_request
from jobs.submission.submit import submit_job

_EMPTY: tuple[Any, ...] = (None, "", [], {})


NOT_REPEATED = frozenset({"run_at", "if_busy"})
"""Fields of a submit that a rerun does not repeat: a time that is past, and a choice for the moment of the
submit."""
_SPANS = {"deadline_seconds": "deadline_at", "start_deadline_seconds": "start_deadline_at"}
"""Fields of a submit that a job stores as a time."""


def submitted_values(job: Job) -> dict[str, Any]:
    """Return the body of the submit that would make this job again, without the fields of `NOT_REPEATED` and
    without the deadlines of a dead letter that was retried."""
    values = {name: _submitted(job, name) for name in Submit.model_fields if name not in NOT_REPEATED}
    return {
        name: value
        for name, value in values.items()
        if Submit.model_fields[name].is_required() or value not in _EMPTY
    }


def _submitted(job: Job, name: str) -> Any:
    if name not in _SPANS:
        return getattr(job, name)
    at = getattr(job, _SPANS[name])
    return None if at is None else (at - (job.run_at or job.created_at)).total_seconds()


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
