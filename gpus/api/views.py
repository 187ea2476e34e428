"""The registry over HTTP: servers and models, live."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.json_body import read_body
from foundation.http_api.openapi import described
from foundation.http_api.problems import FieldError, validation_problem
from gpus.api import answers, bodies
from gpus.api.base import MODEL, RegistryView, actor, model_name, problem_of_refusal, refusing
from gpus.health.health import look_at_registered
from gpus.models import ModelConfig, Pool
from gpus.protocol import REGISTRY_CHANGED
from gpus.registry.model_fields import FIELDS, read_fields
from gpus.registry.registry import Registered, configure_model, register_server, reset_model, unknown_model

_OWN = ("model", "server", "endpoint", "slots", "pool", "fleet", "host", "machine", "headers", "ca_pem")


class Register(RegistryView):
    max_body_bytes = 1_000_000
    needs = {"POST": "gpus.add_server"}

    @described(
        "register_server",
        "Put a model on a GPU server",
        answers={201: answers.Registered, 200: answers.Registered},
        refusals=(403, 409),
        body=bodies.Register,
        tag="admin",
        description="201: the server is new, 200: it was known. Live at once, without a restart. "
        "An unknown model is made with the defaults and the fields given here. "
        "Fields left out stay as they are. The server is asked once for its health: `warnings` say what is "
        "lost where it has no health endpoint, or that it does not answer.",
    )
    def post(self, request: Request) -> Response:
        body = read_body(bodies.Register, request.data)
        given = body.given()
        ports = self.ports()
        found = refusing(
            lambda: register_server(
                **{name: given[name] for name in _OWN if name in given},
                model_fields={name: given[name] for name in FIELDS if name in given},
                by=actor(request),
                leases=ports.leases,
            )
        )
        ports.announce([REGISTRY_CHANGED])  # workers consume a new pool's queue before its first job comes
        ports.send_wakes(found.wakes)
        warnings = look_at_registered(found, transport=ports.transport, now=ports.clock.now)
        said = _registered(found, body.endpoint) | {"warnings": [asdict(one) for one in warnings]}
        return Response(said, status=201 if found.created else 200)


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
        "How a model is run",
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
        description="Fields left out get their defaults. An unknown model is made (201), in its own pool.",
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
        "Revert a model's configuration to the defaults",
        answers={204: None},
        refusals=(403, 404),
        parameters=(MODEL,),
        tag="admin",
    )
    def delete(self, request: Request, model: str) -> Response:
        refusing(lambda: reset_model(model_name(model), by=actor(request), leases=self.ports().leases))
        return Response(status=204)

    def _write(self, request: Request, model: str, *, replace: bool) -> Response:
        body = read_body(bodies.ModelConfigBody, request.data).given()
        if body.get("model", model) != model:
            raise validation_problem(
                [FieldError("/model", "mismatch", "The model's name is the one in the path.")]
            )
        values = {name: body[name] for name in FIELDS if name in body}
        name = model_name(model)
        found = refusing(
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
    return {
        "model": row.name,
        "pool": pool.name,
        "fleet": pool.fleet,
        **read_fields(row, pool),
    }
