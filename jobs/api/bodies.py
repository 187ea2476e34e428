"""The bodies of requests about jobs, tenants and keys; that of a submit is in `jobs.submission.request`."""

from __future__ import annotations

from typing import Annotated, Any

from django.conf import settings
from pydantic import ConfigDict, Field, model_validator

from foundation.http_api.json_body import (
    LEFT_OUT,
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
from gpus.protocol import BANDS
from jobs.domain.access import Scope
from jobs.domain.states import JobState
from jobs.models import ApiKey
from jobs.models.tenant import MAX_WEIGHT, MIN_WEIGHT, MOST_QUEUED, MOST_QUEUED_SECONDS, MOST_RUNNING
from jobs.operations.jobs import FIRST_PRIORITY, LAST_PRIORITY
from jobs.operations.tenants import MAX_OVERLAP_SECONDS, OVERLAP_SECONDS
from jobs.submission.request import BatchItem

Text = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\x00]+$")]
"""As `text_parameter` takes it."""
FINGERPRINT = "^[0-9a-f]{16}$"
_DryRun = Annotated[bool, about("Only count.")]


_ITEM = reference(BatchItem)


class _PublishedItem:
    """Items are published as they are read, one by one: a wrong one does not stop the others."""

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return dict(_ITEM)


class Batch(Body):
    """Jobs to be made in one transaction."""

    jobs: Annotated[
        list[Annotated[Any, _PublishedItem()]],
        Items(least=1, most=lambda: settings.DISPATCHER.max_batch_jobs),
    ]


class PriorityBody(Body):
    """The new priority of a waiting job."""

    priority: Annotated[int, Whole(FIRST_PRIORITY, LAST_PRIORITY), about("1 first.")]


class _DeadLetterFilter(Body):
    model: Text = LEFT_OUT
    tenant: Annotated[Text, about("Its name.")] = LEFT_OUT
    error_code: Text = LEFT_OUT
    fingerprint: Annotated[str, Field(pattern=FINGERPRINT), about("As `GET /admin/dlq/groups` shows it.")] = (
        LEFT_OUT
    )


class RetryBody(_DeadLetterFilter):
    """Which dead letters: what `retry-all` takes as parameters too."""

    dry_run: _DryRun = False


class BulkFilter(_DeadLetterFilter):
    """Which jobs. An empty filter is refused: nobody means every job by leaving something out."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    state: Annotated[str, choices(JobState)] = LEFT_OUT
    tag: Text = LEFT_OUT
    created_after: Time = LEFT_OUT
    created_before: Time = LEFT_OUT
    server: Annotated[Text, about("One that an attempt of the job ran on.")] = LEFT_OUT

    _not_empty = model_validator(mode="after")(not_empty)


class BulkBody(Body):
    """What is done to all jobs that match."""

    filter: Annotated[BulkFilter, Members(len(BulkFilter.model_fields) + MAX_ERRORS)]
    dry_run: _DryRun = False


KeyKind = Annotated[str, choices(ApiKey.Kind.values)]
Scopes = Annotated[
    Annotated[list[Annotated[str, choices(Scope)]], Items(least=1, most=len(Scope))] | None,
    about("null: all that a key of its kind may. `operate` is an operator's."),
]
KeyModels = Annotated[
    Annotated[list[Name], Items(most=1000)] | None,
    about("Models it may submit to, of those its tenant may. null: all of them."),
]


class KeyBody(Body):
    """An API key to be made."""

    name: Annotated[str, Field(max_length=50), about("What it is for.")] = ""
    kind: KeyKind = ApiKey.Kind.TENANT.value
    scopes: Scopes = None
    allowed_models: KeyModels = None
    expires_at: Time | None = None


class OverlapBody(Body):
    """How a key or a secret is replaced."""

    overlap_seconds: Annotated[
        float, Field(ge=0, le=MAX_OVERLAP_SECONDS), about("How long the old one goes on.")
    ] = OVERLAP_SECONDS


Weight = Annotated[
    float, Field(ge=MIN_WEIGHT, le=MAX_WEIGHT), about("Share of GPU-seconds relative to other tenants.")
]
Band = Annotated[
    str,
    Choice(*BANDS),
    about("Jobs that ask for a higher one stand in this band, before the tenant's others."),
]
MaxRunning = Annotated[
    Annotated[int, Whole(1, MOST_RUNNING)] | None,
    about("Jobs at once in all pools of a fleet; null: no limit."),
]
MaxQueued = Annotated[
    Annotated[int, Whole(1, MOST_QUEUED)] | None,
    about("Jobs that may wait, more are refused; null: DISPATCHER_TENANT_MAX_QUEUED."),
]
MaxQueuedSeconds = Annotated[
    Annotated[float, Field(ge=0.001, le=MOST_QUEUED_SECONDS)] | None,
    about(
        "How long a job may wait in all; then it fails with max_queued_exceeded. The shorter of this and the "
        "model's counts. null: the model's."
    ),
]
SubmitsPerSecond = Annotated[
    Annotated[float, Field(ge=0.001, le=1_000_000)] | None,
    about("Jobs submitted per second in the long run, more are refused; null: no limit."),
]
SubmitBurst = Annotated[
    Annotated[int, Whole(1, 1_000_000)] | None,
    about("Jobs submitted at once after a pause; null: those of one second. Needs a rate."),
]
DailyGpuSeconds = Annotated[
    Annotated[float, Field(ge=0.001, le=1e12)] | None, about("GPU-seconds per UTC day; null: no limit.")
]
TenantModels = Annotated[
    Annotated[list[Name], Items(most=1000, unique=True)] | None,
    about("The models that it may submit to; null: all."),
]


class TenantChange(Body):
    """A tenant's rules and limits; what is left out stays as it is."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    weight: Weight = LEFT_OUT
    highest_band: Band = LEFT_OUT
    max_running: MaxRunning = None
    max_queued: MaxQueued = None
    max_queued_seconds: MaxQueuedSeconds = None
    submits_per_second: SubmitsPerSecond = None
    submit_burst: SubmitBurst = None
    daily_gpu_seconds: DailyGpuSeconds = None
    allowed_models: TenantModels = None

    _not_empty = model_validator(mode="after")(not_empty)


class Pushed(Body):
    """What the server would answer to a poll."""

    model_config = ConfigDict(extra="allow")
