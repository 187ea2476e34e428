"""Jobs moved by the real transitions, announced as services do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from foundation.ids import new_id
from jobs.domain.states import JobState
from jobs.events.announce import Announcer
from jobs.models import Job, Tenant
from jobs.transitions import end_waiting
from jobs.transitions.unit_of_work import lock_job, log_event
from tests.support.factories import create_jobs

BEGAN = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def new_job(tenant: Tenant) -> Job:
    now = timezone.now()
    job = Job(id=new_id(), tenant=tenant, model="zimg", pool="zimg", payload={}, place_us=1, created_at=now)
    with transaction.atomic():
        create_jobs([job], now)
    return job


def end_job(job_id: str, *, announce: bool = True) -> None:
    with transaction.atomic():
        ended = end_waiting(job_id, JobState.FAILED, timezone.now(), code="deadline_exceeded", message="late")
    assert ended.won
    if announce:
        Announcer(settings.REDIS_URL)([job_id])


def say(job_id: str, *words: str) -> None:
    """An event with a piece of output for each word."""
    for word in words:
        with transaction.atomic():
            job = lock_job(job_id)
            assert job is not None
            log_event(job, "partial", timezone.now(), {"attempt": 1, "output": [word]})


def write_lines(job: Job, *texts: str, attempt: int = 1, stream: str = "log", level: str = "") -> None:
    """One event with a line for each text, a second apart."""
    with transaction.atomic():
        locked = lock_job(job.id)
        assert locked is not None
        lines = [
            {
                "at": (BEGAN + timedelta(minutes=attempt, seconds=number)).isoformat(timespec="milliseconds"),
                "stream": stream,
                "text": text,
                **({"level": level} if level else {}),
            }
            for number, text in enumerate(texts)
        ]
        log_event(locked, "log", timezone.now(), {"attempt": attempt, "part": 1, "lines": lines})


def read_stream(lines: Any) -> list[dict[str, str]]:
    """The whole events of a finished stream; what is no event (`retry:`, comments) is left out."""
    events: list[dict[str, str]] = []
    now: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            now[name] = value.strip()
        else:
            events += [now] if "event" in now else []
            now = {}
    return events
