"""POST /tasks/artifacts/{job_id}: a GPU server promises an output of a run, and gets the request that uploads
it."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.json_body import read_body
from foundation.http_api.openapi import described
from jobs.api import answers, bodies
from jobs.api.artifacts import require_shared_store, signed_json
from jobs.api.base import JobView
from jobs.api.parameters import JOB_ID, job_id_of, unknown_job
from jobs.api.push import TOKEN_PARAMETERS, attempt_of_token
from jobs.execution.run_uploads import WantedOutput, promise_output


class RunArtifacts(JobView):
    """Authenticated by the attempt's token instead of an API key."""

    authentication_classes: tuple[Any, ...] = ()
    permission_classes: tuple[Any, ...] = ()

    @described(
        "create_run_artifact",
        "A GPU server promises an output of a run, and gets the request that uploads it",
        answers={201: answers.PromisedArtifact, 200: answers.PromisedArtifact},
        refusals=(401, 404, 409, 413, 429, 503),
        body=bodies.NewRunArtifact,
        parameters=(JOB_ID, *TOKEN_PARAMETERS),
        description="201: send the bytes by `upload`. 200: the store has them already. Then name the output "
        'in the result by `{"$artifact": "<id>"}`, or by the URL of `upload`.',
        tag="gpu servers",
        public=True,
    )
    def post(self, request: Request, job_id: str) -> Response:
        attempt_id = attempt_of_token(request)
        body = read_body(bodies.NewRunArtifact, request.data)
        require_shared_store(self.ports)
        wanted = WantedOutput(body.sha256, body.bytes, body.content_type or "", body.name or "")
        promised = promise_output(job_id_of(job_id), attempt_id, wanted, self.ports)
        if promised is None:
            raise unknown_job()
        shown: answers.PromisedArtifact = {
            "id": promised.artifact_id,
            "exists": promised.upload is None,
            "upload": signed_json(promised.upload) if promised.upload else None,
            "parts": None,
        }
        return Response(shown, status=201 if promised.upload else 200)
