"""Request bodies about jobs, tenants and keys; the body of a submit is in `jobs.submission.request`."""

from __future__ import annotations

from typing import Annotated, Any

from django.conf import settings
from pydantic import ConfigDict, Field, create_model, model_validator

from foundation.http_api.json_body import (
    OMITTED,
    Body,
    Choice,
    Items,
    Members,
    Name,
    Time,
    Whole,
    about,
    choices,
    not_empty,
)
from foundation.http_api.openapi import reference
from foundation.http_api.problems import MAX_ERRORS
from foundation.names import MEDIA_TYPE_CHARS, MEDIA_TYPE_PATTERN
from gpus.protocol import BANDS
from jobs.domain.access import Scope
from jobs.domain.states import JobState
from jobs.models import ApiKey
from jobs.models.tenant import rule_bounds, rule_text
from jobs.operations.queue_position import FIRST_PRIORITY, LAST_PRIORITY
from jobs.operations.tenants import MAX_OVERLAP_SECONDS, OVERLAP_SECONDS
from jobs.submission.request import BatchItem, Submit

Text = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\x00]+$")]
"""The same rules as `text_parameter`."""
FINGERPRINT = "^[0-9a-f]{16}$"
_DryRun = Annotated[bool, about("Only count the matching jobs.")]


_ITEM = reference(BatchItem)


class _PublishedItem:
    """Gives the items their schema in the OpenAPI document. They are validated one by one, so that an invalid
    item does not stop the others."""

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return dict(_ITEM)


class Batch(Body):
    """Jobs to submit in one transaction."""

    jobs: Annotated[
        list[Annotated[Any, _PublishedItem()]],
        Items(least=1, most=lambda: settings.DISPATCHER.max_batch_jobs),
    ]


class NewRunArtifact(Body):
    """An output of a run. Size and hash are checked by the store: another body is refused."""

    bytes: Annotated[int, Whole(0, 2**53 - 1), about("Exact length.")]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$"), about("SHA-256 of the bytes, hexadecimal.")]
    content_type: Annotated[
        Annotated[str, Field(max_length=MEDIA_TYPE_CHARS, pattern=MEDIA_TYPE_PATTERN)] | None,
        about("Media type; where it is missing, it is recognised from the first bytes."),
    ] = None
    name: Annotated[
        Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00]+$")] | None,
        about("File name for downloads. It is never part of a path."),
    ] = None


class NewArtifact(NewRunArtifact):
    """An artifact to be uploaded. Size and hash are checked by the store: another body is refused."""

    parts: Annotated[
        bool, about("Upload in parts of 64 MiB, which can be resumed; end it by `/complete`.")
    ] = False


def _rerun_fields() -> dict[str, Any]:
    """The fields of a submit but its model; each may be missing."""
    return {
        name: (field.rebuild_annotation(), OMITTED)
        for name, field in Submit.model_fields.items()
        if name != "model"
    }


RerunBody: type[Body] = create_model("RerunBody", __base__=Body, **_rerun_fields())
RerunBody.__doc__ = (
    "Changes of a job that is run again. A missing field is as before; null: without the earlier value."
)


class PriorityBody(Body):
    """The new priority of a waiting job."""

    priority: Annotated[int, Whole(FIRST_PRIORITY, LAST_PRIORITY), about("1 (first) to 9.")]


CLIENT_ERRORS = (
    "true: only failures that the client's input caused (`bad_input`). These are left out otherwise, "
    "unless `error_code` or `fingerprint` names them."
)


class _DeadLetterFilter(Body):
    model: Text = OMITTED
    tenant: Annotated[Text, about("Name of the tenant.")] = OMITTED
    error_code: Text = OMITTED
    fingerprint: Annotated[str, Field(pattern=FINGERPRINT), about("As `GET /admin/dlq/groups` shows it.")] = (
        OMITTED
    )
    client_errors: Annotated[bool, about(CLIENT_ERRORS)] = OMITTED


