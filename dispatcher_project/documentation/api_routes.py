"""docs/reference/api_routes.md: every route of the HTTP API, from its OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer

_TAGS = {
    "queue": "Jobs: what a tenant's key may use",
    "artifacts": "Artifacts: files of a tenant",
    "workflows": "Workflows: definitions and runs of a tenant",
    "schedules": "Schedules: jobs and runs that start by the clock",
    "account": "Account: limits and usage of a tenant",
    "admin": "Administration: what an operator's key or a staff session may use",
    "gpu servers": "GPU servers",
}
_NOT_OWN = {"401", "403", "406", "408", "413", "415", "503"}
"""Statuses that any route may answer; api_errors.md explains them."""


@cache
def document() -> Mapping[str, Any]:
    """Return the OpenAPI document as JSON has it."""
    schema = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    found: Mapping[str, Any] = json.loads(OpenApiJsonRenderer().render(schema, renderer_context={}))
    return found


def api_routes_page() -> str:
    """Return the whole page, Markdown. Raises KeyError for a route whose tag has no section."""
    paths: Mapping[str, Mapping[str, Any]] = document()["paths"]
    routes = [
        (method.upper(), path, operation)
        for path, operations in paths.items()
        for method, operation in operations.items()
    ]
    if unknown := sorted({tag for *_, operation in routes for tag in operation["tags"]} - set(_TAGS)):
        raise KeyError(f"_TAGS has no title for {', '.join(unknown)}")
    lines = [
        "# API routes",
        "",
        "<!-- Made from the OpenAPI document by `python3 manage.py write_docs`; don't edit. -->",
        "",
        "The contract is the OpenAPI 3.1 document at `/api/v1/schema`; `/api/v1/docs` is a page to browse",
        "and try it. [The HTTP API](api.md) says what a schema cannot. Any route may also answer "
        + ", ".join(sorted(_NOT_OWN))
        + ":",
        "[API errors](api_errors.md).",
    ]
    for tag, title in _TAGS.items():
        lines += ["", f"## {title}"]
        for method, path, operation in routes:
            if operation["tags"] == [tag]:
                lines += ["", *_route(method, path, operation)]
    return "\n".join([*lines, ""])


def _route(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"### `{method} {path.removeprefix('/api/v1')}`"
    yield ""
    summary, description = operation["summary"], operation.get("description", "")
    yield f"{summary}." if description in ("", summary) else f"{summary}. {' '.join(description.split())}"
    rows = [*_parameters(operation), *_body(operation)]
    if rows:
        yield from ("", "| Parameter | In | Type | |", "| --- | --- | --- | --- |", *rows)
    own = sorted(set(operation["responses"]) - _NOT_OWN)
    yield ""
    yield f"Answers: {', '.join(own)}."


def _parameters(operation: Mapping[str, Any]) -> Iterator[str]:
    for one in operation.get("parameters", ()):
        name = f"`{one['name']}`" + (" (required)" if one.get("required") and one["in"] != "path" else "")
        yield f"| {name} | {one['in']} | {_type(one.get('schema', {}))} | {_text(one.get('description'))} |"


def _body(operation: Mapping[str, Any]) -> Iterator[str]:
    content = operation.get("requestBody", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    required = set(_resolved(schema).get("required", ()))
    for name, field in _resolved(schema).get("properties", {}).items():
        mark = " (required)" if name in required else ""
        yield f"| `{name}`{mark} | body | {_type(field)} | {_text(field.get('description'))} |"


def _resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in schema:
        return schema
    found: Any = document()
    for part in schema["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    return found  # type: ignore[no-any-return]


def _type(schema: Mapping[str, Any]) -> str:
    schema = _resolved(schema)
    if "enum" in schema:
        return ", ".join(f"`{choice}`" for choice in schema["enum"] if choice is not None)
    if "anyOf" in schema or "oneOf" in schema:
        kinds = dict.fromkeys(_type(one) for one in schema.get("anyOf", schema.get("oneOf", ())))
        return " or ".join(kind for kind in kinds if kind != "null")
    named = schema.get("type", "any")
    names = [name for name in ([named] if isinstance(named, str) else named) if name != "null"]
    return " or ".join(names)


def _text(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", r"\|")
