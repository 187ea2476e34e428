"""POST /queue/submit and /queue/submit-batch."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

from django.conf import settings
from django.db.models import Prefetch, prefetch_related_objects
from jsonschema import Draft202012Validator
from rest_framework.request import Request
from rest_framework.response import Response

from gpus.api.json_body import check, compiled
from gpus.api.openapi import described
from gpus.api.problems import FieldError, validation_problem
from gpus.canonical import canonical_json
from jobs.api import schemas
from jobs.api.base import JobView, principal_of, shown_job, tenant_of
from jobs.api.errors import refusal_problem
from jobs.api.parameters import (
    IDEMPOTENCY,
    NO_TIME,
    PREFER,
    idempotency_key,
    preferred_wait,
    read_time,
)
from jobs.api.rate_headers import rate_headers
from jobs.api.representations import batch_item_json, job_url, submitted_json
from jobs.errors import Refused
from jobs.events.handover import WAIT_HEADER, WaitFor, offered
from jobs.models import Attempt
from jobs.queries import find_job
from jobs.scopes import Scope
from jobs.services.rates import admit
from jobs.services.submit import submit_batch, submit_job
from jobs.services.submit_request import MAX_METADATA_BYTES, SubmitRequest, fingerprint, read_request
from jobs.services.submitted import Outcome

ENVELOPE_BYTES = 64 * 1024
_MAX_BATCH_BYTES = 32 * 1024 * 1024


class InvalidItem(Refused):
    """One job of a batch is not well-formed."""

    code = "validation_failed"
    status = 422


class _Door(JobView):
    scopes = {"POST": Scope.SUBMIT}

    def take_tokens(self, tenant_id: int, jobs: int) -> dict[str, str]:
        """The header fields of the tenant's rate limit. Raises Problem 429 if it submits too fast."""
        admission = admit(tenant_id, jobs, self.ports)
        headers = rate_headers(admission.rate)
        if admission.refused is not None:
            raise refusal_problem(admission.refused, headers)
        return headers


class Submit(_Door):
    def max_body_bytes(self) -> int:
        return settings.DISPATCHER.max_payload_bytes + ENVELOPE_BYTES

    @described(
        "submit_job",
        "Submit a job",
        answers={202: "Submitted", 200: "Submitted"},
        refusals=(403, 429),
        body="Submit",
        parameters=(IDEMPOTENCY, PREFER),
        description="202 once the job is durable. 200: with `Prefer: wait=n` the job is over within "
        "n seconds, or the request is a repetition of one whose job is over.",
    )
    def post(self, request: Request) -> Response:
        tenant_id = tenant_of(request)
        key = idempotency_key(request)
        errors = submit_errors(request.data)
        if errors:
            raise validation_problem(errors)
        wanted = read_request(cast("dict[str, Any]", request.data), idempotency_key=key)
        rate = self.take_tokens(tenant_id, 1)
        try:
            submitted = submit_job(
                wanted, tenant=tenant_id, ports=self.ports, key_models=principal_of(request).models
            )
        except Refused as refused:
            raise refusal_problem(refused, rate) from None
        job = submitted.job
        if submitted.replayed:
            job = find_job(principal_of(request), job.id) or job
        else:
            prefetch_related_objects(
                [job], Prefetch("attempts", Attempt.objects.none())
            )  # a new job has none
        over = submitted.outcome is Outcome.FINISHED
        headers = {"Location": job_url(job.id), **rate}
        if submitted.replayed:
            headers["Idempotency-Replayed"] = "true"
        wait = preferred_wait(request)
        if wait and not over and offered(request.META):
            headers[WAIT_HEADER] = WaitFor(job.id, wait).as_header()
        return Response(
            submitted_json(submitted, shown_job(request, job)), status=200 if over else 202, headers=headers
        )


class SubmitBatch(_Door):
    max_body_bytes = _MAX_BATCH_BYTES

    @described(
        "submit_batch",
        "Submit up to 1,000 jobs in one transaction",
        answers={202: "SubmittedBatch"},
        refusals=(403, 429),
        body="Batch",
        parameters=(IDEMPOTENCY,),
        description="One answer per job, in order: what became of it, or the problem it has. "
        "Jobs with a problem don't stop the others.",
    )
    def post(self, request: Request) -> Response:
        tenant_id = tenant_of(request)
        key = idempotency_key(request)
        errors = check(request.data, _batch_validator())
        if errors:
            raise validation_problem(errors)
        items = [_read_item(item) for item in cast("dict[str, Any]", request.data)["jobs"]]
        headers = self.take_tokens(tenant_id, len(items))
        batch = submit_batch(
            items,
            tenant=tenant_id,
            ports=self.ports,
            key_models=principal_of(request).models,
            idempotency_key=key,
            fingerprint=fingerprint(request.data) if key else "",
        )
        if batch.replayed:
            headers["Idempotency-Replayed"] = "true"
        answers = [batch_item_json(item, index) for index, item in enumerate(batch.items)]
        return Response({"jobs": answers}, status=202, headers=headers)


def _read_item(item: Any) -> SubmitRequest | Refused:
    errors = _errors(item, _item_validator())
    if errors:
        return InvalidItem(errors[0].detail, pointer=errors[0].pointer)
    return read_request(item)


def submit_errors(body: Any) -> list[FieldError]:
    """What is wrong with the form of a submit."""
    return _errors(body, _submit_validator())


def _errors(body: Any, validator: Draft202012Validator) -> list[FieldError]:
    errors = check(body, validator)
    if not errors and len(canonical_json(body.get("metadata") or {}).encode()) > MAX_METADATA_BYTES:
        errors = [FieldError("/metadata", "too_large", f"Must be at most {MAX_METADATA_BYTES} bytes.")]
    if not errors and body.get("run_at") is not None and read_time(body["run_at"]) is None:
        detail = NO_TIME
        errors = [FieldError("/run_at", "invalid", detail)]
    return errors


@lru_cache(maxsize=1)
def _submit_validator() -> Draft202012Validator:
    return compiled(schemas.submit())


@lru_cache(maxsize=1)
def _item_validator() -> Draft202012Validator:
    return compiled(schemas.batch_item())


@lru_cache(maxsize=1)
def _batch_validator() -> Draft202012Validator:
    return compiled(schemas.batch_envelope())
