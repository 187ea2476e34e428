"""The OpenAPI document as JSON, and the page to browse it (all its parts come from this server)."""

from __future__ import annotations

import hashlib
from functools import cache
from threading import Lock
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import etag
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from foundation.http_api.openapi import OPTIONAL_BODY, components

_one_at_a_time = Lock()
"""drf-spectacular keeps what it works on in the views' schemas: two threads at once break each other."""


def _document() -> tuple[bytes, str]:
    """The bytes and their ETag."""
    with _one_at_a_time:
        return _made_once()


@cache
def _made_once() -> tuple[bytes, str]:
    """It takes 70 ms."""
    schema = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    body = OpenApiJsonRenderer().render(schema, renderer_context={})
    return body, f'"{hashlib.sha256(body).hexdigest()[:32]}"'


@etag(lambda request: _document()[1])
def _answer(request: HttpRequest) -> HttpResponse:
    return HttpResponse(_document()[0], content_type=OpenApiJsonRenderer.media_type)


class Document(SpectacularAPIView):
    """Public: it says nothing about anybody's jobs."""

    authentication_classes: list[Any] = []
    permission_classes: list[Any] = []
    renderer_classes = [OpenApiJsonRenderer]

    @extend_schema(exclude=True)
    def get(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return _answer(request._request)


class Swagger(SpectacularSwaggerSplitView):
    """Its script comes by a request of its own: a page of ours holds none, as the Content-Security-Policy
    demands."""

    template_name = "jobs/swagger.html"
    authentication_classes: list[Any] = []
    permission_classes: list[Any] = []

    @extend_schema(exclude=True)
    def get(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return super().get(request, *args, **kwargs)  # type: ignore[no-untyped-call]


def add_components(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """A postprocessing hook of drf-spectacular."""
    found = result.setdefault("components", {})
    found["schemas"] = {**found.get("schemas", {}), **components()}
    for operations in result["paths"].values():
        for operation in operations.values():
            body = operation.get("requestBody")
            if body is not None:
                body["required"] = not operation.pop(OPTIONAL_BODY, False)
    return result
