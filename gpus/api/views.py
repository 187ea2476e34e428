"""The registry over HTTP: servers and models, live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol, cast

from drf_spectacular.utils import OpenApiParameter
from jsonschema import Draft202012Validator
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpus.leasing.contract import Leases, Wakes
from gpus.models import ModelConfig, Pool
from gpus.services.model_fields import FIELDS, MODEL_FIELDS, POOL_FIELDS, RegistryRefused
from gpus.services.registry import Registered, configure_model, register_server, reset_model, unknown_model

from . import schemas
from .json_body import check, compiled
from .openapi import described
from .permissions import IsOperator
from .problems import FieldError, Problem, validation_problem

_MODEL = OpenApiParameter("model", str, OpenApiParameter.PATH, description="The model's name.")
_OWN = ("model", "server", "endpoint", "slots", "pool", "fleet", "host", "headers", "ca_pem")


class RegistryPorts(Protocol):
    """What these views need of the world."""

    @property
    def leases(self) -> Callable[[str], Leases]: ...
    @property
    def send_wakes(self) -> Callable[[Sequence[Wakes]], int]: ...


class RegistryView(APIView):
    """ports: given by the composition root, in `as_view(ports=…)`."""

    permission_classes = (IsOperator,)
    ports: Callable[[], RegistryPorts] = cast("Callable[[], RegistryPorts]", None)


class Register(RegistryView):
    max_body_bytes = 1_000_000

    @described(
        "register_server",
        "Put a model on a GPU server",
        answers={201: "Registered", 200: "Registered"},
        refusals=(403, 409),
        body="Register",
        tag="admin",
        description="201: the server is new, 200: it was known. Live at once, without a restart. "
        "An unknown model is made with the defaults and the fields given here. "
        "Fields left out stay as they are.",
    )
    def post(self, request: Request) -> Response:
        body = _read(request.data, _register_validator())
        ports = self.ports()
        found = _refusing(
            lambda: register_server(
                **{name: body[name] for name in _OWN if name in body},
                model_fields={name: body[name] for name in FIELDS if name in body},
                leases=ports.leases,
            )
        )
        ports.send_wakes(found.wakes)
        return Response(_registered(found, body["endpoint"]), status=201 if found.created else 200)


class ModelConfigs(RegistryView):
    @described(
        "list_model_configs", "All models", answers={200: "ModelConfigs"}, refusals=(403,), tag="admin"
    )
    def get(self, request: Request) -> Response:
        rows = ModelConfig.objects.select_related("pool")
        return Response({"results": [_config(row, row.pool) for row in rows]})


class ModelConfigDetail(RegistryView):
    @described(
        "get_model_config",
        "How a model is run",
        answers={200: "ModelConfig"},
        refusals=(403, 404),
        parameters=(_MODEL,),
        tag="admin",
    )
    def get(self, request: Request, model: str) -> Response:
        row = ModelConfig.objects.select_related("pool").filter(name=_name(model)).first()
        if row is None:
            raise _problem(unknown_model(model))
        return Response(_config(row, row.pool))

    @described(
        "put_model_config",
        "Replace a model's configuration",
        answers={200: "ModelConfig", 201: "ModelConfig"},
        refusals=(403, 404, 409),
        body="ModelConfigBody",
        parameters=(_MODEL,),
        tag="admin",
        description="Fields left out get their defaults. An unknown model is made (201), in its own pool.",
    )
    def put(self, request: Request, model: str) -> Response:
        return self._write(request, model, replace=True)

    @described(
        "patch_model_config",
        "Change some fields of a model's configuration",
        answers={200: "ModelConfig"},
        refusals=(403, 404, 409),
        body="ModelConfigBody",
        parameters=(_MODEL,),
        tag="admin",
    )
    def patch(self, request: Request, model: str) -> Response:
        return self._write(request, model, replace=False)

    @described(
        "delete_model_config",
        "Revert a model's configuration to the defaults",
        answers={204: None},
        refusals=(403, 404),
        parameters=(_MODEL,),
        tag="admin",
    )
    def delete(self, request: Request, model: str) -> Response:
        _refusing(lambda: reset_model(_name(model), leases=self.ports().leases))
        return Response(status=204)

    def _write(self, request: Request, model: str, *, replace: bool) -> Response:
        body = _read(request.data, _config_validator())
        if body.get("model", model) != model:
            raise validation_problem(
                [FieldError("/model", "mismatch", "The model's name is the one in the path.")]
            )
        values = {name: body[name] for name in FIELDS if name in body}
        name = _name(model)
        found = _refusing(
            lambda: configure_model(
                name,
                values,
                leases=self.ports().leases,
                replace=replace,
                pool=body.get("pool"),
                fleet=body.get("fleet"),
            )
        )
        return Response(_config(found.config, found.pool), status=201 if found.created else 200)


def _read(data: Any, validator: Draft202012Validator) -> dict[str, Any]:
    errors = check(data, validator)
    if errors:
        raise validation_problem(errors)
    return cast("dict[str, Any]", data)


def _name(model: str) -> str:
    if check(model, _name_validator()):
        raise _problem(unknown_model(model[:64]))
    return model


def _refusing(service: Callable[[], Any]) -> Any:
    try:
        return service()
    except RegistryRefused as refused:
        raise _problem(refused) from None


def _problem(refused: RegistryRefused) -> Problem:
    place = "path" if refused.status == 404 else "body"
    error = FieldError(refused.pointer, refused.code, str(refused), place=place)
    return Problem(refused.status, refused.code, str(refused), errors=[error])


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
        "live": found.mirrored,
    }


def _config(row: ModelConfig, pool: Pool) -> dict[str, Any]:
    return {
        "model": row.name,
        "pool": pool.name,
        "fleet": pool.fleet,
        **{name: getattr(row, name) for name in MODEL_FIELDS},
        **{name: getattr(pool, column) for name, column in POOL_FIELDS.items()},
    }


@lru_cache(maxsize=1)
def _register_validator() -> Draft202012Validator:
    return compiled(schemas.register_body())


@lru_cache(maxsize=1)
def _config_validator() -> Draft202012Validator:
    return compiled(schemas.model_config_body())


@lru_cache(maxsize=1)
def _name_validator() -> Draft202012Validator:
    return compiled(schemas.NAME)
