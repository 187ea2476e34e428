"""What an operator grants a tenant, over HTTP: share, highest band, how many of its jobs run at once."""

from __future__ import annotations

import re
from typing import Any

from django.core.exceptions import ValidationError
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.json_body import read_body
from foundation.http_api.openapi import described
from foundation.http_api.parameters import PARAMETERS, CursorPages
from foundation.http_api.problems import FieldError, Problem, validation_problem
from gpus.api.base import actor, is_name
from jobs.api import answers, bodies
from jobs.api.dead_letters import OperatorView
from jobs.api.parameters import allow_only
from jobs.models import Tenant
from jobs.operations.tenants import CHANGEABLE, change_rules


class TenantPages(CursorPages):
    ordering = "name"
    position = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")


TENANT = OpenApiParameter("tenant", str, OpenApiParameter.PATH, description="The tenant's name.")


class Tenants(OperatorView):
    needs = {"GET": "jobs.view_tenant"}

    @described(
        "list_tenants",
        "Tenants by name, with their shares, bands and limits",
        answers={200: answers.TenantPage},
        refusals=(400, 403),
        parameters=PARAMETERS,
        tag="admin",
    )
    def get(self, request: Request) -> Response:
        allow_only(request, ("cursor", "limit"))
        pages = TenantPages()
        page = pages.paginate_queryset(Tenant.objects.all(), request, view=self) or []
        return pages.get_paginated_response([tenant_json(tenant) for tenant in page])


class TenantRules(OperatorView):
    needs = {"GET": "jobs.view_tenant", "PATCH": "jobs.change_tenant"}

    @described(
        "get_tenant",
        "A tenant's share, band and limits",
        answers={200: answers.Tenant},
        refusals=(403, 404),
        parameters=(TENANT,),
        tag="admin",
    )
    def get(self, request: Request, tenant: str) -> Response:
        return Response(tenant_json(tenant_row(tenant)))

    @described(
        "change_tenant",
        "Change a tenant's share, band and limits",
        answers={200: answers.ChangedTenant},
        refusals=(403, 404),
        body=bodies.TenantChange,
        parameters=(TENANT,),
        tag="admin",
        description="What is left out stays as it is. Live: jobs that wait stand by it at once.",
    )
    def patch(self, request: Request, tenant: str) -> Response:
        rules = read_body(bodies.TenantChange, request.data).given()
        try:
            done = change_rules(tenant_row(tenant).name, rules, by=actor(request), ports=self.ports)
        except ValidationError as error:
            raise _problem(error) from None
        self.ports.send_wakes(done.wakes)
        return Response({**tenant_json(done.tenant), "changed": done.changed, "live": done.mirrored})


def tenant_json(tenant: Tenant) -> dict[str, Any]:
    return {"tenant": tenant.name, **{name: getattr(tenant, name) for name in CHANGEABLE}}


def tenant_row(name: str) -> Tenant:
    """Raises Problem 404."""
    row = Tenant.objects.filter(name=name).first() if is_name(name) else None
    if row is None:
        error = FieldError("/tenant", "unknown_tenant", "There is no such tenant.", place="path")
        raise Problem(404, "unknown_tenant", "There is no such tenant.", errors=[error])
    return row


def _problem(error: ValidationError) -> Problem:
    """What the schema at the door lets through and the row does not."""
    return validation_problem(
        [
            FieldError(f"/{field}", "out_of_range", message)
            for field, messages in error.message_dict.items()
            for message in messages
        ]
    )
