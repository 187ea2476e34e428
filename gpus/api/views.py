"""API views of the registry: register servers, configure models, their versions and reverts, and the audit
log."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.json_body import read_body
from foundation.http_api.openapi import described
from foundation.http_api.parameters import PARAMETERS, CursorPages, allow_only, text_parameter, text_schema
from foundation.http_api.problems import FieldError, validation_problem
from gpus.api import answers, bodies
from gpus.api.base import MODEL, RegistryView, actor, call_service, model_name, problem_of_refusal
from gpus.health.registration import register_and_check
from gpus.models import AuditEntry, ConfigVersion, ModelConfig, Pool
from gpus.registry.controls import revert_model
from gpus.registry.model_fields import FIELDS, read_fields
from gpus.registry.recognise import CERTAINTIES, look_at, registration
from gpus.registry.registry import Registered, configure_model, reset_model, unknown_model
from gpus.runners.recognition import SITE_SECONDS


class Register(RegistryView):
    max_body_bytes = 1_000_000
    needs = {"POST": "gpus.add_server"}

    @described(
        "register_server",
        "Place a model on a GPU server",
        answers={201: answers.Registered, 200: answers.Registered},
        refusals=(403, 409),
        body=bodies.Register,
        tag="admin",
        description="201: the server is new, 200: it was known. Takes effect at once, without a restart. "
        "An unknown model is created with the defaults and the fields given here. Fields left out stay as "
        "they are. The server's health is probed once: `warnings` tell the effect of a missing health "
        "endpoint, that the server does not answer, or that this name had another address.",
    )
    def post(self, request: Request) -> Response:
        body = read_body(bodies.Register, request.data)
        found, warnings = call_service(
            lambda: register_and_check(body.given(), by=actor(request), ports=self.ports())
        )
        answer = _registered(found, body.endpoint) | {"warnings": [asdict(one) for one in warnings]}
        return Response(answer, status=201 if found.created else 200)


class Inspect(RegistryView):
    max_body_bytes = 1_000_000
    needs = {"POST": "gpus.add_server"}

    @described(
        "inspect_server",
        "Look at a model server, and propose how to register it",
        answers={200: answers.Inspected},
        refusals=(403,),
        body=bodies.Inspect,
        tag="admin",
        description="Reads the server's health, its OpenAPI document and the pages of Cog, OpenAI and Ollama "
        f"servers, within {SITE_SECONDS:.0f} s; nothing is stored. 422 `server_unreachable`: the server does "
        "not answer.",
    )
    def post(self, request: Request) -> Response:
        body = read_body(bodies.Inspect, request.data)
        found = call_service(
            lambda: look_at(
                body.url, headers=body.headers, ca_pem=body.ca_pem, transport=self.ports().transport
            )
        )
        said: answers.Inspected = {
            "url": found.url,
            "proposals": [
                {
                    "register": registration(one),
                    "certainty": CERTAINTIES[one.certainty],
                    "reasons": list(one.reasons),
                    "test_payload": one.test_payload,
                }
                for one in found.proposals
            ],
            "problems": list(found.problems),
        }
        return Response(said)


class ModelConfigs(RegistryView):
    needs = {"GET": "gpus.view_modelconfig"}

    @described(
        "list_model_configs", "All models", answers={200: answers.ModelConfigs}, refusals=(403,), tag="admin"
    )
    def get(self, request: Request) -> Response:
        rows = ModelConfig.objects.select_related("pool")
        return Response({"results": [config_json(row, row.pool) for row in rows]})


class ModelConfigDetail(RegistryView):
    needs = {
        "GET": "gpus.view_modelconfig",
        "PUT": "gpus.change_modelconfig",
        "PATCH": "gpus.change_modelconfig",
        "DELETE": "gpus.change_modelconfig",
    }

    @described(
        "get_model_config",
        "A model's configuration",
        answers={200: answers.ModelConfig},
        refusals=(403, 404),
        parameters=(MODEL,),
        tag="admin",
    )
    def get(self, request: Request, model: str) -> Response:
        row = ModelConfig.objects.select_related("pool").filter(name=model_name(model)).first()
        if row is None:
            raise problem_of_refusal(unknown_model(model))
        return Response(config_json(row, row.pool))

    @described(
        "put_model_config",
        "Replace a model's configuration",
        answers={200: answers.ModelConfig, 201: answers.ModelConfig},
        refusals=(403, 404, 409),
        body=bodies.ModelConfigBody,
        parameters=(MODEL,),
        tag="admin",
        description="Fields left out get their defaults. An unknown model is created (201), in its own pool.",
    )
    def put(self, request: Request, model: str) -> Response:
        return self._write(request, model, replace=True)

    @described(
        "patch_model_config",
        "Change some fields of a model's configuration",
        answers={200: answers.ModelConfig},
        refusals=(403, 404, 409),
        body=bodies.ModelConfigBody,
        parameters=(MODEL,),
        tag="admin",
    )
    def patch(self, request: Request, model: str) -> Response:
        return self._write(request, model, replace=False)

    @described(
        "delete_model_config",
        "Reset a model's configuration to the defaults",
        answers={204: None},
        refusals=(403, 404),
        parameters=(MODEL,),
        tag="admin",
    )
    def delete(self, request: Request, model: str) -> Response:
        call_service(lambda: reset_model(model_name(model), by=actor(request), leases=self.ports().leases))
        return Response(status=204)

    def _write(self, request: Request, model: str, *, replace: bool) -> Response:
        body = read_body(bodies.ModelConfigBody, request.data).given()
        if body.get("model", model) != model:
            raise validation_problem(
                [FieldError("/model", "mismatch", "The model's name differs from the one in the path.")]
            )
        values = {name: body[name] for name in FIELDS if name in body}
        name = model_name(model)
        found = call_service(
            lambda: configure_model(
                name,
                values,
                by=actor(request),
                leases=self.ports().leases,
                replace=replace,
                pool=body.get("pool"),
                fleet=body.get("fleet"),
            )
        )
        return Response(config_json(found.config, found.pool), status=201 if found.created else 200)


def _registered(found: Registered, endpoint: str) -> dict[str, Any]:
    return {
        "server": found.server.name,
        "model": found.config.name,
        "pool": found.pool.name,
        "fleet": found.pool.fleet,
        "endpoint": endpoint,
        "slots": found.server.slots,
        "desired": found.server.desired,
        "host": found.server.host,
        "machine": found.server.machine,
        "live": found.mirrored,
    }


def config_json(row: ModelConfig, pool: Pool) -> dict[str, Any]:
    """A model's configuration as an answer."""
    return {
        "model": row.name,
        "pool": pool.name,
        "fleet": pool.fleet,
        **read_fields(row, pool),
    }


_FILTERS = ("actor", "target", "action")
_MAX_LENGTH = 200


class AuditPages(CursorPages):
    ordering = "-id"
    position = re.compile(r"[0-9]{1,18}\Z")


class Audit(RegistryView):
    needs = {"GET": "gpus.view_auditentry"}

    @described(
        "list_audit_entries",
        "Audit log, the newest entry first",
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
        "Versions of a model's configuration, the newest first",
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
        "Revert a model's configuration to one of its versions",
        answers={200: answers.ModelConfig},
        refusals=(403, 404),
        body=bodies.RevertBody,
        parameters=(MODEL,),
        tag="admin",
        description="The revert is a new version; the history is kept.",
    )
    def post(self, request: Request, model: str) -> Response:
        number, name = read_body(bodies.RevertBody, request.data).number, model_name(model)
        by, leases = actor(request), self.ports().leases
        found = call_service(lambda: revert_model(name, number, by=by, leases=leases))
        return Response(config_json(found.config, found.pool))
