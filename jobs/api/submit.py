"""POST /queue/submit and /queue/submit-batch: from a request's headers and body to what is asked for, and
from what became of it to the answer. The submit batcher (`dispatcher_project.web.submit_batcher`) uses the
same functions, so that both say the same."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.json_body import expect_body, read_body
from foundation.http_api.openapi import described, json_schema
from foundation.http_api.problems import FieldError, Problem
from jobs.api import answers, bodies
from jobs.api.base import JobView, principal_of, tenant_of
from jobs.api.errors import refusal_problem
from jobs.api.representations import batch_item_json, job_json, job_url, submitted_json
from jobs.domain.access import Principal, Scope, may_see_details, may_see_payloads
from jobs.domain.errors import Refused
from jobs.events.handover import WAIT_HEADER, WaitFor, offered
from jobs.limits.submit_limits import Admission, Rate, admit
from jobs.reports.jobs import find_job
from jobs.submission.request import (
    Item,
    KeyText,
    Outcome,
    SubmitRequest,
    fingerprint,
    read_item,
    read_request,
)
from jobs.submission.request import Submit as SubmitBody
from jobs.submission.submit import BatchKey, submit_batch, submit_job

ADMISSION_KEY = "dispatcher.admission"
"""In a request's ASGI scope: its tokens were taken already (`dispatcher_project.web.submit_batcher`)."""
ENVELOPE_BYTES = 64 * 1024
"""What a submit's body may have besides its payload."""
PREFER_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?([0-9]{1,9})\"?", re.IGNORECASE)
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}\Z")
_RATE_NAME = '"submits"'

IDEMPOTENCY = OpenApiParameter(
    "Idempotency-Key",
    json_schema(KeyText),
    OpenApiParameter.HEADER,
    description="Repeat a request safely: the same key and body mean the same job. Another body: 422.",
)
PREFER = OpenApiParameter(
    "Prefer",
    {"type": "string", "pattern": "^[A-Za-z0-9=, -]*$"},
    OpenApiParameter.HEADER,
    description="wait=n: answer 200 with the finished job if it is over within n seconds (RFC 7240).",
)


class PacedView(JobView):
    """A submit, or what costs as much: a body that is read costs a token, whatever is wrong with it."""

    scopes = {"POST": Scope.SUBMIT}

    def take_token(self, request: Request, tenant_id: int) -> dict[str, str]:
        """Before the body is read. Returns the header fields of the tenant's rate limit. Raises Problem 429
        if it submits too fast."""
        expect_body(self, request.META)
        taken: Admission | None = request.META.get("asgi.scope", {}).get(ADMISSION_KEY)
        return admit_or_refuse(admit(tenant_id, 1, self.ports) if taken is None else taken)


class Submit(PacedView):
    def max_body_bytes(self) -> int:
        return most_body_bytes()

    @described(
        "submit_job",
        "Submit a job",
        answers={202: answers.Submitted, 200: answers.Submitted},
        refusals=(403, 429),
        body=SubmitBody,
        parameters=(IDEMPOTENCY, PREFER),
        description="202 once the job is durable. 200: with `Prefer: wait=n` the job is over within "
        "n seconds, or the request is a repetition of one whose job is over.",
    )
    def post(self, request: Request) -> Response:
        principal, tenant_id, fields = principal_of(request), tenant_of(request), request.headers
        key = idempotency_key(fields.get("Idempotency-Key"))  # before the body: it may still be under way
        rate = self.take_token(request, tenant_id)
        wanted = read_submit(request.data, key=key, prefer=fields.get("Prefer", ""))
        item: Item
        try:
            item = submit_job(wanted.request, tenant=tenant_id, ports=self.ports, key_models=principal.models)
        except Refused as refused:
            item = refused
        answer = answer_submit(item, wanted, principal, rate, can_wait=offered(request.META))
        return Response(answer.data, status=answer.status, headers=answer.headers)


class SubmitBatch(PacedView):
    def max_body_bytes(self) -> int:
        return int(settings.DISPATCHER.max_batch_bytes)

    @described(
        "submit_batch",
        "Submit up to 1,000 jobs in one transaction",
        answers={202: answers.SubmittedBatch},
        refusals=(403, 429),
        body=bodies.Batch,
        parameters=(IDEMPOTENCY,),
        description="One answer per job, in order: what became of it, or the problem it has. "
        "Jobs with a problem don't stop the others.",
    )
    def post(self, request: Request) -> Response:
        tenant_id = tenant_of(request)
        key = idempotency_key(request.headers.get("Idempotency-Key"))
        headers = self.take_token(request, tenant_id)
        items = [_item(item) for item in read_body(bodies.Batch, request.data).jobs]
        if len(items) > 1:
            headers = admit_or_refuse(admit(tenant_id, len(items), self.ports, taken=1))
        batch = submit_batch(
            items,
            tenant=tenant_id,
            ports=self.ports,
            key_models=principal_of(request).models,
            key=BatchKey(key, fingerprint(request.data)) if key else None,
        )
        if batch.replayed:
            headers["Idempotency-Replayed"] = "true"
        answered = [batch_item_json(item, index) for index, item in enumerate(batch.items)]
        return Response({"jobs": answered}, status=202, headers=headers)


