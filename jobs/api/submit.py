"""POST /queue/submit and /queue/submit-batch: reads headers and body, submits, and builds the response. The
submit batcher (`dispatcher_project.web.submit_batcher`) uses the same functions, so that both respond
alike."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.conf import settings
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.json_body import CONTINUE, expect_body, read_body
from foundation.http_api.json_parser import StrictJsonParser
from foundation.http_api.openapi import described, json_schema
from foundation.http_api.prefer import preferences
from foundation.http_api.problems import FieldError, Problem
from gpus.api.base import read_optional_body
from jobs import ports
from jobs.api import answers, bodies
from jobs.api.base import JobView, operator_of, principal_of, require_visible, tenant_of
from jobs.api.errors import refusal_problem
from jobs.api.forms import SubmitForm, SubmitFormParser, is_form
from jobs.api.parameters import JOB_ID, unknown_job
from jobs.api.representations import batch_item_json, job_json, job_url, submitted_json
from jobs.domain.access import VIEW_PAYLOAD, Principal, Scope, may_see_details, may_see_payloads
from jobs.domain.errors import Refused
from jobs.events.handover import WAIT_HEADER, WaitFor, offered
from jobs.limits.submit_limits import Admission, Rate, admit
from jobs.operations.rerun import find_with_payload, rerun_request
from jobs.reports.jobs import find_job
from jobs.submission.fetched_urls import handover_of, urls_to_fetch
from jobs.submission.input_files import NO_FILES, FetchedFile, InputFiles
from jobs.submission.request import (
    Item,
    KeyedRequest,
    KeyText,
    Outcome,
    SubmitRequest,
    fingerprint,
    read_item,
    read_request,
)
from jobs.submission.request import Submit as SubmitBody
from jobs.submission.submit import submit_batch, submit_job

ADMISSION_KEY = "dispatcher.admission"
"""Key in a request's ASGI scope for an `Admission` whose tokens were taken by the submit batcher."""
ENVELOPE_BYTES = 64 * 1024
"""Maximum size of a submit's body besides its payload."""
_WAIT = re.compile(r"[0-9]{1,9}\Z")
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}\Z")
_RATE_NAME = '"submits"'

IDEMPOTENCY = OpenApiParameter(
    "Idempotency-Key",
    json_schema(KeyText),
    OpenApiParameter.HEADER,
    description="Makes a repeated request safe: the same key and body return the job, run or result of the "
    "first request, and nothing is done twice. Another body: 422.",
)
PREFER = OpenApiParameter(
    "Prefer",
    {"type": "string", "pattern": "^[A-Za-z0-9=, -]*$"},
    OpenApiParameter.HEADER,
    description="wait=n: respond 200 with the finished job if it ends within n seconds (RFC 7240).",
)


class RateLimitedView(JobView):
    """Base of views under the tenant's rate limit: each body that is read costs a token, even an invalid
    one."""

    scopes = {"POST": Scope.SUBMIT}

    def take_token(self, request: Request, tenant_id: int) -> dict[str, str]:
        """Take one token, before the body is read; return the RateLimit header fields. Raises Problem 429."""
        expect_body(self, request.META)
        handed = handover_of(request.META)
        if handed is not None and handed.fetched is not None:  # the second pass of the same request
            return dict(handed.headers)
        taken: Admission | None = request.META.get("asgi.scope", {}).get(ADMISSION_KEY)
        return admit_or_refuse(admit(tenant_id, 1, self.ports) if taken is None else taken)

    def fetched(
        self,
        request: Request,
        requests: Sequence[SubmitRequest | Refused],
        tenant_id: int,
        headers: Mapping[str, str],
        *,
        idempotency_key: KeyedRequest | None = None,
    ) -> Mapping[str, FetchedFile] | None:
        """Return what was read from the URLs of these requests; None: URLs stay as they are.

        headers: RateLimit header fields. idempotency_key: of the batch that these are. Raises Problem 100
        to be called again with the files, and IdempotencyConflict for the batch's key.
        """
        handed = handover_of(request.META)
        if handed is None:
            return None
        if handed.fetched is None:
            handed.wanted = urls_to_fetch(
                requests,
                tenant_id=tenant_id,
                key_models=principal_of(request).models,
                ports=self.ports,
                idempotency_key=idempotency_key,
            )
            if handed.wanted is not None:
                handed.headers = headers
                raise Problem(CONTINUE, "files_wanted", "Read the files of the URLs.")
        return handed.fetched


