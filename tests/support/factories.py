"""Rows for tests: one line each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import transaction

from foundation.database import statements
from foundation.ids import new_id
from gpus.models import ModelConfig, Placement, Pool, Server
from jobs import transitions
from jobs.models import Job, Tenant
from tests.support.fakes import START


def make_tenant(name: str = "acme", **values: Any) -> Tenant:
    return Tenant.objects.get_or_create(name=name, defaults=values)[0]


def make_model(
    name: str = "zimg", *, pool: str | None = None, fleet: str = "main", **values: Any
) -> ModelConfig:
    row = Pool.objects.get_or_create(name=pool or name, defaults={"fleet": fleet})[0]
    return ModelConfig.objects.create(name=name, pool=row, **values)


def make_server(
    name: str = "gpu-1",
    *,
    model: ModelConfig,
    endpoint: str = "http://127.0.0.1:9/generate",
    slots: int = 1,
    **values: Any,
) -> Server:
    server = Server.objects.create(name=name, pool=model.pool, slots=slots, **values)
    Placement.objects.create(server=server, model=model, endpoint=endpoint)
    return server


def create_jobs(jobs: Sequence[Job], now: datetime) -> None:
    """Insert jobs as they are, with their tags and their first event."""
    statements.write(transitions.new_jobs(jobs, now))


def make_job(
    model: ModelConfig | str = "zimg", *, at: datetime = START, tenant: Tenant | None = None, **values: Any
) -> Job:
    """A QUEUED job, with its first event."""
    name = model if isinstance(model, str) else model.name
    pool = name if isinstance(model, str) else model.pool_id
    fleet = "main" if isinstance(model, str) else model.pool.fleet
    job = Job(
        id=values.pop("job_id", None) or new_id(at.timestamp()),
        tenant=tenant or make_tenant(),
        model=name,
        pool=pool,
        fleet=fleet,
        payload=values.pop("payload", {}),
        place_us=values.pop("place_us", int(at.timestamp() * 1e6)),
        created_at=at,
        **values,
    )
    with transaction.atomic():
        create_jobs([job], at)
    return job


def make_running(
    job: Job, *, slot: str = "gpu-1/0", at: datetime = START, worker: str = "w", remote_id: str = ""
) -> str:
    """Starts an attempt of the job, WAITING if it has a remote id; returns the attempt's id."""
    attempt_id = new_id(at.timestamp())
    with transaction.atomic():
        outcome = transitions.start_attempt(
            transitions.Start(job.id, attempt_id, slot, job.model, worker, at)
        )
        assert outcome is transitions.StartOutcome.STARTED
        if remote_id:
            assert transitions.note_remote_id(job.id, attempt_id, 1, remote_id, at)
    return attempt_id
