"""POST /queue/submit and /queue/submit-batch."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.json_body import expect_body, read_body
from foundation.http_api.openapi import described
from foundation.http_api.problems import Problem
from jobs.api import answers, bodies
from jobs.api.base import JobView, principal_of, tenant_of
from jobs.api.parameters import IDEMPOTENCY, PREFER, idempotency_key
from jobs.api.representations import batch_item_json
from jobs.api.submit_answer import admitted, answer_submit, read_submit
from jobs.domain.errors import Refused
from jobs.domain.scopes import Scope
from jobs.events.handover import offered
from jobs.limits.rate_limits import Admission, admit
from jobs.submission.outcomes import Item
from jobs.submission.request import Submit as SubmitBody
from jobs.submission.request import SubmitRequest, fingerprint, read_item
from jobs.submission.submit import submit_batch, submit_job

_MAX_BATCH_BYTES = 32 * 1024 * 1024
ADMISSION_KEY = "dispatcher.admission"
"""In a request's ASGI scope: its tokens were taken already (`dispatcher_project.web.submit_batcher`)."""


ENVELOPE_BYTES = 64 * 1024
"""What a submit's body may have besides its payload."""


class InvalidItem(Refused):
    """One job of a batch is not well-formed."""

    code = "validation_failed"
    status = 422


def most_body_bytes() -> int:
    """Of a submit."""
    return settings.DISPATCHER.max_payload_bytes + ENVELOPE_BYTES


class PacedView(JobView):
    """A submit, or what costs as much: a body that is read costs a token, whatever is wrong with it."""

    scopes = {"POST": Scope.SUBMIT}

    def take_token(self, request: Request, tenant_id: int) -> dict[str, str]:
        """Before the body is read. Returns the header fields of the tenant's rate limit. Raises Problem 429
        if it submits too fast."""
        expect_body(self, request.META)
        taken: Admission | None = request.META.get("asgi.scope", {}).get(ADMISSION_KEY)
        return admitted(admit(tenant_id, 1, self.ports) if taken is None else taken)


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
    max_body_bytes = _MAX_BATCH_BYTES

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
            headers = admitted(admit(tenant_id, len(items), self.ports, taken=1))
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


def _item(value: Any) -> SubmitRequest | Refused:
    """One job of a batch."""
    try:
        return read_item(value)
    except Problem as problem:
        first = problem.errors[0]
        return InvalidItem(first.detail, pointer=first.pointer)
