"""Workflow runs on a worker harness: real jobs, and runs that are advanced when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.support.factories import make_tenant
from tests.support.waiting import wait_for
from tests.support.worker_harness import WorkerHarness
from workflows.domain.states import RunState
from workflows.execution.advancer import Advancer
from workflows.execution.retried import retryable
from workflows.models import Run, Version, Workflow
from workflows.operations.definitions import put_definition
from workflows.operations.start import start_run
from workflows.tasks import advance_now


class WorkflowHarness:
    """Workflows of a tenant on the fleet of a worker harness. Hints advance runs in this thread, when a test
    says so."""

    def __init__(self, worker_harness: WorkerHarness) -> None:
        self.worker_harness = worker_harness
        self.woken: list[str] = []
        self.keeps_laws = True
        """False: the test plants violations."""
        self.ports = replace(worker_harness.ports, wake_followers=self.woken.extend, retryable=retryable)
        self.advancer = Advancer(self.ports)
        self.tenant = make_tenant()
        worker_harness.ports = self.ports
        self.worker = worker_harness.worker()

    def start(self, definition: dict[str, Any], inputs: Any = None, **more: Any) -> Run:
        self.put("w", definition)
        return start_run(self.tenant.pk, "w", inputs, ports=self.ports, **more).run

    def put(self, name: str, definition: dict[str, Any]) -> None:
        put_definition(self.tenant.pk, name, definition, ports=self.ports)

    def start_recursive(self, definition: dict[str, Any]) -> Run:
        """Start a run of a workflow w that contains w: an earlier release stored such definitions."""
        self.put("w", {"nodes": {"x": model()}})
        workflow = Workflow.objects.get(tenant=self.tenant, name="w")
        Version.objects.create(
            workflow=workflow, number=2, spec=definition, sha256="", created_at=self.ports.clock.now()
        )
        return start_run(self.tenant.pk, "w", None, ports=self.ports).run

    def advance(self, run: Run) -> Run:
        for follower in dict.fromkeys([f"run:{run.id}", *self.woken]):
            advance_now(self.advancer, follower.removeprefix("run:"))
        run.refresh_from_db()
        return run

    def until(self, run: Run, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        def met() -> bool:
            self.worker.work("m")
            self.advance(run)
            return condition()

        wait_for(met, seconds=seconds)

    def to_end(self, run: Run) -> Run:
        self.until(run, lambda: run.state != RunState.RUNNING)
        return run


def model(**more: Any) -> dict[str, Any]:
    """A node of the worker harness's model."""
    return {"model": "m", "payload": {"seconds": 0.001, **more.pop("payload", {})}, **more}


def states(run: Run) -> dict[str, str]:
    run.refresh_from_db()
    return dict(run.node_states)
