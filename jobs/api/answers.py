"""Response bodies about jobs, tenants, keys and workers; their descriptions are those of the OpenAPI
document."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from artifacts.models import Artifact as ArtifactRow
from foundation.http_api.json_body import Choice, Items, JsonObject, Name, about, choices
from foundation.http_api.openapi import Instant, Problem
from gpus.api.answers import Live, page_of
from jobs.api import bodies
from jobs.domain.states import AttemptState, JobState
from jobs.operations.bulk import BULK_LIMIT
from jobs.reports.jobs import ATTEMPTS_SHOWN
from jobs.reports.usage import UsageBy
from jobs.submission.request import Outcome as SubmitOutcome
from jobs.submission.request import WaitReason

Count = Annotated[int, Field(ge=0)]
_JobStatus = Annotated[str, choices(JobState)]
_Position = Annotated[int | None, about("Estimated position in the queue, from 1.")]


class Error(TypedDict):
    code: str
    message: str


class Attempt(TypedDict):
    """One try of a job on one slot."""

    number: int
    server: str
    slot: int
    state: Annotated[str, choices(AttemptState)]
    error: Error | None
    slot_freed: Annotated[bool, about("True if the attempt's end proved its slot free.")]
    evidence: Annotated[
        str | None,
        about("Evidence that the slot is free, from the attempt's end or later, if one was needed."),
    ]
    usage: Annotated[
        dict[str, Any] | None, about("Counts from the server: `prompt_tokens`, `completion_tokens` …")
    ]
    started_at: Instant
    finished_at: Instant | None


class JobUrls(TypedDict):
    self: str
    events: str
    logs: str
    cancel: str
    rerun: str


class Progress(TypedDict):
    """Progress of a running job's current attempt, as its run reports it."""

    value: Annotated[float, Field(ge=0, le=1)]
    text: Annotated[
        str | None, about("A line about it, such as `step 8 of 20`; null without, or if results are hidden.")
    ]
    at: Instant


class PartialOutput(TypedDict):
    """Output of a running job's current attempt so far."""

    output: Annotated[
        list[Any], about("Texts, joined as far as they are consecutive, and other JSON values, in order.")
    ]
    left_out: Annotated[Count, about("Number of pieces beyond the limits of `partial` events.")]


class Timings(TypedDict):
    """Durations of a job in seconds, of all its rounds; of what goes on, until now."""

    waited_seconds: Annotated[
        float, about("From the submit, or `run_at`, to the start of the first attempt.")
    ]
    ran_seconds: Annotated[float | None, about("Duration of the last attempt; null before the first.")]
    gpu_seconds: Annotated[
        float, about("For which all attempts held their slots, as counted for usage and quota.")
    ]
    total_seconds: Annotated[float, about("From the submit to the end.")]


class JobSummary(TypedDict):
    """A job in a list."""

    job_id: str
    model: str
    status: _JobStatus
    priority: int
    tags: list[str]
    metadata: dict[str, Any]
    created_at: Instant
    run_at: Annotated[Instant | None, about("Earliest start of a scheduled job: it is queued at this time.")]
    started_at: Instant | None
    finished_at: Instant | None
    deadline_at: Annotated[Instant | None, about("Time by which the job must have ended.")]
    start_deadline_at: Annotated[Instant | None, about("Time by which the job must have started.")]
    queue_deadline_at: Annotated[
        Instant | None,
        about("Time at which the job has waited for `max_queued_seconds`; running time does not count."),
    ]
    cancel_requested_at: Instant | None
    progress: Annotated[
        Progress | None, about("null unless the job is running and its attempt has reported progress.")
    ]
    error: Annotated[
        Error | None, about("Final error; for an unfinished job, the error of its last attempt.")
    ]
    attempts: Annotated[
        list[Attempt],
        Items(most=ATTEMPTS_SHOWN),
        about(
            "The last attempts, by number; the parameter `attempts_before` of the job's URL reads "
            "earlier ones."
        ),
    ]
    attempts_count: Annotated[int, about("Number of all attempts.")]
    refusals_folded: Annotated[
        int, about("Number of old refused attempts that were deleted; they are not charged as tries.")
    ]
    rerun_of: Annotated[str | None, about("Id of the job that this one runs again.")]
    run_id: Annotated[str | None, about("Id of the workflow run that it belongs to.")]
    node: Annotated[str | None, about("Key of its node in that run, such as detect or detect[17].")]
    urls: JobUrls


