"""What is judged as a slot that stands idle: who holds it decides how soon it must be used again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpus.leasing.values import SlotView
from jobs.domain.states import AttemptState
from jobs.models import Attempt
from tests.support.factories import make_job, make_model, make_running, make_server
from verification.simulation.active_faults import ActiveFaults
from verification.simulation.database import Forgotten
from verification.simulation.promptness import (
    CLAIM_SECONDS,
    LATER_SECONDS,
    LEASE_SECONDS,
    Promptness,
)
from verification.simulation.scheduler import Process
from verification.simulation.world import BEAT_SECONDS, World

pytestmark = pytest.mark.django_db
JUDGED_SECONDS = 2.0 * (LEASE_SECONDS + BEAT_SECONDS) + LATER_SECONDS


class StillWorld:
    """One slot, held by a run that is over, and a job that waits for it; nothing else goes on."""

    def __init__(self, worker: Process, state: str) -> None:
        self.server = make_server(model=make_model())
        attempt = make_running(make_job(), worker=worker.name)
        Attempt.objects.filter(id=attempt).update(state=AttemptState.COMPLETED.value)
        make_job()
        self.attempt, self.state, self.expires_in = attempt, state, LEASE_SECONDS
        well = SimpleNamespace(process=Process("well"), takes_wakes=True)
        self.workers = self.sweepers = [well]
        self.known = {worker.name: worker}
        self.fleets, self.beat_seconds, self.disturbed_until = ["main"], BEAT_SECONDS, 0.0
        self.forgotten = Forgotten()
        self.scheduler = SimpleNamespace(now=1000.0)
        self.active_faults = ActiveFaults(cast(Any, None))
        self.versions = SimpleNamespace(is_whole=lambda fleet: True, is_held=lambda fleet, job_id: False)

    def true_ports(self) -> Any:
        return SimpleNamespace(leases=lambda fleet: self)

    def servers_of(self, fleet: str) -> list[str]:
        return [self.server.name]

    def slots_of(self, servers: list[str]) -> list[SlotView]:
        return [
            SlotView(
                "gpu-1/0",
                "zimg",
                self.state,
                False,
                None,
                "job",
                self.attempt,
                1,
                "zimg",
                1.0,
                self.expires_in,
            )
        ]

    def has_tickets(self, pool: str, tickets: list[Any]) -> list[bool]:
        return [True for _ in tickets]


def laws_after(world: StillWorld, seconds: float) -> list[str]:
    promptness = Promptness(cast(World, world), {"zimg": set()})
    until = world.scheduler.now + seconds
    while world.scheduler.now <= until:
        promptness.look()
        world.scheduler.now += 1.0
    return [law.split(":")[0] for law in promptness.broken]


def a_worker(*, lives: bool) -> Process:
    return Process("w", died_at=None if lives else 900.0)


@pytest.mark.parametrize("state", ["leased", "settling"])
def test_a_worker_that_lives_gives_its_slot_back(state: str) -> None:
    world = StillWorld(a_worker(lives=True), state)
    assert laws_after(world, CLAIM_SECONDS) == []
    assert laws_after(world, CLAIM_SECONDS + 1.0) == ["unclaimed"]


@pytest.mark.parametrize("state", ["leased", "settling"])
def test_a_dead_workers_lease_must_run_out_first(state: str) -> None:
    world = StillWorld(a_worker(lives=False), state)
    assert laws_after(world, JUDGED_SECONDS) == []


def test_what_a_dead_worker_held_is_claimed_once_it_ran_out() -> None:
    world = StillWorld(a_worker(lives=False), "leased")
    world.expires_in = 0.0
    assert laws_after(world, CLAIM_SECONDS) == []
    assert laws_after(world, CLAIM_SECONDS + 1.0) == ["unclaimed"]


def test_a_dead_workers_lease_runs_out() -> None:
    """Whoever puts that off again and again."""
    world = StillWorld(a_worker(lives=False), "leased")
    assert laws_after(world, JUDGED_SECONDS + 1.0) == ["kept"]


def test_a_slot_that_runs_something_is_not_idle() -> None:
    world = StillWorld(a_worker(lives=True), "leased")
    Attempt.objects.update(state=AttemptState.SENT.value)
    assert laws_after(world, JUDGED_SECONDS + 1.0) == []
