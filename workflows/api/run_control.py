"""Views that cancel, pause, resume and restart runs, and erase their data."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.openapi import described
from foundation.http_api.parameters import (
    allow_only,
)
from gpus.api.base import read_optional_body
from jobs.api.base import operator_of, principal_of
from jobs.domain.access import Scope
from workflows.api import answers, bodies
from workflows.api.base import RUN_ID, WorkflowView, unknown_run, visible_run
from workflows.api.representations import run_json
from workflows.models import Run
from workflows.operations.control import cancel_run, pause_run, resume_run
from workflows.operations.erase import erase_run_data
from workflows.operations.restart import restart_run


class CancelRun(WorkflowView):
    scopes = {"POST": Scope.CANCEL}

    @described(
        "cancel_run",
        "Cancel a run; it ends once its jobs have",
        answers={202: answers.Run},
        refusals=(403, 404, 409),
        parameters=(RUN_ID,),
        tag="workflows",
    )
    def post(self, request: Request, run_id: str) -> Response:
        run = visible_run(request, run_id)
        cancel_run(run.id, ports=self.ports, by=operator_of(request))
        return Response(run_json(visible_run(request, run_id), principal_of(request)), status=202)


class PauseRun(WorkflowView):
    @described(
        "pause_run",
        "Start no further nodes of a run",
        answers={200: answers.Run},
        refusals=(403, 404, 409),
        parameters=(RUN_ID,),
        tag="workflows",
        description="So do its sub-runs of all levels. Jobs and waits under way go on to their end.",
    )
    def post(self, request: Request, run_id: str) -> Response:
        pause_run(visible_run(request, run_id).id, ports=self.ports, by=operator_of(request))
        return Response(run_json(visible_run(request, run_id), principal_of(request)))


class ResumeRun(WorkflowView):
    @described(
        "resume_run",
        "Start nodes of a paused run again",
        answers={200: answers.Run},
        refusals=(403, 404, 409),
        parameters=(RUN_ID,),
        tag="workflows",
    )
    def post(self, request: Request, run_id: str) -> Response:
        resume_run(visible_run(request, run_id).id, ports=self.ports, by=operator_of(request))
        return Response(run_json(visible_run(request, run_id), principal_of(request)))


class RestartRun(WorkflowView):
    @described(
        "restart_run",
        "Run the failed nodes of a run again, and all nodes after them",
        answers={202: answers.Run},
        refusals=(403, 404, 409, 429),
        body=bodies.RestartRun,
        body_required=False,
        parameters=(RUN_ID,),
        tag="workflows",
        description="The other nodes keep their outputs. A map runs only its failed items again. 409: the "
        "run has not ended, `nothing_to_restart`, or `output_not_wanted`: of a sub-run, whose parent would "
        "drop its output.",
    )
    def post(self, request: Request, run_id: str) -> Response:
        run = visible_run(request, run_id)
        body = read_optional_body(bodies.RestartRun, request.data or None)
        run = restart_run(
            run.id,
            keys=body.nodes,
            ports=self.ports,
            key_models=principal_of(request).models,
            by=operator_of(request),
        )
        return Response(run_json(run, principal_of(request)), status=202)


class EraseRunData(WorkflowView):
    scopes = {"DELETE": Scope.SUBMIT}
    needs = {"DELETE": "workflows.change_run"}

    @described(
        "erase_run_data",
        "Erase what a run and all its jobs and sub-runs were given and made",
        answers={200: answers.RunDataErased},
        refusals=(403, 404, 409),
        parameters=(RUN_ID,),
        tag="workflows",
        description="The run stays, with its nodes, times, states, and the hashes of its inputs and output; "
        "it can't be restarted. Artifacts that no other job or run refers to are gone at once (410). "
        "409: the run has not ended.",
    )
    def delete(self, request: Request, run_id: str) -> Response:
        allow_only(request, ())
        try:
            run = erase_run_data(visible_run(request, run_id).id, ports=self.ports, by=operator_of(request))
        except Run.DoesNotExist:  # retention removed it meanwhile
            raise unknown_run() from None
        return Response(
            {"run_id": run.id, "requested_at": run.erase_requested_at, "erased_at": run.erased_at}
        )