_PAYLOAD_SETTING = "DISPATCHER_MAX_PAYLOAD_BYTES"
_UPLOAD_INSTEAD = "Upload large data as artifacts (`POST /api/v1/artifacts`) and refer to them."


class Submit(RateLimitedView):
    parser_classes = (StrictJsonParser, SubmitFormParser)

    def max_body_bytes(self) -> int:
        if is_form(self.request):
            return max_submit_bytes() + int(settings.DISPATCHER.max_form_bytes)
        return max_submit_bytes()

    @property
    def body_setting(self) -> str:
        return "DISPATCHER_MAX_FORM_BYTES" if is_form(self.request) else _PAYLOAD_SETTING

    larger_body = _UPLOAD_INSTEAD

    def max_job_bytes(self) -> int:
        """Return the limit of a form's part `job`."""
        return max_submit_bytes()

    @described(
        "submit_job",
        "Submit a job",
        answers={202: answers.Submitted, 200: answers.Submitted},
        refusals=(403, 429),
        body=SubmitBody,
        parameters=(IDEMPOTENCY, PREFER),
        description="202: the job is stored durably. 200: the job has ended, within n seconds with "
        "`Prefer: wait=n`, or before a repeated request with the same Idempotency-Key. Also as a form "
        "(`multipart/form-data`): this body is its part `job`, and the payload refers to its files by "
        '`{"$file": "<part>"}`.',
    )
    def post(self, request: Request) -> Response:
        principal, tenant_id, fields = principal_of(request), tenant_of(request), request.headers
        key = idempotency_key(fields.get("Idempotency-Key"))  # before the body is received
        rate = self.take_token(request, tenant_id)
        sent = request.data
        form = sent if isinstance(sent, SubmitForm) else SubmitForm(sent, None)
        item: Item
        try:
            files = InputFiles(form.files, principal.name)
            parsed = read_submit(form.job, key=key, prefer=fields.get("Prefer", ""), files=files)
            fetched = self.fetched(request, [parsed.request], tenant_id, rate)
            wanted = replace(parsed.request, files=replace(files, fetched=fetched))
            item = submit_job(wanted, tenant=tenant_id, ports=self.ports, key_models=principal.models)
        except Refused as refused:
            item = refused
        finally:
            form.close()
        answer = answer_submit(item, parsed.wait, principal, rate, can_wait=offered(request.META))
        return Response(answer.data, status=answer.status, headers=answer.headers)


class SubmitBatch(RateLimitedView):
    def max_body_bytes(self) -> int:
        return int(settings.DISPATCHER.max_batch_bytes)

    body_setting = "DISPATCHER_MAX_BATCH_BYTES"
    larger_body = "Send it as several batches."

    @described(
        "submit_batch",
        "Submit up to 1,000 jobs in one transaction",
        answers={202: answers.SubmittedBatch},
        refusals=(403, 429),
        body=bodies.Batch,
        parameters=(IDEMPOTENCY,),
        description="One result or problem per job, in order. A job with a problem does not stop the others.",
    )
    def post(self, request: Request) -> Response:
        tenant_id = tenant_of(request)
        key = idempotency_key(request.headers.get("Idempotency-Key"))
        headers = self.take_token(request, tenant_id)
        items = [_item(item) for item in read_body(bodies.Batch, request.data).jobs]
        handed = handover_of(request.META)
        if len(items) > 1 and (handed is None or handed.fetched is None):
            headers = admit_or_refuse(admit(tenant_id, len(items), self.ports, taken=1))
        whole = KeyedRequest(key, fingerprint(request.data)) if key else None
        fetched = self.fetched(request, items, tenant_id, headers, idempotency_key=whole)
        items = [_with_files(item, InputFiles(None, principal_of(request).name, fetched)) for item in items]
        batch = submit_batch(
            items,
            tenant=tenant_id,
            ports=self.ports,
            key_models=principal_of(request).models,
            idempotency_key=whole,
        )
        headers |= replay_headers(batch.replayed)
        answered = [batch_item_json(item, index) for index, item in enumerate(batch.items)]
        return Response({"jobs": answered}, status=202, headers=headers)


