"""DELETE /queue/jobs/{job_id}/data: erases what a job was given and what it made."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.openapi import described
from jobs.api import answers
from jobs.api.base import JobView, operator_of, require_visible
from jobs.api.parameters import JOB_ID, allow_only
from jobs.domain.access import Scope
from jobs.operations.erase import erase_job_data


class EraseJobData(JobView):
    scopes = {"DELETE": Scope.SUBMIT}
    needs = {"DELETE": "jobs.change_job"}

    @described(
        "erase_job_data",
        "Erase a job's payload, result, outputs, log lines and messages",
        answers={200: answers.DataErased},
        refusals=(403, 404, 409),
        parameters=(JOB_ID,),
        description="The job stays, with its times and the hashes of payload and result. Artifacts that no "
        "other job or run refers to are gone at once (410). 409: the job has not ended.",
    )
    def delete(self, request: Request, job_id: str) -> Response:
        allow_only(request, ())
        job_id = require_visible(request, job_id)
        artifacts = erase_job_data(job_id, ports=self.ports, by=operator_of(request))
        erased_at = self.ports.clock.now().isoformat()
        return Response({"job_id": job_id, "erased_at": erased_at, "artifacts": artifacts})
