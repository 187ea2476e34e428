"""Describing a route in OpenAPI: plain schemas in, drf-spectacular's decorator out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema

from foundation.http_api.problems import MEDIA_TYPE

REFUSALS = {
    400: "Malformed JSON or a bad parameter.",
    401: "No key, or one that is not valid.",
    403: "The key may not do this.",
    404: "There is no such thing, or it is not yours.",
    406: "Only JSON is offered.",
    408: "The body did not arrive in time.",
    409: "It does not fit the present state.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "The body is well-formed and wrong.",
    429: "Too much, for now: see `code` and Retry-After.",
    503: "The database is away; try again.",
}
_ALWAYS = (401, 406, 503)
OPTIONAL_BODY = "x-optional-body"
"""Marks operations for the schema's postprocessing, which says it in the words of OpenAPI."""


def reference(name: str) -> dict[str, str]:
    """To a component that the schema's postprocessing adds."""
    return {"$ref": f"#/components/schemas/{name}"}


def described(
    operation: str,
    summary: str,
    *,
    answers: Mapping[int, Any],
    refusals: Sequence[int] = (),
    body: str | None = None,
    body_required: bool = True,
    parameters: Sequence[OpenApiParameter] = (),
    description: str = "",
    tag: str = "queue",
    public: bool = False,
) -> Callable[[Any], Any]:
    """answers: component name by status; None: no body. body: component name of the request."""
    responses: dict[Any, Any] = {}
    for status, name in answers.items():
        responses[(status, "application/json") if name else status] = OpenApiResponse(
            response=reference(name) if name else None, description=summary
        )
    refused = {*refusals, *(() if public else _ALWAYS), *((400, 408, 413, 415, 422) if body else ())}
    for status in sorted(refused):
        responses[(status, MEDIA_TYPE)] = OpenApiResponse(reference("Problem"), REFUSALS[status])
    return extend_schema(
        operation_id=operation,
        summary=summary,
        description=description or summary,
        tags=[tag],
        parameters=list(parameters),
        request={"application/json": reference(body)} if body else None,
        responses=responses,
        auth=[] if public else None,
        extensions={OPTIONAL_BODY: True} if body and not body_required else None,
    )
