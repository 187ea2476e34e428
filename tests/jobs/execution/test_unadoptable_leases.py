"""A run that no worker can adopt blocks no other, and its job can be cancelled."""

from __future__ import annotations

import pytest
from django.db import DatabaseError, transaction

from foundation.ids import new_id
from gpus.models import ModelConfig, Placement, QuarantinedSlot, Server
from gpus.protocol import ReleaseMode, ServerSpec
from gpus.registry.queries import rows_changed
from jobs import transitions
from jobs.domain.states import AttemptState, JobState
from jobs.execution import claiming
from jobs.models import Attempt, Job
from jobs.operations.jobs import CancelOutcome, cancel_job
from jobs.sweeps import cancelling
from jobs.transitions import Start, StartOutcome
from tests.jobs.execution.by_hand import Hands, by_hand
from tests.support.factories import make_server
from tests.support.worker_harness import state

pytestmark = pytest.mark.django_db(transaction=True)

HELD = "gpu-0"
"""The server of the run that no worker can adopt; the other jobs run on `gpu-1`."""


def server_removed() -> None:
    Server.objects.get(name=HELD).delete()


def placement_removed() -> None:
    Placement.objects.filter(server=HELD).delete()


def secret_unreadable() -> None:
    Server.objects.filter(name=HELD).update(headers_encrypted="written under another key")


CAUSES = [server_removed, placement_removed, secret_unreadable]


@pytest.fixture
def hands(harness) -> Hands:
    """Two servers of one model, the second one with a run that its worker handed over."""
    hands = by_hand(harness)
    row = make_server(HELD, model=ModelConfig.objects.get(), slots=1)
    harness.leases.configure_server(ServerSpec("gpu-1", "m", 0, ("m",)))  # the job must come to the other one
    harness.leases.configure_server(row.spec())
    job, attempt_id = hands.submit(), new_id()
    lease = harness.leases.claim("m", worker="gone", attempt_id=attempt_id)
    with transaction.atomic():
        start = Start(job.id, attempt_id, lease.slot, "m", "gone", hands.clock.now())
        assert transitions.start_attempt(start) is StartOutcome.STARTED
        assert transitions.note_remote_id(job.id, attempt_id, 1, "r1", hands.clock.now())
    harness.leases.release(lease.ref, ReleaseMode.ADOPT, worker="gone")
    harness.leases.configure_server(Server.objects.get(name="gpu-1").spec())
    return hands


def adopted_job() -> Job:
    return Job.objects.order_by("id")[0]


def held_slot(hands: Hands) -> list[str]:
    return [view.state for view in hands.leases.real.slots(HELD)]


@pytest.mark.parametrize("cause", CAUSES)
def test_jobs_behind_an_unadoptable_run_start_at_once(hands, cause):
    cause()
    rows_changed.send(None)
    jobs = [hands.submit() for _ in range(4)]
    began = hands.clock.monotonic()
    for _ in jobs:
        hands.worker.work("m")
    assert {state(job) for job in jobs} == {JobState.COMPLETED}
    assert hands.worker.gate.may_claim(), "its other pools must not wait"
    assert hands.clock.monotonic() - began <= 4 * hands.gpu.seconds + 0.1


@pytest.mark.parametrize("cause", [server_removed, placement_removed])
def test_a_run_whose_server_or_placement_is_gone_ends_at_once(hands, cause):
    cause()
    rows_changed.send(None)
    hands.worker.work("m")
    attempt = Attempt.objects.order_by("number")[0]
    assert attempt.state == AttemptState.LOST
    assert "any more" in attempt.error_message
    assert (adopted_job().tries, adopted_job().deaths, adopted_job().state) == (1, 0, JobState.RETRYING)
    is_registered = Server.objects.filter(name=HELD).exists()
    assert QuarantinedSlot.objects.filter(server=HELD, freed_at=None).exists() == is_registered
    assert held_slot(hands) == (["quarantined"] if is_registered else ["free"])


def test_a_model_that_is_not_registered_any_more_ends_its_run(hands):
    ModelConfig.objects.all().delete()
    rows_changed.send(None)
    hands.worker.work("m")
    assert Attempt.objects.get().state == AttemptState.LOST


def test_a_run_is_adopted_once_its_servers_secret_is_readable_again(hands):
    secret_unreadable()
    rows_changed.send(None)
    hands.worker.work("m")
    assert (held_slot(hands), hands.gpu.polled) == (["adoptable"], [])
    Server.objects.filter(name=HELD).update(headers_encrypted="")
    rows_changed.send(None)
    lease = None
    while lease is None:  # its first rest is two seconds long
        lease = hands.worker.claims.claim_next("main", "m", None)
    assert (lease.lease.job_id, lease.so_far.remote_id) == (adopted_job().id, "r1")


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("first", ["claimed", "cancelled"])
def test_the_job_of_an_unadoptable_run_can_be_cancelled(hands, cause, first):
    cause()
    rows_changed.send(None)
    job = adopted_job()
    if first == "claimed":
        hands.worker.work("m")
    outcome = cancel_job(job.id, ports=hands.worker.ports)
    hands.clock.move(cancelling.PERIOD_SECONDS + 0.1)
    cancelling.sweep(hands.worker.ports)
    hands.worker.work("m")
    job.refresh_from_db()
    assert job.state == JobState.CANCELLED
    if outcome is CancelOutcome.REQUESTED:
        assert "no worker can reach its run" in Attempt.objects.get().evidence
        assert held_slot(hands) != ["adoptable"]


def test_a_job_whose_run_is_only_handed_over_is_left_to_its_next_worker(hands):
    cancel_job(adopted_job().id, ports=hands.worker.ports)
    hands.clock.move(60)
    assert cancelling.sweep(hands.worker.ports).repaired == 0
    assert held_slot(hands) == ["adoptable"]


def test_a_ticket_on_a_server_whose_secret_is_unreadable_runs_on_another_one(hands):
    """And rests that server alone."""
    hands.leases.real.quarantine(f"{HELD}/0", adopted_job().live_attempt)
    hands.leases.real.free_slot(f"{HELD}/0")
    secret_unreadable()
    rows_changed.send(None)
    jobs = [hands.submit() for _ in range(3)]
    for _ in jobs:
        hands.worker.work("m")
    assert {state(job) for job in jobs} == {JobState.COMPLETED}
    assert hands.worker.gate.may_claim()


def test_without_the_database_a_process_pauses_its_claims(hands, monkeypatch):
    def refuse(*_):
        raise DatabaseError("gone")

    monkeypatch.setattr(claiming.transitions, "take_over", refuse)
    hands.worker.work("m")
    assert not hands.worker.gate.may_claim()
    assert held_slot(hands) == ["adoptable"]
