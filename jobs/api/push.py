"""POST /tasks/callback/{job_id}: a GPU server pushes a result, so that it is not polled for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.json_body import too_large
from foundation.http_api.openapi import described
from foundation.http_api.problems import FieldError, Problem, validation_problem
from foundation.secrets import verified
from gpus.runners.log_tail import LOG_BYTES
from jobs.api import answers, bodies
from jobs.api.base import JobView
from jobs.api.parameters import JOB_ID, job_id_of, unknown_job
from jobs.domain.errors import AttemptOver, TooManyPushes
from jobs.execution.pushed_results import PUSH_TOKEN, Admitted, accept_push, admit_push

TOKEN_HEADER = "X-Callback-Token"


TOKEN_PARAMETERS = (
    OpenApiParameter(
        TOKEN_HEADER,
        {"type": "string", "pattern": "^[ -~]*$", "maxLength": 200},
        OpenApiParameter.HEADER,
        description="The token that the run's request to the server contained.",
    ),
    OpenApiParameter(
        "token",
        {"type": "string", "maxLength": 200},
        description="The same as the header, for servers that can't set headers (Cog's webhooks).",
    ),
)


def attempt_of_token(request: Request) -> str:
    """Return the id of the attempt whose token the request carries. Raises Problem 401."""
    token = request.headers.get(TOKEN_HEADER) or _bearer(request) or request.GET.get("token", "")
    attempt_id = verified(token, purpose=PUSH_TOKEN) if token.isascii() and len(token) <= 200 else None
    if attempt_id is None:
        raise _unauthorized()
    return attempt_id


class PushResult(JobView):
    """Push of a result, authenticated by the attempt's token instead of an API key."""

    authentication_classes: tuple[Any, ...] = ()
    permission_classes: tuple[Any, ...] = ()
    max_body_bytes = 1
    """`post` sets the limit of the attempt's model after the token check."""
    escaped_fields = ("logs",)
    """A server's log may have any character, and must not cost its run's result."""

    @described(
        "push_result",
        "A GPU server pushes an attempt's result",
        answers={200: answers.Accepted},
        refusals=(401, 404, 409, 429, 503),
        body=bodies.Pushed,
        parameters=(JOB_ID, *TOKEN_PARAMETERS),
        tag="gpu servers",
        public=True,
    )
    def post(self, request: Request, job_id: str) -> Response:
        attempt_id = attempt_of_token(request)
        job_id = job_id_of(job_id)
        admitted = self._admit(job_id, attempt_id)
        if admitted.is_repeated:  # stored before; its sender may not have received the response
            if not admitted.is_over:
                self.ports.announce([job_id])
            return Response({"accepted": True})
        self.max_body_bytes = admitted.max_bytes + LOG_BYTES
        body, size = request.data, int(request.META.get("CONTENT_LENGTH") or 0)
        if size > admitted.max_bytes:  # as of an answer: log lines may come on top
            logs = body.get("logs") if isinstance(body, dict) else None
            if logs is None or size - len(json.dumps(logs)) > admitted.max_bytes:
                raise too_large(admitted.max_bytes)
        if not isinstance(body, dict):
            raise validation_problem([FieldError("", "wrong_type", "Must be of type object.")])
        with self._counted_refusals():
            accept_push(job_id, attempt_id, body, size, ports=self.ports)
        return Response({"accepted": True})

    def _admit(self, job_id: str, attempt_id: str) -> Admitted:
        """Check the push before its body is read, which may have megabytes. Raises Problem 404, AttemptOver,
        TooManyPushes."""
        with self._counted_refusals():
            admitted = admit_push(job_id, attempt_id, self.ports)
        if admitted is None:
            raise unknown_job()
        return admitted

    @contextmanager
    def _counted_refusals(self) -> Iterator[None]:
        try:
            yield
        except (AttemptOver, TooManyPushes) as refused:
            self.ports.push_refusals.count(refused.code)
            raise


def _bearer(request: Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _unauthorized() -> Problem:
    return Problem(
        401,
        "invalid_push_token",
        f"The token is missing or invalid. Send the attempt's token in {TOKEN_HEADER}, or as ?token=.",
        headers={"WWW-Authenticate": 'Bearer realm="attempt"'},
    )