class RetryBody(_DeadLetterFilter):
    """Filter of the dead letters to retry; the same fields are allowed as query parameters."""

    dry_run: _DryRun = False


class BulkFilter(_DeadLetterFilter):
    """Filter of jobs. An empty filter is refused, because it would match all jobs."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    state: Annotated[str, choices(JobState)] = OMITTED
    tag: Text = OMITTED
    created_after: Time = OMITTED
    created_before: Time = OMITTED
    server: Annotated[Text, about("Server on which an attempt of the job ran.")] = OMITTED

    _not_empty = model_validator(mode="after")(not_empty)


class BulkBody(Body):
    """Filter and mode of a bulk operation."""

    filter: Annotated[BulkFilter, Members(len(BulkFilter.model_fields) + MAX_ERRORS)]
    dry_run: _DryRun = False


KeyKind = Annotated[str, choices(ApiKey.Kind.values)]
ScopeName = Annotated[str, choices(Scope)]
Scopes = Annotated[
    Annotated[list[ScopeName], Items(least=1, most=len(Scope))] | None,
    about("null: all scopes that the kind allows. `operate` is for operator keys only."),
]
KeyModels = Annotated[
    Annotated[list[Name], Items(most=1000)] | None,
    about("Models that the key may submit to, within those of its tenant. null: all of these."),
]


class KeyBody(Body):
    """An API key to create."""

    name: Annotated[str, Field(max_length=50), about("Purpose of the key.")] = ""
    kind: KeyKind = ApiKey.Kind.TENANT.value
    scopes: Scopes = None
    allowed_models: KeyModels = None
    expires_at: Time | None = None


class OverlapBody(Body):
    """Options for replacing a key or secret."""

    overlap_seconds: Annotated[
        float, Field(ge=0, le=MAX_OVERLAP_SECONDS), about("How long the old one keeps working.")
    ] = OVERLAP_SECONDS


def _whole(rule: str) -> Whole:
    least, most = rule_bounds(rule)
    return Whole(int(least), int(most))


def _number(rule: str) -> Any:
    least, most = rule_bounds(rule)
    return Field(ge=least, le=most)


def _of(rule: str) -> Any:
    return about(rule_text(rule, without="null"))


Weight = Annotated[float, _number("weight"), _of("weight")]
Band = Annotated[str, Choice(*BANDS), _of("highest_band")]
MaxRunning = Annotated[Annotated[int, _whole("max_running")] | None, _of("max_running")]
MaxQueued = Annotated[Annotated[int, _whole("max_queued")] | None, _of("max_queued")]
MaxQueuedSeconds = Annotated[
    Annotated[float, _number("max_queued_seconds")] | None, _of("max_queued_seconds")
]
SubmitsPerSecond = Annotated[
    Annotated[float, _number("submits_per_second")] | None, _of("submits_per_second")
]
SubmitBurst = Annotated[Annotated[int, _whole("submit_burst")] | None, _of("submit_burst")]
DailyGpuSeconds = Annotated[Annotated[float, _number("daily_gpu_seconds")] | None, _of("daily_gpu_seconds")]
TenantModels = Annotated[
    Annotated[list[Name], Items(most=1000, unique=True)] | None,
    _of("allowed_models"),
]


class TenantChange(Body):
    """New values for a tenant's rules and limits; omitted fields keep their values."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    weight: Weight = OMITTED
    highest_band: Band = OMITTED
    max_running: MaxRunning = None
    max_queued: MaxQueued = None
    max_queued_seconds: MaxQueuedSeconds = None
    submits_per_second: SubmitsPerSecond = None
    submit_burst: SubmitBurst = None
    daily_gpu_seconds: DailyGpuSeconds = None
    allowed_models: TenantModels = None

    _not_empty = model_validator(mode="after")(not_empty)


class Pushed(Body):
    """Result pushed by a GPU server; the same object as its answer to a poll."""

    model_config = ConfigDict(extra="allow")
