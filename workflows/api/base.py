"""What the views of workflows and runs share: scopes, and the runs that a key or user may read."""

from __future__ import annotations

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from foundation.http_api.problems import FieldError, Problem
from foundation.ids import is_id
from jobs.api.base import JobView, principal_of
from jobs.api.submit import keyed_request
from jobs.domain.access import Principal, Scope
from jobs.submission.request import KeyedRequest
from workflows.api.representations import HEAVY
from workflows.models import Run

NAME = OpenApiParameter("name", str, OpenApiParameter.PATH, description="The workflow's name.")
RUN_ID = OpenApiParameter("run_id", str, OpenApiParameter.PATH, description="Id of the run.")


class WorkflowView(JobView):
    """Base of the views. A staff session reads all tenants' runs, as far as its permissions allow."""

    needs = {"GET": "workflows.view_run", "POST": "workflows.change_run", "PUT": "workflows.add_version"}
    scopes = {"GET": Scope.READ, "POST": Scope.SUBMIT, "PUT": Scope.SUBMIT}


def runs_visible_to(principal: Principal) -> QuerySet[Run]:
    """Return all runs for an operator, otherwise those of the principal's tenant."""
    rows = Run.objects.select_related("version__workflow", "parent_node").defer(*HEAVY)
    if principal.is_operator:
        return rows
    return rows.none() if principal.tenant_id is None else rows.filter(tenant=principal.tenant_id)


def visible_run(request: Request, run_id: str) -> Run:
    """Return a run that the reader may see. Raises Problem 404."""
    found = is_id(run_id) and runs_visible_to(principal_of(request)).filter(id=run_id).first()
    if not found:
        raise unknown_run()
    return found


def unknown_run() -> Problem:
    error = FieldError("/run_id", "unknown_run", "There is no such run.", place="path")
    return Problem(404, "unknown_run", "There is no such run.", errors=[error])


def key_name_of(principal: Principal) -> str | None:
    """Return the name of the principal's API key; None for an operator."""
    return None if principal.is_operator else principal.key_name


def keyed_by_target(request: Request, name: str | None) -> KeyedRequest | None:
    """Return the request's Idempotency-Key. name: of the workflow or signal in the path; None: the path has
    none. Raises Problem 400."""
    return keyed_request(request.headers.get("Idempotency-Key"), [name, request.data])
