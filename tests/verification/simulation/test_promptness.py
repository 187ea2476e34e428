"""Which slots count as idle: their holder decides how soon they must be used again; and which cancels must be
final soon."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpus.leasing.values import Circuits, SlotView
from gpus.models import Placement
from jobs.domain.states import AttemptState, JobState
from jobs.models import Attempt, Job
from tests.support.factories import make_job, make_model, make_running, make_server
from tests.support.fakes import START
from verification.simulation.active_faults import ActiveFaults
from verification.simulation.database import Forgotten
from verification.simulation.promptness import (
    CANCEL_SECONDS,
    CLAIM_SECONDS,
    LATER_SECONDS,
    LEASE_SECONDS,
    Promptness,
)
from verification.simulation.scheduler import Process
from verification.simulation.world import BEAT_SECONDS, World

pytestmark = pytest.mark.django_db
JUDGED_SECONDS = 2.0 * (LEASE_SECONDS + BEAT_SECONDS) + LATER_SECONDS
CANCELLED_SECONDS = CANCEL_SECONDS + 3.0 * (BEAT_SECONDS - 2.0)


class StillWorld:
    """One slot, held by a run that is over, and a job that waits for it; nothing else happens."""

    def __init__(self, worker: Process, state: str) -> None:
        self.server = make_server(model=make_model())
        self.servers = {
            self.server.name: SimpleNamespace(anonymous=False, ignores_cancel=False, up=True, ran=[])
        }
        self.removed = set[str]()
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

    def fleet_of(self, server: str) -> str:
        return "main"

    def servers_of(self, fleet: str) -> list[str]:
        return [self.server.name]

    def circuits(self, pool: str, servers: list[str]) -> Circuits:
        return Circuits()

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
        promptness.check()
        world.scheduler.now += 1.0
    return [law.split(":")[0] for law in promptness.broken]


def a_worker(*, lives: bool) -> Process:
    return Process("w", died_at=None if lives else 900.0)


@pytest.mark.parametrize("state", ["leased", "settling"])
def test_a_living_worker_must_release_its_slot(state: str) -> None:
    world = StillWorld(a_worker(lives=True), state)
    assert laws_after(world, CLAIM_SECONDS) == []
    assert laws_after(world, CLAIM_SECONDS + 1.0) == ["unclaimed"]


@pytest.mark.parametrize("state", ["leased", "settling"])
def test_a_dead_workers_lease_must_expire_first(state: str) -> None:
    world = StillWorld(a_worker(lives=False), state)
    assert laws_after(world, JUDGED_SECONDS) == []


def test_a_dead_workers_slot_is_claimed_once_its_lease_expired() -> None:
    world = StillWorld(a_worker(lives=False), "leased")
    world.expires_in = 0.0
    assert laws_after(world, CLAIM_SECONDS) == []
    assert laws_after(world, CLAIM_SECONDS + 1.0) == ["unclaimed"]


def test_a_dead_workers_lease_must_not_be_extended_for_ever() -> None:
    """Whoever puts that off again and again."""
    world = StillWorld(a_worker(lives=False), "leased")
    assert laws_after(world, JUDGED_SECONDS + 1.0) == ["kept"]


def test_a_slot_with_an_active_run_is_not_idle() -> None:
    world = StillWorld(a_worker(lives=True), "leased")
    Attempt.objects.update(state=AttemptState.SENT.value)
    assert laws_after(world, JUDGED_SECONDS + 1.0) == []


def cancel_running_job(world: StillWorld, state: JobState) -> None:
    """If the job is CANCELLING, its attempt is over. The other job is out of the way."""
    Job.objects.filter(state=JobState.QUEUED.value).delete()
    Job.objects.update(cancel_requested_at=START)
    Attempt.objects.update(state=AttemptState.SENT.value)
    if state == JobState.CANCELLING:
        Job.objects.update(state=state.value, live_attempt=None)
        Attempt.objects.update(state=AttemptState.LOST.value)
        world.state = "quarantined"


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.CANCELLING])
def test_a_cancel_is_final_soon_if_the_server_can_prove_its_gpu_free(state: JobState) -> None:
    world = StillWorld(a_worker(lives=True), "leased")
    cancel_running_job(world, state)
    assert laws_after(world, CANCELLED_SECONDS) == []
    assert laws_after(world, CANCELLED_SECONDS + 1.0) == ["cancel"]


def test_a_quarantine_without_an_endpoint_to_probe_keeps_its_job_cancelling() -> None:
    world = StillWorld(a_worker(lives=False), "quarantined")
    cancel_running_job(world, JobState.CANCELLING)
    Placement.objects.all().delete()
    assert laws_after(world, 10.0 * CANCELLED_SECONDS) == []


def test_a_worker_still_cancels_its_run_after_the_placement_is_removed() -> None:
    """It sent the run to that endpoint, and remembers it."""
    world = StillWorld(a_worker(lives=True), "leased")
    cancel_running_job(world, JobState.RUNNING)
    Placement.objects.all().delete()
    assert laws_after(world, CANCELLED_SECONDS + 1.0) == ["cancel"]
