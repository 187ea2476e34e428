"""An installation that is well, to be made ill."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from dispatcher_project.cli.doctor import examine, parts
from dispatcher_project.cli.doctor.finding import Finding, Level, View
from gpus.models import Server
from jobs.sweeps.base import SweepCount, UnwrittenRuns, write_runs
from tests.support.queue_harness import QueueHarness


@dataclass
class Patient:
    """A well installation that tests make ill. settings: to change them for the test. facts: of Redis."""

    queue: QueueHarness
    folder: Path
    settings: pytest.MonkeyPatch
    facts: dict[str, Any] = field(
        default_factory=lambda: {
            "valkey_version": "9.1.2",
            "aof_enabled": 1,
            "maxmemory_policy": "noeviction",
        }
    )
    queues: dict[str, list[str]] | None = field(
        default_factory=lambda: {"sweeps": ["s@h"], "callbacks": ["c@h"], "gpu.m": ["g@h"]}
    )
    free: float = 1e12
    redis_error: Exception | None = None
    redis_skew: float = 0.0
    leases: Any = None
    web: tuple[int, dict[str, Any]] | OSError = (200, {"status": "ready"})

    def ask_web(self) -> tuple[int, dict[str, Any]]:
        if isinstance(self.web, OSError):
            raise self.web
        return self.web

    def view(self) -> View:
        queue = self.queue

        def facts() -> dict[str, Any]:
            if self.redis_error is not None:
                raise self.redis_error
            return {**self.facts, "time": queue.clock.now().timestamp() + self.redis_skew}

        return View(
            ports=replace(queue.ports, leases=lambda fleet: self.leases or queue.leases),
            now=queue.clock.now(),
            redis_facts=facts,
            consumed=lambda: self.queues,
            free_bytes=lambda path: int(self.free),
            data_folder=self.folder,
            wall_clock=lambda: queue.clock.now().timestamp(),
            web=self.ask_web,
        )

    def findings(self) -> list[Finding]:
        return list(examine.examine(self.view()))

    def ill(self) -> dict[str, Finding]:
        return {one.check: one for one in self.findings() if one.level is not Level.OK}


@pytest.fixture
def patient(queue: QueueHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Patient:
    # the clocks of host and Redis are the harness's, and tests move them
    if connection.vendor == "postgresql":
        monkeypatch.setattr(parts, "database_time", lambda: queue.clock.now().timestamp())
    queue.server()
    Server.objects.update(healthy=True, checked_at=queue.clock.now())
    write_runs(
        {
            "tick": UnwrittenRuns(queue.clock.now(), SweepCount()),
            "fill": UnwrittenRuns(queue.clock.now(), SweepCount()),
        }
    )
    return Patient(queue, tmp_path, monkeypatch)
