"""Views that end waits of runs: answers of people, and signals."""

from __future__ import annotations

import re

from django.conf import settings
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.json_body import read_body
from foundation.http_api.openapi import described
from gpus.api.base import is_name, read_optional_body
from jobs.api.base import operator_of, principal_of, tenant_of
from jobs.api.submit import ENVELOPE_BYTES, IDEMPOTENCY, keyed_request, replay_headers
from workflows.api import answers, bodies
from workflows.api.base import (
    RUN_ID,
    WorkflowView,
    key_name_of,
    keyed_by_target,
    visible_run,
)
from workflows.api.representations import run_json
from workflows.domain.errors import UnknownNode
from workflows.operations.answers import answer_wait
from workflows.operations.signals import send_signal

_KEY = re.compile(r"[a-z_][a-z0-9_]{0,63}(\[[0-9]{1,6}\])?\Z")
KEY = OpenApiParameter(
    "key", str, OpenApiParameter.PATH, description="Key of the node, such as best or best[3]."
)
SIGNAL = OpenApiParameter("name", str, OpenApiParameter.PATH, description="The signal's name.")


def max_answer_bytes() -> int:
    """Return the maximum size of a body with an answer or of a signal, in bytes."""
    return settings.DISPATCHER.workflow_answer_bytes + ENVELOPE_BYTES


class AnswerWait(WorkflowView):
    max_body_bytes = staticmethod(max_answer_bytes)
    body_setting = "DISPATCHER_WORKFLOW_ANSWER_BYTES"

    @described(
        "answer_wait",
        "Answer a human node of a run",
        answers={200: answers.Run},
        refusals=(403, 404, 409, 413, 429),
        body=bodies.Answer,
        parameters=(RUN_ID, KEY, IDEMPOTENCY),
        tag="workflows",
        description="Of several answers the first one counts: the others get 409. The same answer again by "
        "the same key gets 200, too, so it can be repeated safely; with `round` or an Idempotency-Key it "
        "answers no question of a later round. 403 `not_yours`: the node's `answer_by` does not name this "
        "key. 410: the time for an answer is over.",
    )
    def post(self, request: Request, run_id: str, key: str) -> Response:
        run = visible_run(request, run_id)
        if not _KEY.match(key):
            raise UnknownNode
        keyed = keyed_request(request.headers.get("Idempotency-Key"), [run_id, key, request.data])
        body = read_body(bodies.Answer, request.data)
        principal = principal_of(request)
        answered = answer_wait(
            run,
            key,
            body.answer,
            by=principal.name,
            key_name=key_name_of(principal),
            round_number=body.round,
            idempotency_key=keyed,
            ports=self.ports,
        )
        shown = run_json(visible_run(request, run_id), principal)
        return Response(shown, headers=replay_headers(answered.replayed))


class SendSignal(WorkflowView):
    max_body_bytes = staticmethod(max_answer_bytes)
    body_setting = "DISPATCHER_WORKFLOW_ANSWER_BYTES"

    @described(
        "send_signal",
        "Send a signal to the runs that wait for it",
        answers={200: answers.Taken},
        refusals=(403, 413, 429),
        body=bodies.SentSignal,
        body_required=False,
        parameters=(SIGNAL, IDEMPOTENCY),
        tag="workflows",
        description="A signal that no run waits for is taken by none, and is not kept. A repeated request "
        "with the same Idempotency-Key and body returns the same number, and ends no further waits. 413 "
        "`signal_too_large`: too many nodes wait for a body of this size.",
    )
    def post(self, request: Request, name: str) -> Response:
        key = keyed_by_target(request, name)
        body = read_optional_body(bodies.SentSignal, request.data or None)
        tenant_id = tenant_of(request)
        if not is_name(name):
            return Response({"taken": 0})
        sent = send_signal(
            tenant_id,
            name,
            body.body,
            run_id=body.run_id,
            idempotency_key=key,
            ports=self.ports,
            by=operator_of(request),
        )
        return Response({"taken": sent.taken}, headers=replay_headers(sent.replayed))
