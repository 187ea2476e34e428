from __future__ import annotations

from django.urls import URLPattern, path

from .dead_letters import DeadLetter, DeadLetters, RetryDeadLetter, RetryDeadLetters
from .health import livez, readyz
from .jobs import CancelJob, JobDetail, JobEvents, Jobs
from .metrics import metrics
from .push import PushResult
from .stats import Stats
from .submit import Submit, SubmitBatch

root_urls = [path("livez", livez), path("readyz", readyz), path("metrics", metrics)]

queue_urls: list[URLPattern] = [
    path("queue/submit", Submit.as_view()),
    path("queue/submit-batch", SubmitBatch.as_view()),
    path("queue/jobs", Jobs.as_view()),
    path("queue/jobs/<str:job_id>", JobDetail.as_view()),
    path("queue/jobs/<str:job_id>/events", JobEvents.as_view()),
    path("queue/jobs/<str:job_id>/cancel", CancelJob.as_view()),
    path("queue/stats", Stats.as_view()),
    path("tasks/callback/<str:job_id>", PushResult.as_view()),
]

dead_letter_urls: list[URLPattern] = [
    path("dlq", DeadLetters.as_view()),
    path("dlq/retry-all", RetryDeadLetters.as_view()),
    path("dlq/<str:job_id>", DeadLetter.as_view()),
    path("dlq/<str:job_id>/retry", RetryDeadLetter.as_view()),
]
