"""Views of workflows and their versions."""

from __future__ import annotations

import re
from typing import Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.openapi import described
from foundation.http_api.parameters import (
    PARAMETERS,
    CursorPages,
    NamePages,
    allow_only,
)
from foundation.http_api.problems import FieldError, Problem
from gpus.api.base import is_name
from jobs.api.base import operator_of, principal_of, tenant_of
from workflows.api import answers
from workflows.api.base import NAME, WorkflowView
from workflows.definition.body import Definition
from workflows.domain.errors import UnknownWorkflow
from workflows.execution.runs import find_version
from workflows.models import INLINE_PREFIX, Version
from workflows.operations.definitions import put_definition, stored_workflows

_NUMBER = re.compile(r"[0-9]{1,9}\Z")
DEFINITION_BODY_BYTES = 4 * 1024 * 1024
"""Maximum size of a body with a definition, whose own limit is of its canonical JSON."""

NUMBER = OpenApiParameter("number", int, OpenApiParameter.PATH, description="The version's number.")


class VersionPages(CursorPages):
    ordering = "-number"
    position = _NUMBER


class Workflows(WorkflowView):
    @described(
        "list_workflows",
        "Your workflows by name",
        answers={200: answers.WorkflowPage},
        refusals=(400, 403),
        parameters=PARAMETERS,
        tag="workflows",
    )
    def get(self, request: Request) -> Response:
        allow_only(request, ("cursor", "limit"))
        pages = NamePages()
        rows = stored_workflows(tenant_of(request))
        page = pages.paginate_queryset(rows, request, view=self) or []
        return pages.get_paginated_response([{"name": row.name, "latest": row.latest} for row in page])


class WorkflowDetail(WorkflowView):
    max_body_bytes = DEFINITION_BODY_BYTES

    @described(
        "get_workflow",
        "The newest version of a workflow",
        answers={200: answers.WorkflowVersion},
        refusals=(403, 404),
        parameters=(NAME,),
        tag="workflows",
    )
    def get(self, request: Request, name: str) -> Response:
        return Response(version_json(_version(tenant_of(request), name, None)))

    @described(
        "put_workflow",
        "Store a definition as the newest version",
        answers={200: answers.WorkflowVersion, 201: answers.WorkflowVersion},
        refusals=(403, 404, 413),
        body=Definition,
        parameters=(NAME,),
        tag="workflows",
        description="201: a new version. 200: the newest version has the same content. The content of an "
        "earlier version becomes a new version, so a workflow can go back. Runs keep the version with which "
        "they started.",
    )
    def put(self, request: Request, name: str) -> Response:
        if not is_name(name):
            raise _unknown_workflow()
        given = request.data
        if isinstance(given, dict) and given.get("name") not in (None, name):
            error = FieldError("/name", "invalid", "The name in the body is not the one in the URL.")
            raise Problem(422, "validation_failed", "The name is ambiguous.", errors=[error])
        stored = put_definition(
            tenant_of(request),
            name,
            given,
            ports=self.ports,
            key_models=principal_of(request).models,
            by=operator_of(request),
        )
        return Response(version_json(stored.version), status=201 if stored.is_new else 200)


class WorkflowVersions(WorkflowView):
    @described(
        "list_workflow_versions",
        "Versions of a workflow, newest first",
        answers={200: answers.WorkflowVersionPage},
        refusals=(400, 403, 404),
        parameters=(NAME, *PARAMETERS),
        tag="workflows",
        description="Without their definitions.",
    )
    def get(self, request: Request, name: str) -> Response:
        allow_only(request, ("cursor", "limit"))
        newest = _version(tenant_of(request), name, None)
        rows = Version.objects.filter(workflow=newest.workflow_id).select_related("workflow").defer("spec")
        pages = VersionPages()
        page = pages.paginate_queryset(rows, request, view=self) or []
        return pages.get_paginated_response([version_summary_json(row) for row in page])


class WorkflowVersionDetail(WorkflowView):
    @described(
        "get_workflow_version",
        "One version of a workflow",
        answers={200: answers.WorkflowVersion},
        refusals=(403, 404),
        parameters=(NAME, NUMBER),
        tag="workflows",
    )
    def get(self, request: Request, name: str, number: str) -> Response:
        tenant_id = tenant_of(request)
        if not _NUMBER.match(number):
            raise _unknown_workflow()
        return Response(version_json(_version(tenant_id, name, int(number))))


def _version(tenant_id: int, name: str, number: int | None) -> Version:
    found = find_version(tenant_id, name, number) if _may_be_workflow(name) else None
    if found is None:
        raise _unknown_workflow()
    return found


def _may_be_workflow(name: str) -> bool:
    return is_name(name.removeprefix(INLINE_PREFIX))


def _unknown_workflow() -> Problem:
    return Problem(404, UnknownWorkflow.code, "There is no such workflow, or no such version of it.")


def version_summary_json(version: Version) -> dict[str, Any]:
    """Return the version's body in a list: without its definition, which may be large."""
    return {
        "name": version.workflow.name,
        "version": version.number,
        "sha256": version.sha256,
        "created_at": version.created_at,
    }


def version_json(version: Version) -> dict[str, Any]:
    return {**version_summary_json(version), "definition": version.spec}