class Rerun(RateLimitedView):
    """Runs a job again, for its own tenant. The caller must be allowed to read the earlier payload."""

    needs = {"POST": "jobs.change_job"}

    def max_body_bytes(self) -> int:
        return max_submit_bytes()

    body_setting, larger_body = _PAYLOAD_SETTING, _UPLOAD_INSTEAD

    @described(
        "rerun_job",
        "Run a job again, as it was or with changes",
        answers={202: answers.Submitted, 200: answers.Submitted},
        refusals=(403, 404, 409, 429),
        body=bodies.RerunBody,
        body_required=False,
        parameters=(JOB_ID, IDEMPOTENCY),
        description="Submits a new job with the values of this one, whatever its state; `rerun_of` names the "
        "earlier one. Fields of the body replace its values; null: without the earlier value. `run_at` is "
        "not repeated, and deadlines start again. The checks, limits and quota of a submit apply, to the "
        "tenant of the job. An API key needs the scopes `submit` and `read`. 404: there is no such job, "
        "or retention has removed it with its payload. 200: this Idempotency-Key was used before, and "
        "the job has ended.",
    )
    def post(self, request: Request, job_id: str) -> Response:
        principal = principal_of(request)
        if not may_see_payloads(principal):
            raise _may_not_read(principal)
        key = idempotency_key(request.headers.get("Idempotency-Key"))
        job = find_with_payload(require_visible(request, job_id))
        if job is None:
            raise unknown_job()
        rate = self.take_token(request, job.tenant_id)
        sent: Any = request.data
        given = read_optional_body(bodies.RerunBody, sent).model_fields_set
        try:
            changes = {name: sent[name] for name in given}
            wanted = rerun_request(job, changes, idempotency_key=key, by=operator_of(request))
            fetched = self.fetched(request, [wanted], job.tenant_id, rate)
            wanted = replace(wanted, files=InputFiles(None, principal.name, fetched))
            item: Item = submit_job(
                wanted, tenant=job.tenant_id, ports=self.ports, key_models=principal.models
            )
        except Refused as refused:
            item = refused
        answer = answer_submit(item, None, principal, rate, can_wait=False)
        return Response(answer.data, status=answer.status, headers=answer.headers)


def _may_not_read(principal: Principal) -> Problem:
    if principal.user is not None:
        return Problem(403, "permission_denied", f"Running a job again needs the permission {VIEW_PAYLOAD}.")
    return Problem(
        403, "scope_required", "Running a job again reads its payload: it needs a key with the scope read."
    )


def _with_files(item: SubmitRequest | Refused, files: InputFiles) -> SubmitRequest | Refused:
    return replace(item, files=files) if isinstance(item, SubmitRequest) else item


class InvalidItem(Refused):
    """One job of a batch is invalid."""

    code = "validation_failed"
    status = 422


def _item(value: Any) -> SubmitRequest | Refused:
    """Read one job of a batch; return its error instead of raising it."""
    try:
        return read_item(value)
    except Problem as problem:
        first = problem.errors[0]
        return InvalidItem(first.detail, pointer=first.pointer)


# -- the request ---------------------------------------------------------------------


def max_submit_bytes() -> int:
    """Return the maximum size of a submit's body, in bytes."""
    return settings.DISPATCHER.max_payload_bytes + ENVELOPE_BYTES


def idempotency_key(key: str | None) -> str | None:
    """Check the header's value and return it. Raises Problem 400."""
    if key is None:
        return None
    if not _IDEMPOTENCY_KEY.match(key):
        detail = "Must be 1 to 255 printable ASCII characters without spaces."
        error = FieldError("/Idempotency-Key", "invalid_idempotency_key", detail, place="header")
        raise Problem(400, "invalid_idempotency_key", detail, errors=[error])
    return key


