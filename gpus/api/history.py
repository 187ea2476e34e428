"""What was done over HTTP: the audit log, and a model's former configurations and the way back to one."""

from __future__ import annotations

import re

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.json_body import read_body
from foundation.http_api.openapi import described
from foundation.http_api.parameters import PARAMETERS, CursorPages, allow_only, text_parameter, text_schema
from gpus.api import answers, bodies
from gpus.api.base import MODEL, RegistryView, actor, model_name, problem_of_refusal, refusing
from gpus.api.views import config_json
from gpus.models import AuditEntry, ConfigVersion, ModelConfig
from gpus.registry.controls import revert_model
from gpus.registry.registry import unknown_model

_FILTERS = ("actor", "target", "action")
_MAX_LENGTH = 200


class AuditPages(CursorPages):
    ordering = "-id"
    position = re.compile(r"[0-9]{1,18}\Z")


class Audit(RegistryView):
    needs = {"GET": "gpus.view_auditentry"}

    @described(
        "list_audit_entries",
        "What operators did, the last first",
        answers={200: answers.AuditPage},
        refusals=(400, 403),
        parameters=(*(OpenApiParameter(name, text_schema(_MAX_LENGTH)) for name in _FILTERS), *PARAMETERS),
        tag="admin",
        description="Filters match exactly: actor=user:ada, target=server:flux-1, action=switch_server.",
    )
    def get(self, request: Request) -> Response:
        allow_only(request, (*_FILTERS, "cursor", "limit"))
        asked = {name: text_parameter(request, name, max_length=_MAX_LENGTH) for name in _FILTERS}
        rows = AuditEntry.objects.filter(
            **{name: value for name, value in asked.items() if value is not None}
        )
        pages = AuditPages()
        page = pages.paginate_queryset(rows, request, view=self) or []
        return pages.get_paginated_response([_entry(row) for row in page])


def _entry(row: AuditEntry) -> dict[str, object]:
    fields = ("id", "at", "actor", "action", "target", "detail")
    return {name: getattr(row, name) for name in fields}


class VersionPages(CursorPages):
    ordering = "-number"
    position = re.compile(r"[0-9]{1,10}\Z")


class ConfigVersions(RegistryView):
    needs = {"GET": "gpus.view_configversion"}

    @described(
        "list_model_config_versions",
        "What a model's configuration was, the last change first",
        answers={200: answers.ConfigVersionPage},
        refusals=(400, 403, 404),
        parameters=(MODEL, *PARAMETERS),
        tag="admin",
    )
    def get(self, request: Request, model: str) -> Response:
        allow_only(request, ("cursor", "limit"))
        name = model_name(model)
        if not ModelConfig.objects.filter(name=name).exists():
            raise problem_of_refusal(unknown_model(name))
        pages = VersionPages()
        page = pages.paginate_queryset(ConfigVersion.objects.filter(model=name), request, view=self) or []
        return pages.get_paginated_response(
            [{"number": row.number, "at": row.at, "by": row.actor, "fields": row.fields} for row in page]
        )


class RevertConfig(RegistryView):
    needs = {"POST": "gpus.change_modelconfig"}

    @described(
        "revert_model_config",
        "Bring a model's configuration back to one of its versions",
        answers={200: answers.ModelConfig},
        refusals=(403, 404),
        body=bodies.RevertBody,
        parameters=(MODEL,),
        tag="admin",
        description="The revert is a new version itself: nothing of the history is lost.",
    )
    def post(self, request: Request, model: str) -> Response:
        number, name = read_body(bodies.RevertBody, request.data).number, model_name(model)
        by, leases = actor(request), self.ports().leases
        found = refusing(lambda: revert_model(name, number, by=by, leases=leases))
        return Response(config_json(found.config, found.pool))
