"""The OpenAPI document as JSON, and a Swagger page without external files."""

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

TAGS = {
    "queue": "Submit jobs and follow them.",
    "artifacts": "Files that jobs read and write.",
    "workflows": "Store definitions of workflows; start and follow runs.",
    "schedules": "Start jobs and runs by the clock.",
    "account": "Limits and usage of the key's tenant.",
    "gpu servers": "Results that GPU servers push.",
    "admin": "The fleet, tenants and keys: for operators.",
}
"""Sections of the document, in order."""
SUBMIT = "/api/v1/queue/submit"
EXAMPLE = {"model": "flux", "payload": {"prompt": "a sunset", "seconds": 2}}
"""Body of a submit, as in the README."""
_generator_lock = Lock()
"""drf-spectacular keeps its state in the views' schemas, so it is not thread-safe."""


def _document() -> tuple[bytes, str]:
    """Return the document and its ETag."""
    with _generator_lock:
        return _generate()


@cache
def _generate() -> tuple[bytes, str]:
    """Generate the document; takes 70 ms, so the result is cached for the life of the process."""
    schema = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    body = OpenApiJsonRenderer().render(schema, renderer_context={})
    return body, f'"{hashlib.sha256(body).hexdigest()[:32]}"'


@etag(lambda request: _document()[1])
def _answer(request: HttpRequest) -> HttpResponse:
    return HttpResponse(_document()[0], content_type=OpenApiJsonRenderer.media_type)


class Document(SpectacularAPIView):
    """The OpenAPI document; public, because it contains no data."""

    authentication_classes: list[Any] = []
    permission_classes: list[Any] = []
    renderer_classes = [OpenApiJsonRenderer]

    @extend_schema(exclude=True)
    def get(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return _answer(request._request)


class Swagger(SpectacularSwaggerSplitView):
    """Swagger page. Its script is a separate request, because the Content-Security-Policy allows no inline
    scripts."""

    template_name = "jobs/swagger.html"
    authentication_classes: list[Any] = []
    permission_classes: list[Any] = []

    @extend_schema(exclude=True)
    def get(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return super().get(request, *args, **kwargs)  # type: ignore[no-untyped-call]


def _place(entry: tuple[str, Any]) -> tuple[int, bool, str]:
    """Sort paths by section; in the first one the submit leads."""
    path, operations = entry
    tag = next(iter(operations.values()))["tags"][0]
    return [*TAGS].index(tag), not path.startswith(SUBMIT), path


def add_components(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Add our component schemas, order the sections, and mark request bodies as required; a postprocessing
    hook of drf-spectacular."""
    result["tags"] = [{"name": name, "description": about} for name, about in TAGS.items()]
    result["paths"] = dict(sorted(result["paths"].items(), key=_place))
    submit = result["paths"][SUBMIT]["post"]["requestBody"]["content"]["application/json"]
    submit["example"] = EXAMPLE
    found = result.setdefault("components", {})
    found["schemas"] = {**found.get("schemas", {}), **components()}
    for operations in result["paths"].values():
        for operation in operations.values():
            body = operation.get("requestBody")
            if body is not None:
                body["required"] = not operation.pop(OPTIONAL_BODY, False)
    return result
