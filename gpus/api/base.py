"""What the views of the registry and the controls share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeVar, cast

from drf_spectacular.utils import OpenApiParameter
from jsonschema import Draft202012Validator
from rest_framework.request import Request
from rest_framework.views import APIView

from foundation.http_api.json_body import check, compiled
from foundation.http_api.problems import FieldError, Problem, validation_problem
from gpus.api.permissions import IsOperator
from gpus.api.schemas import NAME
from gpus.leasing.contract import Leases
from gpus.leasing.values import Wakes
from gpus.protocol import Clock
from gpus.registry.model_fields import RegistryRefused
from gpus.registry.registry import unknown_model
from gpus.runners.base import Transport

Answer = TypeVar("Answer")

MODEL = OpenApiParameter("model", str, OpenApiParameter.PATH, description="The model's name.")
MACHINE = OpenApiParameter("machine", str, OpenApiParameter.PATH, description="The machine's name.")
SERVER = OpenApiParameter("server", str, OpenApiParameter.PATH, description="The server's name.")


class RegistryPorts(Protocol):
    """What these views need of the world."""

    @property
    def leases(self) -> Callable[[str], Leases]: ...
    @property
    def send_wakes(self) -> Callable[[Sequence[Wakes]], int]: ...
    @property
    def announce(self) -> Callable[[Sequence[str]], None]: ...
    @property
    def transport(self) -> Transport: ...
    @property
    def clock(self) -> Clock: ...


class RegistryView(APIView):
    """ports: given by the composition root, in `as_view(ports=…)`. needs: the Django permission that a staff
    session must have, by method."""

    permission_classes = (IsOperator,)
    needs: Mapping[str, str] = {}
    ports: Callable[[], RegistryPorts] = cast("Callable[[], RegistryPorts]", None)


def actor(request: Request) -> str:
    """Who asks, as the audit entries say it."""
    return str(cast("Any", request.user).name)


def read_body(data: Any, validator: Draft202012Validator) -> dict[str, Any]:
    """Raises Problem 422."""
    errors = check(data, validator)
    if errors:
        raise validation_problem(errors)
    return cast("dict[str, Any]", data)


def read_optional_body(data: Any, validator: Draft202012Validator) -> dict[str, Any]:
    """Of a request that may have none. Raises Problem 422."""
    return read_body({} if data is None else data, validator)


def is_name(text: str) -> bool:
    """Whether it can be the name of anything: what can't is not even looked for."""
    return not check(text, _name_validator())


def model_name(text: str) -> str:
    """Raises Problem 404."""
    if not is_name(text):
        raise problem_of_refusal(unknown_model(text[:64]))
    return text


def server_name(text: str) -> str:
    """Raises Problem 404."""
    if not is_name(text):
        raise unknown_server()
    return text


def unknown_server() -> Problem:
    error = FieldError("/server", "unknown_server", "There is no such server.", place="path")
    return Problem(404, "unknown_server", "There is no such server.", errors=[error])


def refusing(service: Callable[[], Answer], *, place: str | None = None) -> Answer:
    """What the service answers; its refusal as a Problem. place: as in `problem_of_refusal`."""
    try:
        return service()
    except RegistryRefused as refused:
        raise problem_of_refusal(refused, place) from None


def problem_of_refusal(refused: RegistryRefused, place: str | None = None) -> Problem:
    """place: of what was refused; without it the path if it is unknown, else the body."""
    place = place or ("path" if refused.status == 404 else "body")
    error = FieldError(refused.pointer, refused.code, str(refused), place=place)
    return Problem(refused.status, refused.code, str(refused), errors=[error])


@lru_cache(maxsize=1)
def _name_validator() -> Draft202012Validator:
    return compiled(NAME)