class InvalidItem(Refused):
    """One job of a batch is not well-formed."""

    code = "validation_failed"
    status = 422


def _item(value: Any) -> SubmitRequest | Refused:
    """One job of a batch."""
    try:
        return read_item(value)
    except Problem as problem:
        first = problem.errors[0]
        return InvalidItem(first.detail, pointer=first.pointer)


# -- what is asked for ---------------------------------------------------------------


def most_body_bytes() -> int:
    """Of a submit."""
    return settings.DISPATCHER.max_payload_bytes + ENVELOPE_BYTES


def idempotency_key(key: str | None) -> str | None:
    """Of the header's value. Raises Problem 400."""
    if key is None:
        return None
    if not _IDEMPOTENCY_KEY.match(key):
        detail = "Must be 1 to 255 printable ASCII characters without spaces."
        error = FieldError("/Idempotency-Key", "invalid_idempotency_key", detail, place="header")
        raise Problem(400, "invalid_idempotency_key", detail, errors=[error])
    return key


def preferred_wait(prefer: str) -> float | None:
    """What `Prefer: wait=n` asks for; what can't be understood is ignored, as RFC 7240 says."""
    found = PREFER_WAIT.search(prefer)
    return min(float(found[1]), settings.DISPATCHER.max_wait_seconds) if found else None


@dataclass(frozen=True, slots=True)
class Wanted:
    """wait: seconds, of `Prefer: wait=n`."""

    request: SubmitRequest
    wait: float | None


def read_submit(body: Any, *, key: str | None, prefer: str) -> Wanted:
    """key: checked. prefer: the value of `Prefer`. Raises Problem."""
    return Wanted(read_request(body, idempotency_key=key), preferred_wait(prefer))


# -- the answer ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SubmitAnswer:
    """data: not written as JSON yet."""

    status: int
    headers: dict[str, str]
    data: answers.Submitted


def answer_submit(
    item: Item, wanted: Wanted, principal: Principal, rate: Mapping[str, str], *, can_wait: bool
) -> SubmitAnswer:
    """rate: the header fields of its limit. can_wait: somebody takes over the waiting. Raises Problem."""
    if isinstance(item, Refused):
        raise refusal_problem(item, rate) from None
    with_result, in_full = may_see_payloads(principal), may_see_details(principal)
    if item.replayed:
        job = find_job(principal, item.job.id) or item.job
        shown = job_json(job, with_result=with_result, in_full=in_full)
    else:
        # a new job has no attempts
        shown = job_json(item.job, attempts=(), with_result=with_result, in_full=in_full)
    over = item.outcome is Outcome.FINISHED
    headers = {"Location": job_url(item.job.id), **rate}
    if item.replayed:
        headers["Idempotency-Replayed"] = "true"
    if wanted.wait and not over and can_wait:
        headers[WAIT_HEADER] = WaitFor(item.job.id, wanted.wait).as_header()
    return SubmitAnswer(200 if over else 202, headers, submitted_json(item, shown))


def admit_or_refuse(admission: Admission) -> dict[str, str]:
    """The header fields of the tenant's rate limit. Raises Problem 429 if it submits too fast."""
    headers = rate_headers(admission.rate)
    if admission.refused is not None:
        raise refusal_problem(admission.refused, headers)
    return headers


def rate_headers(rate: Rate | None) -> dict[str, str]:
    """A tenant's limit as draft-ietf-httpapi-ratelimit-headers-11 (May 2026) has it. q: jobs of a burst, and
    w: the seconds in which the bucket fills up; r: jobs left, and t: the seconds until all are there again.
    rate: None where the tenant has no limit."""
    if rate is None:
        return {}
    window = max(1, math.ceil(rate.burst / rate.per_second))
    return {
        "RateLimit-Policy": f"{_RATE_NAME};q={rate.burst};w={window}",
        "RateLimit": f"{_RATE_NAME};r={rate.left};t={math.ceil(rate.full_seconds)}",
    }
