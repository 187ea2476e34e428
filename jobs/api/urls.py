from __future__ import annotations

from django.urls import URLPattern, path

from .artifacts import ArtifactDetail, ArtifactMeta, Artifacts, CompleteArtifact
from .erasure import EraseJobData
from .health import livez, readyz
from .job_control import (
    CancelJobs,
    ChangePriority,
    DeadLetter,
    DeadLetterGroups,
    DeadLetters,
    DismissDeadLetters,
    RetryDeadLetter,
    RetryDeadLetters,
    RetryJobs,
    RunNext,
)
from .jobs import CancelJob, EstimateJob, ExplainJob, JobDetail, JobEvents, Jobs
from .logs import JobLogs
from .metrics import metrics
from .push import PushResult
from .run_artifacts import RunArtifacts
from .stats import Stats, Workers
from .submit import Rerun, Submit, SubmitBatch
from .tenants import (
    Keys,
    Pauses,
    PauseTenant,
    ResumeTenant,
    RevokeKey,
    RotateKey,
    TenantRules,
    Tenants,
    WebhookSecret,
)
from .usage import Me, TenantUsage, Usage

root_urls = [path("livez", livez), path("readyz", readyz), path("metrics", metrics)]

queue_urls: list[URLPattern] = [
    path("queue/submit", Submit.as_view()),
    path("queue/submit-batch", SubmitBatch.as_view()),
    path("queue/jobs", Jobs.as_view()),
    path("queue/jobs/<str:job_id>", JobDetail.as_view()),
    path("queue/estimate", EstimateJob.as_view()),
    path("queue/jobs/<str:job_id>/explain", ExplainJob.as_view()),
    path("queue/jobs/<str:job_id>/events", JobEvents.as_view()),
    path("queue/jobs/<str:job_id>/logs", JobLogs.as_view()),
    path("queue/jobs/<str:job_id>/cancel", CancelJob.as_view()),
    path("queue/jobs/<str:job_id>/data", EraseJobData.as_view()),
    path("artifacts", Artifacts.as_view()),
    path("artifacts/<str:artifact_id>", ArtifactDetail.as_view()),
    path("artifacts/<str:artifact_id>/meta", ArtifactMeta.as_view()),
    path("artifacts/<str:artifact_id>/complete", CompleteArtifact.as_view()),
    path("queue/jobs/<str:job_id>/rerun", Rerun.as_view()),
    path("queue/stats", Stats.as_view()),
    path("me", Me.as_view()),
    path("usage", Usage.as_view()),
    path("tasks/callback/<str:job_id>", PushResult.as_view()),
    path("tasks/artifacts/<str:job_id>", RunArtifacts.as_view()),
]

dead_letter_urls: list[URLPattern] = [
    path("dlq", DeadLetters.as_view()),
    path("dlq/groups", DeadLetterGroups.as_view()),
    path("dlq/retry-all", RetryDeadLetters.as_view()),
    path("dlq/dismiss", DismissDeadLetters.as_view()),
    path("dlq/<str:job_id>", DeadLetter.as_view()),
    path("dlq/<str:job_id>/retry", RetryDeadLetter.as_view()),
]

control_urls: list[URLPattern] = [
    path("jobs/cancel", CancelJobs.as_view()),
    path("jobs/retry", RetryJobs.as_view()),
    path("jobs/<str:job_id>/priority", ChangePriority.as_view()),
    path("jobs/<str:job_id>/run-next", RunNext.as_view()),
    path("pauses", Pauses.as_view()),
    path("workers", Workers.as_view()),
    path("tenants", Tenants.as_view()),
    path("tenants/<str:tenant>", TenantRules.as_view()),
    path("tenants/<str:tenant>/usage", TenantUsage.as_view()),
    path("tenants/<str:tenant>/pause", PauseTenant.as_view()),
    path("tenants/<str:tenant>/resume", ResumeTenant.as_view()),
    path("tenants/<str:tenant>/keys", Keys.as_view()),
    path("tenants/<str:tenant>/keys/<str:prefix>/rotate", RotateKey.as_view()),
    path("tenants/<str:tenant>/keys/<str:prefix>/revoke", RevokeKey.as_view()),
    path("tenants/<str:tenant>/webhook-secret", WebhookSecret.as_view()),
]
