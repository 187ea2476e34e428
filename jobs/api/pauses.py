"""Pausing a tenant over HTTP, and all that is paused now."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.openapi import described
from gpus.api import answers, bodies
from gpus.api.base import actor
from gpus.api.controls import WAITING, read_reason, switched_json
from gpus.models import Pause
from gpus.registry import queries
from jobs.api.dead_letters import OperatorView
from jobs.api.representations import pause_json
from jobs.api.tenants import TENANT, tenant_row
from jobs.operations.tenants import pause_tenant, resume_tenant
from jobs.reports.jobs import named


class Pauses(OperatorView):
    needs = {"GET": "gpus.view_pause"}

    @described("list_pauses", "What is paused", answers={200: answers.Pauses}, refusals=(403,), tag="admin")
    def get(self, request: Request) -> Response:
        return Response({"results": [pause_json(pause, name) for pause, name in named(queries.pauses())]})


class PauseTenant(OperatorView):
    needs = {"POST": "jobs.change_tenant"}

    @described(
        "pause_tenant",
        "Pause a tenant",
        answers={200: answers.Switched},
        refusals=(403, 404),
        body=bodies.PauseBody,
        body_required=False,
        parameters=(TENANT,),
        tag="admin",
        description=WAITING,
    )
    def post(self, request: Request, tenant: str) -> Response:
        reason, row = read_reason(request), tenant_row(tenant)
        done = pause_tenant(row, by=actor(request), ports=self.ports, reason=reason)
        return Response(switched_json(Pause.Kind.TENANT, row.name, done, paused=True))


class ResumeTenant(OperatorView):
    needs = {"POST": "jobs.change_tenant"}

    @described(
        "resume_tenant",
        "End the pause of a tenant",
        answers={200: answers.Switched},
        refusals=(403, 404),
        parameters=(TENANT,),
        tag="admin",
    )
    def post(self, request: Request, tenant: str) -> Response:
        row, ports = tenant_row(tenant), self.ports
        done = resume_tenant(row, by=actor(request), ports=ports)
        ports.send_wakes(done.wakes)
        return Response(switched_json(Pause.Kind.TENANT, row.name, done, paused=False))
