"""The answers about jobs, tenants and keys, as they are on the wire."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from foundation.http_api.json_body import Choice, Items, JsonObject, Name, about, choices
from foundation.http_api.openapi import Instant, Problem
from gpus.api.answers import Live, page_of
from jobs.api import bodies
from jobs.domain.states import AttemptState, JobState
from jobs.operations.jobs import BULK_LIMIT
from jobs.reports.jobs import ATTEMPTS_SHOWN
from jobs.submission.request import Outcome as SubmitOutcome
from jobs.submission.request import WaitReason

Count = Annotated[int, Field(ge=0)]
_JobStatus = Annotated[str, choices(JobState)]
_Position = Annotated[int | None, about("Estimated place in line, from 1.")]


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
    slot_freed: Annotated[bool, about("Its end proved the GPU free of it.")]
    evidence: Annotated[str | None, about("What proved it, then or later, where a proof was needed.")]
    usage: Annotated[
        dict[str, Any] | None, about("What the server counted: `prompt_tokens`, `completion_tokens` …")
    ]
    started_at: Instant
    finished_at: Instant | None


class JobUrls(TypedDict):
    self: str
    events: str
    cancel: str


class JobSummary(TypedDict):
    """A job in a list."""

    job_id: str
    model: str
    status: _JobStatus
    priority: int
    tags: list[str]
    metadata: dict[str, Any]
    created_at: Instant
    run_at: Annotated[Instant | None, about("Of a job for later: when it stands in line.")]
    started_at: Instant | None
    finished_at: Instant | None
    deadline_at: Annotated[Instant | None, about("When it must be over.")]
    start_deadline_at: Annotated[Instant | None, about("When it must have started.")]
    queue_deadline_at: Annotated[
        Instant | None, about("When it will have waited for `max_queued_seconds`; runs push it back.")
    ]
    cancel_requested_at: Instant | None
    error: Annotated[Error | None, about("Of a job that is not over: that of its last attempt.")]
    attempts: Annotated[
        list[Attempt],
        Items(most=ATTEMPTS_SHOWN),
        about("The last ones, by number; `attempts_before` of the job's URL reads earlier ones."),
    ]
    attempts_count: Annotated[int, about("All that were made.")]
    refusals_folded: Annotated[
        int, about("Of these, refused ones that are only counted any more: they cost no try.")
    ]
    urls: JobUrls


class Job(JobSummary):
    """A job as its reader may see it."""

    result: Annotated[Any, about("Any JSON value.")]
    result_hidden: Annotated[bool, about("Whoever asks may not see results.")]


JobPage = page_of(JobSummary)


class StartsIn(TypedDict):
    """When the job will start."""

    p50_seconds: Annotated[float, about("Half of such jobs start within so many seconds.")]
    p90_seconds: Annotated[float, about("Nine in ten do.")]
    seen: Annotated[int, about("Real starts that this was learnt from.")]


class Outcome(TypedDict):
    """What became of a submit."""

    outcome: Annotated[str, choices(SubmitOutcome)]
    position: _Position
    wait_reason: Annotated[
        Annotated[str, choices(WaitReason)] | None,
        about("Why it does not start at once; null where it does, or nobody knows why."),
    ]
    starts_in: Annotated[
        StartsIn | None, about("null: it starts at once, is for later, or nobody can know when.")
    ]


class Submitted(Job, Outcome):
    """A job that was submitted."""


class SubmittedItem(Outcome):
    """A job of a batch."""

    job_id: str
    status: _JobStatus
    replayed: bool


class SubmittedBatch(TypedDict):
    """One answer per job, in order."""

    jobs: list[SubmittedItem | Problem]


class Cancelled(TypedDict):
    job_id: str
    outcome: Annotated[str, Choice("cancelled", "requested")]
    may_hold_slot_until: Annotated[
        Instant | None,
        about("Of a run that is being stopped: its slot is free by then, whatever its server says."),
    ]


class Reason(TypedDict):
    code: Annotated[str, about("Stable: see docs/reference/explain.md.")]
    message: str
    change: Annotated[str, about("What would change it.")]
    evidence: Annotated[JsonObject, about("What it was decided by.")]


class Estimate(TypedDict):
    """What a job would wait for."""

    reasons: Annotated[list[Reason], Items(least=1)]
    position: _Position
    starts_in: Annotated[StartsIn | None, about("null: it does not wait, or nobody can know.")]


class Explanation(Estimate):
    """What a job waits for."""

    job_id: str
    status: _JobStatus


class ModelStats(TypedDict):
    model: str
    pool: str | None
    scheduled: Annotated[int, about("For later: not in line yet.")]
    queued: int
    oldest_queued_seconds: float | None
    queued_gpu_seconds: float | None
    running: int
    retrying: int
    cancelling: Annotated[int, about("Cancelled, and it is not proven yet that their GPU is free.")]
    slots: Annotated[dict[str, int] | None, about("Of the model's pool, by state; null: Redis is away.")]
    drain_seconds: Annotated[float | None, about("Estimate: queued GPU-seconds over the pool's slots.")]


class Stats(TypedDict):
    models: list[ModelStats]


class Accepted(TypedDict):
    accepted: bool


class BulkOutcome(TypedDict):
    done: Annotated[Count, Field(le=BULK_LIMIT)]
    remaining: Annotated[Count, about("Match and are left: ask again for them.")]
    refused: Annotated[Count, about("Moved on before it came to them.")]
    dry_run: bool


class Retried(TypedDict):
    retried: Annotated[Count, Field(le=BULK_LIMIT)]
    remaining: Annotated[Count, about("Failed jobs that match and are left: ask again.")]
    dry_run: bool


class DeadLetterGroup(TypedDict):
    fingerprint: Annotated[str, Field(pattern=bodies.FINGERPRINT)]
    error: Error
    job_id: Annotated[str, about("The one that failed last; the message is its.")]
    models: dict[str, Count]
    count: Count
    first_at: Instant
    last_at: Instant


class DeadLetterGroups(TypedDict):
    results: list[DeadLetterGroup]


class ApiKey(TypedDict):
    """An API key; it is shown itself only when it is made."""

    prefix: Annotated[str, about("Its first part; it names the key.")]
    name: str
    tenant: Name
    kind: bodies.KeyKind
    scopes: bodies.Scopes
    allowed_models: bodies.KeyModels
    created_at: Instant
    expires_at: Instant | None
    last_used_at: Annotated[Instant | None, about("To the minute.")]
    revoked: bool
    is_valid: Annotated[bool, about("Neither revoked nor expired.")]
    rotated_to: Annotated[str | None, about("The prefix of the key that replaced it.")]


class ApiKeys(TypedDict):
    results: list[ApiKey]


class NewApiKey(ApiKey):
    """An API key that was made now."""

    key: Annotated[str, about("Shown only now.")]


class WebhookSecret(TypedDict):
    webhook_secret: Annotated[str, about("Shown only now.")]
    old_until: Annotated[Instant | None, about("Until then callbacks are signed with both.")]


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

    changed: Annotated[bool, about("False: it was so already.")]
    live: Live


class Worker(TypedDict):
    """A process of the dispatcher."""

    name: Annotated[str, about("Of a GPU worker the one that its attempts have.")]
    kind: Annotated[str, Choice("gpu", "sweeps", "callbacks", "web")]
    live: Annotated[bool, about("It gave a sign of life lately enough.")]
    last_beat_at: Instant
    last_beat_seconds: Annotated[float, Field(ge=0)]
    started_at: Instant
    layout: Annotated[int, about("Of the keys in Redis that its code knows.")]
    queues: Annotated[list[str], about("What it consumes: gpu.<pool>, sweeps, callbacks.")]
    running: Annotated[Count, about("Its attempts that run now.")]
    servers: Annotated[list[str], about("Where they run.")]


class Workers(TypedDict):
    results: list[Worker]
