"""From a submit's body to what is done, and from what became of it to the answer: shared by the view
(`jobs.api.submit`) and by the door that takes many at once (`dispatcher_project.web.submit_batcher`), so that
both say the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs.api.errors import refusal_problem
from jobs.api.parameters import preferred_wait
from jobs.api.rate_headers import rate_headers
from jobs.api.representations import job_json, job_url, submitted_json
from jobs.domain.errors import Refused
from jobs.events.handover import WAIT_HEADER, WaitFor
from jobs.limits.rate_limits import Admission
from jobs.reports.jobs import Principal, find_job, may_see_details, may_see_payloads
from jobs.submission.outcomes import Item, Outcome
from jobs.submission.request import SubmitRequest, read_request


@dataclass(frozen=True, slots=True)
class Wanted:
    """wait: seconds, of `Prefer: wait=n`."""

    request: SubmitRequest
    wait: float | None


@dataclass(frozen=True, slots=True)
class SubmitAnswer:
    """data: not written as JSON yet."""

    status: int
    headers: dict[str, str]
    data: dict[str, Any]


def read_submit(body: Any, *, key: str | None, prefer: str) -> Wanted:
    """key: checked. prefer: the value of `Prefer`. Raises Problem."""
    return Wanted(read_request(body, idempotency_key=key), preferred_wait(prefer))


def admitted(admission: Admission) -> dict[str, str]:
    """The header fields of the tenant's rate limit. Raises Problem 429 if it submits too fast."""
    headers = rate_headers(admission.rate)
    if admission.refused is not None:
        raise refusal_problem(admission.refused, headers)
    return headers


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