class Job(JobSummary):
    """A job with its result, if the reader may see results."""

    result: Annotated[Any, about("Any JSON value.")]
    result_url: Annotated[
        str | None,
        about(
            "Where the result is, as JSON, if it was too long for this answer: `result` then refers to that "
            "artifact. Else null."
        ),
    ]
    result_hidden: Annotated[bool, about("True if the reader may not see results.")]
    partial_output: Annotated[
        PartialOutput | None,
        about("null unless the job is running, its attempt has sent output, and the reader may see results."),
    ]
    timings: Timings


class JobWithPayload(Job):
    """A job, with its payload if it was asked for."""

    payload: NotRequired[Annotated[Any, about("Only with `include=payload`.")]]


JobPage = page_of(JobSummary)


class SignedRequest(TypedDict):
    """A request that needs no API key. Its headers must be sent as they are."""

    method: str
    url: str
    headers: dict[str, str]
    expires_at: Instant


class ArtifactMeta(TypedDict):
    """An artifact without its bytes."""

    id: str
    state: Annotated[str, choices(ArtifactRow.State)]
    bytes: int
    sha256: str
    content_type: Annotated[str, about("As declared, else as recognised; empty before the upload.")]
    name: str
    made_by_job: Annotated[str | None, about("Job that made it.")]
    created_at: Instant
    stored_at: Instant | None
    expires_at: Annotated[Instant, about("When it may be removed, if no job refers to it.")]


class ArtifactPart(SignedRequest):
    """The request for one part: `bytes` bytes from position `first` of the file."""

    number: int
    first: int
    bytes: int


class ArtifactParts(TypedDict):
    """An upload in parts. Only the parts that are missing are listed."""

    count: int
    missing: list[ArtifactPart]


class PromisedArtifact(TypedDict):
    """An artifact, and how to upload it. `exists`: nothing is to be uploaded."""

    id: str
    exists: bool
    upload: SignedRequest | None
    parts: ArtifactParts | None


ArtifactPage = page_of(ArtifactMeta)


class DataErased(TypedDict):
    """The data of a job that was erased."""

    job_id: str
    erased_at: Instant
    artifacts: Annotated[int, about("Artifacts that are gone: no other job or run used them.")]


class StartsIn(TypedDict):
    """Estimated time until the job starts."""

    p50_seconds: Annotated[float, about("Median: half of such jobs start within this time.")]
    p90_seconds: Annotated[float, about("Nine of ten such jobs start within this time.")]
    seen: Annotated[int, about("Number of observed starts that the estimate is based on.")]


class Outcome(TypedDict):
    """Outcome of a submit."""

    outcome: Annotated[str, choices(SubmitOutcome)]
    position: _Position
    wait_reason: Annotated[
        Annotated[str, choices(WaitReason)] | None,
        about("Why the job does not start at once; null if it does, or if the reason is unknown."),
    ]
    starts_in: Annotated[
        StartsIn | None, about("null: the job starts at once, is scheduled, or the time can't be estimated.")
    ]


class Submitted(Job, Outcome):
    """A submitted job."""


class SubmittedItem(Outcome):
    """A job of a batch."""

    job_id: str
    status: _JobStatus
    replayed: bool


class SubmittedBatch(TypedDict):
    """One result or problem per job, in the order of the request."""

    jobs: list[SubmittedItem | Problem]


