"""OpenAPI descriptions of routes: types of bodies and answers in, drf-spectacular's decorator out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, NotRequired

from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from pydantic import TypeAdapter, WithJsonSchema
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from typing_extensions import TypedDict

from foundation.http_api.json_body import Choice, about
from foundation.http_api.problems import MEDIA_TYPE

REFUSALS = {
    400: "Malformed JSON or an invalid parameter.",
    401: "No key, or an invalid key.",
    403: "The key lacks the permission.",
    404: "Not found, or owned by another tenant.",
    406: "None of the media types in `Accept` is available: JSON is, and what the route's answers name.",
    408: "The body did not arrive in time.",
    409: "Conflicts with the current state.",
    410: "It was removed.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "The body is valid JSON with invalid fields.",
    429: "A limit is reached: see `code` and Retry-After.",
    503: "The database is not available; try again.",
}
_ALWAYS = (401, 406, 503)
OPTIONAL_BODY = "x-optional-body"
"""Marks operations with an optional body, for the schema's postprocessing."""


Instant = Annotated[datetime | str, WithJsonSchema({"type": "string", "format": "date-time"})]
"""A time in an answer."""

ProblemError = TypedDict(
    "ProblemError",
    {
        "pointer": str,
        "in": Annotated[str, Choice("body", "query", "path", "header")],
        "code": str,
        "detail": str,
    },
)


class Problem(TypedDict):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    code: Annotated[str, about("Stable: see docs/reference/api_errors.md.")]
    detail: str
    retryable: bool
    retry_after_seconds: NotRequired[Annotated[int, about("When to try again; as the Retry-After header.")]]
    errors: NotRequired[list[ProblemError]]


class _Published(GenerateJsonSchema):
    """JSON Schema without titles and without defaults of null; nullable is expressed as a further type."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        return _without_title(super().model_schema(schema))

    def typed_dict_schema(self, schema: Any) -> JsonSchemaValue:
        return _without_title(super().typed_dict_schema(schema))

    def dict_schema(self, schema: Any) -> JsonSchemaValue:
        found = super().dict_schema(schema)
        return {name: value for name, value in found.items() if value is not True}

    def default_schema(self, schema: Any) -> JsonSchemaValue:
        found = super().default_schema(schema)
        return {name: value for name, value in found.items() if (name, value) != ("default", None)}

    def nullable_schema(self, schema: Any) -> JsonSchemaValue:
        found = self.generate_inner(schema["schema"])
        if "enum" in found:
            return {**found, "enum": [*found["enum"], None]}
        if "type" in found:
            types = found["type"] if isinstance(found["type"], list) else [found["type"]]
            return {**found, "type": [*types, "null"]}
        return {"anyOf": [found, {"type": "null"}]}


def _without_title(schema: JsonSchemaValue) -> JsonSchemaValue:
    return {name: value for name, value in schema.items() if name != "title"}


_REF_TEMPLATE = "#/components/schemas/{model}"
# of the process: the types that its routes are described with, by name
_components: dict[str, Any] = {"Problem": Problem}


def json_schema(type_: Any) -> JsonSchemaValue:
    """Return the published schema of one type."""
    return TypeAdapter(type_).json_schema(ref_template=_REF_TEMPLATE, schema_generator=_Published)


def components() -> dict[str, JsonSchemaValue]:
    """Return the named schemas of all described routes."""
    types = [(name, "validation", TypeAdapter(type_)) for name, type_ in sorted(_components.items())]
    _, found = TypeAdapter.json_schemas(types, ref_template=_REF_TEMPLATE, schema_generator=_Published)  # type: ignore[arg-type]
    return dict(found["$defs"])


def reference(type_: Any) -> dict[str, str]:
    """Return a reference to the type's component, which the schema's postprocessing adds."""
    known = _components.setdefault(type_.__name__, type_)
    assert known is type_, f"two components are named {type_.__name__}"
    return {"$ref": _REF_TEMPLATE.format(model=type_.__name__)}


def described(
    operation: str,
    summary: str,
    *,
    answers: Mapping[int, Any],
    refusals: Sequence[int] = (),
    body: Any = None,
    body_required: bool = True,
    parameters: Sequence[OpenApiParameter] = (),
    description: str = "",
    tag: str = "queue",
    public: bool = False,
) -> Callable[[Any], Any]:
    """Return a decorator that describes an operation.

    answers: the type of the body by status; None: no body. refusals: further error statuses. body: the
    request's `Body`."""
    responses: dict[Any, Any] = {}
    for status, type_ in answers.items():
        responses[(status, "application/json") if type_ else status] = OpenApiResponse(
            response=reference(type_) if type_ else None, description=summary
        )
    refused = {*refusals, *(() if public else _ALWAYS), *((400, 408, 413, 415, 422) if body else ())}
    for status in sorted(refused):
        responses[(status, MEDIA_TYPE)] = OpenApiResponse(reference(Problem), REFUSALS[status])
    describe = extend_schema(
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

    def decorate(method: Any) -> Any:
        found = describe(method)
        found.answers = answers  # tests compare them with real answers
        return found

    return decorate
