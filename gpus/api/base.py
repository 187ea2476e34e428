"""Base class and helpers of the views of the registry and the operator controls."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.views import APIView

from foundation.http_api.json_body import BodyType, read_body
from foundation.http_api.problems import FieldError, Problem
from foundation.names import NAME_PATTERN
from gpus.api.permissions import IsOperator
from gpus.health.registration import RegistryPorts
from gpus.registry.model_fields import RegistryRefused
from gpus.registry.registry import unknown_model

Answer = TypeVar("Answer")

MODEL = OpenApiParameter("model", str, OpenApiParameter.PATH, description="The model's name.")
MACHINE = OpenApiParameter("machine", str, OpenApiParameter.PATH, description="The machine's name.")
SERVER = OpenApiParameter("server", str, OpenApiParameter.PATH, description="The server's name.")


class RegistryView(APIView):
    """A view for operators. ports: dependencies, passed to `as_view`. needs: required Django permission by
    method."""

    permission_classes = (IsOperator,)
    needs: Mapping[str, str] = {}
    ports: Callable[[], RegistryPorts] = cast("Callable[[], RegistryPorts]", None)


def actor(request: Request) -> str:
    """The audit actor of a request."""
    return str(cast("Any", request.user).name)


def read_optional_body(body: type[BodyType], data: Any) -> BodyType:
    """Parse a body that may be missing. Raises Problem 422."""
    return read_body(body, {} if data is None else data)


def is_name(text: str) -> bool:
    """Whether a text can be a name; others need no query."""
    return re.fullmatch(NAME_PATTERN, text) is not None


def model_name(text: str) -> str:
    """Check a model's name in the path. Raises Problem 404."""
    if not is_name(text):
        raise problem_of_refusal(unknown_model(text[:64]))
    return text


def server_name(text: str) -> str:
    """Check a server's name in the path. Raises Problem 404."""
    if not is_name(text):
        raise unknown_server()
    return text


def unknown_server() -> Problem:
    """The 404 for an unknown server."""
    error = FieldError("/server", "unknown_server", "There is no such server.", place="path")
    return Problem(404, "unknown_server", "There is no such server.", errors=[error])


def call_service(service: Callable[[], Answer], *, place: str | None = None) -> Answer:
    """Call a service function, and raise its RegistryRefused as a Problem. place: as in
    `problem_of_refusal`."""
    try:
        return service()
    except RegistryRefused as refused:
        raise problem_of_refusal(refused, place) from None


def problem_of_refusal(refused: RegistryRefused, place: str | None = None) -> Problem:
    """The Problem for a RegistryRefused. place: of the refused value; None: the path for a 404, else the
    body."""
    place = place or ("path" if refused.status == 404 else "body")
    error = FieldError(refused.pointer, refused.code, str(refused), place=place)
    return Problem(refused.status, refused.code, str(refused), errors=[error])
