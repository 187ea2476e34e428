"""Why a job waits and when it will start; the same for a job that is only thought of."""

from __future__ import annotations

from dataclasses import asdict
from typing import cast

from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.openapi import described
from jobs.api import answers
from jobs.api.base import JobView, principal_of, tenant_of, visible_job
from jobs.api.parameters import JOB_ID, allow_only
from jobs.api.representations import starts_json
from jobs.api.submit import PacedView, most_body_bytes
from jobs.operations.explain_job import Explanation, estimate_job, explain_job
from jobs.submission.request import Submit, check_request, read_request


class ExplainJob(JobView):
    @described(
        "explain_job",
        "Why a job waits, and when it will start",
        answers={200: answers.Explanation},
        refusals=(404,),
        parameters=(JOB_ID,),
        description="Reasons, most binding first: the first one is what to change first. Of other tenants it "
        "says how many jobs stand before this one, and nothing else. A job that does not wait gets one plain "
        "answer.",
    )
    def get(self, request: Request, job_id: str) -> Response:
        allow_only(request, ())
        job = visible_job(request, job_id)
        found = {"job_id": job.id, "status": str(job.state), **explanation_json(explain_job(job, self.ports))}
        return Response(found)


class EstimateJob(PacedView):
    def max_body_bytes(self) -> int:
        return most_body_bytes()

    @described(
        "estimate_job",
        "What a job would wait for if it were submitted now",
        answers={200: answers.Estimate},
        refusals=(403, 429),
        body=Submit,
        description="The body of a submit, checked and paced like one: it costs a token of the rate. "
        "Nothing is stored. What a submit would be refused with now (rate, quota, a full queue) comes first.",
    )
    def post(self, request: Request) -> Response:
        tenant_id = tenant_of(request)
        headers = self.take_token(request, tenant_id)
        wanted = read_request(request.data)
        check_request(wanted, tenant=tenant_id, ports=self.ports, key_models=principal_of(request).models)
        found = estimate_job(
            wanted.body.model, tenant_id, wanted.body.priority, self.ports, run_at=wanted.body.run_at
        )
        return Response(explanation_json(found), headers=headers)


def explanation_json(found: Explanation) -> answers.Estimate:
    return {
        "reasons": cast("list[answers.Reason]", [asdict(reason) for reason in found.reasons]),
        "position": found.position,
        "starts_in": starts_json(found.starts),
    }