class Cancelled(TypedDict):
    job_id: str
    outcome: Annotated[str, Choice("cancelled", "requested")]
    may_hold_slot_until: Annotated[
        Instant | None,
        about("For a running job that is being stopped: time by which its slot is released at the latest."),
    ]


class Reason(TypedDict):
    code: Annotated[str, about("Stable: see docs/reference/explain.md.")]
    message: str
    change: Annotated[str, about("What to do so that the job starts, or when it will start by itself.")]
    evidence: Annotated[JsonObject, about("The facts that the reason was decided by.")]


class Estimate(TypedDict):
    """Reasons why a job would wait."""

    reasons: Annotated[list[Reason], Items(least=1)]
    position: _Position
    starts_in: Annotated[
        StartsIn | None, about("null: the job does not wait, or the time can't be estimated.")
    ]


class Explanation(Estimate):
    """Reasons why a job waits."""

    job_id: str
    status: _JobStatus


class ModelStats(TypedDict):
    model: str
    pool: str | None
    paused: Annotated[bool, about("No job of the model starts: the model or the whole system is paused.")]
    scheduled: Annotated[int, about("Jobs with a later `run_at`, which are not queued yet.")]
    queued: int
    oldest_queued_seconds: float | None
    queued_gpu_seconds: float | None
    running: int
    retrying: int
    cancelling: Annotated[int, about("Cancelled jobs whose GPU is not proven free yet.")]
    slots: Annotated[
        dict[str, int] | None, about("Slots of the model's pool, by state; null: Redis is unavailable.")
    ]
    drain_seconds: Annotated[
        float | None,
        about("Estimate: queued GPU-seconds by the pool's working slots; null: none works."),
    ]


class Stats(TypedDict):
    models: list[ModelStats]


class Accepted(TypedDict):
    accepted: bool


class BulkOutcome(TypedDict):
    done: Annotated[Count, Field(le=BULK_LIMIT)]
    remaining: Annotated[Count, about("Jobs that still match; repeat the request for them.")]
    refused: Annotated[Count, about("Jobs that changed state before this request reached them.")]
    dry_run: bool


class Retried(TypedDict):
    retried: Annotated[Count, Field(le=BULK_LIMIT)]
    remaining: Annotated[Count, about("Failed jobs that still match; repeat the request for them.")]
    dry_run: bool


class DeadLetterGroup(TypedDict):
    fingerprint: Annotated[str, Field(pattern=bodies.FINGERPRINT)]
    error: Error
    job_id: Annotated[str, about("The job that failed last; `error` has its message.")]
    models: dict[str, Count]
    count: Count
    first_at: Instant
    last_at: Instant


class DeadLetterGroups(TypedDict):
    results: list[DeadLetterGroup]


class ApiKey(TypedDict):
    """An API key without its secret part, which is shown only when the key is created."""

    prefix: Annotated[str, about("First part of the key; identifies it.")]
    name: str
    tenant: Name
    kind: bodies.KeyKind
    scopes: bodies.Scopes
    allowed_models: bodies.KeyModels
    created_at: Instant
    expires_at: Instant | None
    last_used_at: Annotated[Instant | None, about("Accurate to the minute.")]
    revoked: bool
    is_valid: Annotated[bool, about("True if the key is neither revoked nor expired.")]
    rotated_to: Annotated[str | None, about("Prefix of the key that replaced this one.")]


class ApiKeys(TypedDict):
    results: list[ApiKey]


class NewApiKey(ApiKey):
    """A new API key."""

    key: Annotated[str, about("The key itself; it can't be read again.")]


class WebhookSecret(TypedDict):
    webhook_secret: Annotated[str, about("The new secret; it can't be read again.")]
    old_until: Annotated[Instant | None, about("Until this time callbacks are signed with both secrets.")]


