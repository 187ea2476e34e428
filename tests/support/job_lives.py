"""Jobs that live through everything a job can, by the real transitions; and what came to an end by that."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random

from django.db import transaction

from gpus.errors import BadInput, GpuBusy, ServerFailed
from jobs import transitions
from jobs.domain.retry import Ending, RetryPolicy
from jobs.domain.states import JobState
from jobs.models import Job, Tenant
from jobs.reports.rollups import EndedEvent
from jobs.transitions import End
from tests.support.factories import make_job, make_running, make_tenant
from tests.support.fakes import START

_ENDINGS = (
    Ending(),
    Ending(error=ServerFailed("500")),
    Ending(error=GpuBusy("busy")),
    Ending(error=BadInput("no")),
)


@dataclass
class Lives:
    """closed: every end that was played, in order."""

    random: Random = field(default_factory=lambda: Random(11))
    closed: list[EndedEvent] = field(default_factory=list)

    def play(self, jobs: int, *, begin: datetime = START, minutes: float = 20.0) -> None:
        for _ in range(jobs):
            self._live(
                make_tenant(self.random.choice(("acme", "globex", "initech"))),
                self.random.choice(("zimg", "flux")),
                begin + timedelta(minutes=self.random.uniform(0, minutes)),
            )

    def _live(self, tenant: Tenant, model: str, at: datetime) -> None:
        job = make_job(model, tenant=tenant, at=at)
        accepted, begun = at, None
        for _ in range(8):
            at += timedelta(seconds=self.random.uniform(0, 40))
            if self.random.random() < 0.1:
                with transaction.atomic():
                    transitions.end_waiting(job.id, JobState.CANCELLED, at, code="c", message="m")
                self._close(job, at, accepted, begun, 0.0)
                return
            begun = begun or at
            at = self._run(job, at, accepted, begun)
            job.refresh_from_db()
            if job.state == JobState.COMPLETED or (
                job.state == JobState.FAILED and self.random.random() < 0.5
            ):
                return
            at += timedelta(seconds=self.random.uniform(0, 90))
            with transaction.atomic():
                if job.state == JobState.FAILED:
                    assert transitions.requeue_failed(job.id, at)
                    accepted, begun = at, None
                elif job.state == JobState.RETRYING:
                    assert transitions.queue_retry(job.id, at)

    def _run(self, job: Job, at: datetime, accepted: datetime, begun: datetime) -> datetime:
        attempt = make_running(job, at=at)
        seconds = self.random.uniform(0.01, 100)
        at += timedelta(seconds=seconds)
        ending = self.random.choice(_ENDINGS)
        with transaction.atomic():
            end = End(job.id, attempt, 1, "gpu-1/0", ending, RetryPolicy(), at, gpu_seconds=seconds)
            assert transitions.end_attempt(end).won
        job.refresh_from_db()
        code = ending.error.code if ending.error else "completed"
        self._close(job, at, accepted, begun, seconds, attempt=code)
        return at

    def _close(
        self,
        job: Job,
        at: datetime,
        accepted: datetime,
        begun: datetime | None,
        seconds: float,
        *,
        attempt: str | None = None,
    ) -> None:
        job.refresh_from_db()
        if job.finished_at is None:
            then = "requeued" if job.state == JobState.QUEUED else job.state
            self.closed.append(
                EndedEvent(at, job.model, job.tenant_id, gpu_seconds=seconds, attempt=attempt, then=then)
            )
            return
        wait = (begun - accepted).total_seconds() if begun else None
        run = (at - begun).total_seconds() if begun else None
        self.closed.append(
            EndedEvent(at, job.model, job.tenant_id, job.state, seconds, wait, run, attempt, job.state)
        )