def keyed_request(key: str | None, request: Any) -> KeyedRequest | None:
    """Check the header's value and return it with the fingerprint of the request. Raises Problem 400."""
    checked = idempotency_key(key)
    return None if checked is None else KeyedRequest(checked, fingerprint(request))


def replay_headers(replayed: bool) -> dict[str, str]:
    """Return the header of an answer that repeats an earlier one."""
    return {"Idempotency-Replayed": "true"} if replayed else {}


def preferred_wait(prefer: str) -> float | None:
    """Return the capped seconds of `Prefer: wait=n`; other preferences are ignored (RFC 7240)."""
    seconds = asked_wait(prefer)
    return min(float(seconds), settings.DISPATCHER.max_wait_seconds) if seconds is not None else None


def asked_wait(prefer: str) -> str | None:
    """Return n of `Prefer: wait=n`, digits as sent; None without one."""
    value = preferences(prefer).get("wait", "") if prefer else ""
    return value if _WAIT.match(value) else None


@dataclass(frozen=True, slots=True)
class ParsedSubmit:
    """A submit's body and headers. wait: seconds of `Prefer: wait=n`; None: don't wait."""

    request: SubmitRequest
    wait: float | None


def read_submit(body: Any, *, key: str | None, prefer: str, files: InputFiles = NO_FILES) -> ParsedSubmit:
    """Validate the parsed JSON of a submit. key: a checked idempotency key. prefer: the header `Prefer`.
    files: that came with it. Raises Problem."""
    return ParsedSubmit(read_request(body, idempotency_key=key, files=files), preferred_wait(prefer))


# -- the response --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SubmitAnswer:
    """Response to a submit. data: the body, not serialized yet."""

    status: int
    headers: dict[str, str]
    data: answers.Submitted


def answer_submit(
    item: Item, wait: float | None, principal: Principal, rate: Mapping[str, str], *, can_wait: bool
) -> SubmitAnswer:
    """Build the response to a submit.

    item: the submitted job, or the error. wait: as in `ParsedSubmit`. rate: RateLimit header fields.
    can_wait: the server in front (ASGI gateway) can wait for the job's end. Raises Problem for an error.
    """
    if isinstance(item, Refused):
        raise refusal_problem(item, rate) from None
    with_result, in_full = may_see_payloads(principal), may_see_details(principal)
    if item.replayed:
        job = find_job(principal, item.job.id) or item.job
        now = ports.production_ports().clock.now()
        shown = job_json(job, now, with_result=with_result, in_full=in_full)
    else:
        # a new job has no attempts
        new = item.job
        shown = job_json(new, new.created_at, attempts=(), with_result=with_result, in_full=in_full)
    has_ended = item.outcome is Outcome.FINISHED
    headers = {"Location": job_url(item.job.id), **rate, **replay_headers(item.replayed)}
    if wait and not has_ended and can_wait:
        headers[WAIT_HEADER] = WaitFor(item.job.id, wait).as_header()
    return SubmitAnswer(200 if has_ended else 202, headers, submitted_json(item, shown))


def admit_or_refuse(admission: Admission) -> dict[str, str]:
    """Return the RateLimit header fields of an admission. Raises Problem 429 if it is refused."""
    headers = rate_headers(admission.rate)
    if admission.refused is not None:
        raise refusal_problem(admission.refused, headers)
    return headers


def rate_headers(rate: Rate | None) -> dict[str, str]:
    """Return the header fields of draft-ietf-httpapi-ratelimit-headers-11 (May 2026).

    q: burst in jobs; w: seconds in which an empty bucket fills; r: tokens left; t: seconds until the bucket
    is full. rate: None: the tenant has no limit, so no fields.
    """
    if rate is None:
        return {}
    window = max(1, math.ceil(rate.burst / rate.per_second))
    return {
        "RateLimit-Policy": f"{_RATE_NAME};q={rate.burst};w={window}",
        "RateLimit": f"{_RATE_NAME};r={rate.left};t={math.ceil(rate.full_seconds)}",
    }