class Tenant(TypedDict):
    """A tenant with its rules and limits."""

    tenant: Name
    weight: bodies.Weight
    highest_band: bodies.Band
    max_running: bodies.MaxRunning
    max_queued: bodies.MaxQueued
    max_queued_seconds: bodies.MaxQueuedSeconds
    submits_per_second: bodies.SubmitsPerSecond
    submit_burst: bodies.SubmitBurst
    daily_gpu_seconds: bodies.DailyGpuSeconds
    allowed_models: bodies.TenantModels


TenantPage = page_of(Tenant)


class ChangedTenant(Tenant):
    """A tenant after a change."""

    changed: Annotated[bool, about("False: the values were the same already.")]
    live: Live


class MyKey(TypedDict):
    prefix: Annotated[str, about("First part of the key; identifies it.")]
    name: str
    kind: bodies.KeyKind
    expires_at: Instant | None


class MyModel(TypedDict):
    """A model that the key may submit to."""

    model: Name
    payload_schema: Annotated[Any, about("JSON Schema that a payload must satisfy; null: any object.")]
    result_schema: Annotated[
        Any,
        about(
            "JSON Schema of the results; its places for files, marked by contentMediaType, have "
            "references to artifacts. null: any result."
        ),
    ]
    paused: bool
    typical_run_seconds: Annotated[
        float | None, about("Median of the tenant's own jobs in the last days; null without any.")
    ]


class MyLimits(TypedDict):
    """null: no limit."""

    max_running: bodies.MaxRunning
    max_queued: Count
    max_queued_seconds: bodies.MaxQueuedSeconds
    submits_per_second: bodies.SubmitsPerSecond
    submit_burst: bodies.SubmitBurst
    daily_gpu_seconds: bodies.DailyGpuSeconds


class MyUse(TypedDict):
    running: Count
    waiting: Annotated[Count, about("Queued, scheduled and retrying jobs; they count against max_queued.")]
    gpu_seconds_today: Annotated[float, about("Of this UTC day, with the runs that go on.")]
    submits_left: Annotated[
        Count | None, about("Jobs that may be submitted at once now; null without a rate limit or Redis.")
    ]


class Me(TypedDict):
    tenant: Name
    key: MyKey
    scopes: list[bodies.ScopeName]
    models: list[MyModel]
    limits: MyLimits
    used: MyUse
    day_ends_at: Annotated[Instant, about("When gpu_seconds_today begins again.")]


class UsageRow(TypedDict):
    key: Annotated[str, about("The day, model or tag. Empty: the total, or tags beyond the limit of a day.")]
    completed: Count
    failed: Count
    cancelled: Count
    gpu_seconds: Annotated[float, Field(ge=0), about("Of all attempts, also of failed ones.")]


Usage = TypedDict(
    "Usage",
    {
        "tenant": Name,
        "from": Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$"), about("First UTC day.")],
        "to": Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$"), about("Last UTC day, included.")],
        "by": Annotated[str, choices(UsageBy)],
        "rows": list[UsageRow],
        "total": Annotated[UsageRow | None, about("null by tag: a job counts for each of its tags.")],
    },
)
Usage.__doc__ = "A tenant's ended jobs and GPU-seconds."


class Worker(TypedDict):
    """A process of the dispatcher."""

    name: Annotated[str, about("Name of the process; for a GPU worker also the worker of its attempts.")]
    kind: Annotated[str, Choice("gpu", "sweeps", "callbacks", "web")]
    live: Annotated[bool, about("True if the last heartbeat is recent enough.")]
    last_beat_at: Instant
    last_beat_seconds: Annotated[float, Field(ge=0)]
    started_at: Instant
    layout: Annotated[int, about("Layout of the keys in Redis that its version uses.")]
    queues: Annotated[list[str], about("Celery queues that it consumes: gpu.<pool>, sweeps, callbacks.")]
    running: Annotated[Count, about("Number of its running attempts.")]
    servers: Annotated[list[str], about("Servers of its running attempts.")]


class Workers(TypedDict):
    results: list[Worker]
