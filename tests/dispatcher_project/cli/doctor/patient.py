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
from tests.support.queue_world import QueueWorld


@dataclass
class Patient:
    """A well installation that tests make ill. settings: to change them for the test. facts: of Redis."""

    world: QueueWorld
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
        world = self.world

        def facts() -> dict[str, Any]:
            if self.redis_error is not None:
                raise self.redis_error
            return {**self.facts, "time": world.clock.now().timestamp() + self.redis_skew}

        return View(
            ports=replace(world.ports, leases=lambda fleet: self.leases or world.leases),
            now=world.clock.now(),
            redis_facts=facts,
            consumed=lambda: self.queues,
            free_bytes=lambda path: int(self.free),
            data_folder=self.folder,
            wall_clock=lambda: world.clock.now().timestamp(),
            web=self.ask_web,
        )

    def findings(self) -> list[Finding]:
        return list(examine.examine(self.view()))

    def ill(self) -> dict[str, Finding]:
        return {one.check: one for one in self.findings() if one.level is not Level.OK}


@pytest.fixture
def patient(world: QueueWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Patient:
    # the clocks of host and Redis are the world's, and tests move them
    if connection.vendor == "postgresql":
        monkeypatch.setattr(parts, "database_time", lambda: world.clock.now().timestamp())
    world.server()
    Server.objects.update(healthy=True, checked_at=world.clock.now())
    write_runs(
        {
            "tick": UnwrittenRuns(world.clock.now(), SweepCount()),
            "fill": UnwrittenRuns(world.clock.now(), SweepCount()),
        }
    )
    return Patient(world, tmp_path, monkeypatch)
