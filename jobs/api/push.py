"""POST /tasks/callback/{job_id}: a GPU server pushes a result instead of being polled."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from gpus.api.openapi import described
from gpus.api.problems import FieldError, Problem, validation_problem
from jobs.api.base import JobView
from jobs.api.parameters import JOB_ID, job_id_of
from jobs.services.attempts import accept_push
from jobs.services.push_tokens import attempt_of_token

TOKEN_HEADER = "X-Callback-Token"
_MAX_BODY_BYTES = 32 * 1024 * 1024


class PushResult(JobView):
    """Authenticated by the attempt's own token, not by an API key."""

    authentication_classes: tuple[Any, ...] = ()
    permission_classes: tuple[Any, ...] = ()
    max_body_bytes = _MAX_BODY_BYTES

    @described(
        "push_result",
        "A GPU server pushes an attempt's result",
        answers={200: "Accepted"},
        refusals=(401, 404, 503),
        body="Pushed",
        parameters=(
            JOB_ID,
            OpenApiParameter(
                TOKEN_HEADER,
                {"type": "string", "pattern": "^[ -~]*$", "maxLength": 200},
                OpenApiParameter.HEADER,
                description="As it was sent to the server.",
            ),
            OpenApiParameter(
                "token",
                {"type": "string", "maxLength": 200},
                description="The same, for servers that set no headers (Cog's webhooks).",
            ),
        ),
        tag="gpu servers",
        public=True,
    )
    def post(self, request: Request, job_id: str) -> Response:
        token = request.headers.get(TOKEN_HEADER) or _bearer(request) or request.GET.get("token", "")
        if not token.isascii() or len(token) > 200 or attempt_of_token(token) is None:
            raise _unauthorized()  # before the body is asked for: it may have 32 MB
        body = request.data
        if not isinstance(body, dict):
            raise validation_problem([FieldError("", "wrong_type", "Must be of type object.")])
        accept_push(job_id_of(job_id), token, body, ports=self.ports)
        return Response({"accepted": True})


def _bearer(request: Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _unauthorized() -> Problem:
    return Problem(
        401,
        "invalid_push_token",
        f"Send the token of this attempt in {TOKEN_HEADER}, or as ?token=.",
        headers={"WWW-Authenticate": 'Bearer realm="attempt"'},
    )
