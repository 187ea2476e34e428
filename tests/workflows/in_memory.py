"""Runs of a tenant without GPU workers: tests end their jobs, and advance them when they ask for it."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.domain.states import JobState
from jobs.models import EndNotice, Job, Tenant
from tests.support.api_harness import ApiHarness
from tests.support.factories import make_model, make_tenant
from workflows.execution.advancer import Advancer
from workflows.models import Run
from workflows.operations.control import cancel_run
from workflows.operations.definitions import put_definition
from workflows.operations.start import start_run
from workflows.sweeps import cancelling_runs
from workflows.tasks import advance_now

ASK = {"human": {"title": "?", "form": {}}}


class Desk:
    """Workflows of a tenant with the model m."""

    def __init__(self) -> None:
        make_model("m")
        self.tenant, self.ports = make_tenant(), ApiHarness().ports
        self.advancer = Advancer(self.ports)

    def put(self, name: str, definition: dict[str, Any]) -> None:
        put_definition(self.tenant.pk, name, definition, ports=self.ports)

    def start(self, definition: dict[str, Any] | None = None, name: str = "w") -> Run:
        if definition is not None:
            self.put(name, definition)
        return start_run(self.tenant.pk, name, None, ports=self.ports).run

    def advance(self, run: Run) -> Run:
        """Advance a run and its sub-runs."""
        advance_now(self.advancer, run.id)
        for child in Run.objects.filter(parent_node__run=run, finished_at=None):
            self.advance(child)
        advance_now(self.advancer, run.id)
        run.refresh_from_db()
        return run

    def cancel(self, run: Run) -> Run:
        """Cancel a run, until it and its sub-runs have ended."""
        cancel_run(run.id, ports=self.ports)
        for _ in range(3):
            cancelling_runs.sweep(self.ports)
            self.advance(run)
        assert run.state == "cancelled"
        return run

    def end_jobs(self, state: JobState = JobState.COMPLETED, result: Any = None, **of: Any) -> None:
        """End jobs, and write the notices of their ends."""
        now = self.ports.clock.now()
        for job in Job.objects.filter(finished_at=None, **of):
            Job.objects.filter(id=job.id).update(state=state.value, finished_at=now, result=result)
            EndNotice.objects.create(
                followed_by=job.followed_by, ended_id=job.id, round=job.round, state=state.value, at=now
            )

    def set_limits(self, **limits: Any) -> None:
        Tenant.objects.update(**limits)
        self.ports.limit_caches.clear()


@pytest.fixture
def desk(db: None) -> Desk:
    return Desk()
