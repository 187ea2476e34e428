"""Pauses in a real lease layer: tickets keep their places, running jobs finish, and a resume restores all."""

from __future__ import annotations

from typing import Any

import pytest

from gpus.models import ModelConfig, Pause, Server
from gpus.protocol import PushOutcome
from gpus.registry import controls
from gpus.registry.index_sync import mirror, mirror_registry
from gpus.registry.registry import remove_server
from tests.gpus.leasing.lease_harness import MODEL, POOL, LeaseHarness, counts
from tests.support.factories import make_model, make_server
from tests.support.lease_client import client

__all__ = ["client"]
pytestmark = pytest.mark.django_db


@pytest.fixture
def harness(client: Any, fleet: str) -> LeaseHarness:
    """One server with two slots that runs two models."""
    harness = LeaseHarness(client, fleet).open()
    flux, zimg = (make_model(name, pool=POOL, fleet=fleet) for name in (MODEL, "zimg"))
    server = make_server("s1", model=flux, slots=2)
    server.placements.create(model=zimg, endpoint="http://127.0.0.1:9/zimg")
    mirror_registry(harness.leases, fleet=fleet)
    return harness


def pause(harness: LeaseHarness, kind: Pause.Kind, name: str = "") -> None:
    controls.pause(kind, name, by="user:ada", leases=lambda fleet: harness.leases)


def resume(harness: LeaseHarness, kind: Pause.Kind, name: str = "") -> Any:
    return controls.resume(kind, name, by="user:ada", leases=lambda fleet: harness.leases)


def test_a_paused_models_jobs_wait_while_others_run(harness: LeaseHarness) -> None:
    harness.push("f1")
    running = harness.must_claim()
    pause(harness, Pause.Kind.MODEL, MODEL)
    [pushed] = harness.push("f2", place=0)
    assert pushed.outcome is PushOutcome.QUEUED, "there is a free slot, but not for this model"
    harness.push("z1", model="zimg")
    assert harness.must_claim().job_id == "z1"
    assert harness.release(running, next_attempt_id="next") is None, (
        "the slot is not handed on to what is paused"
    )
    harness.leases.confirm_ends([running.ref])
    assert (harness.claim(), counts(harness.leases.fill())) == (None, {}), "no wake without work"
    assert harness.in_line("f2")


def test_a_resumed_model_gets_wakes_and_a_warm_slot(harness: LeaseHarness) -> None:
    harness.push("f1")
    harness.release(harness.must_claim(), "free")
    pause(harness, Pause.Kind.MODEL, MODEL)
    harness.push("f2", "f3")
    done = resume(harness, Pause.Kind.MODEL, MODEL)
    assert counts(done.wakes) == {(POOL, None): 2}
    assert harness.must_claim().slot == "s1/0", "the slot is warm for it"
    assert harness.client.scard(f"{harness.prefix}serving:{POOL}:{MODEL}") == 1


def test_a_server_whose_only_model_is_paused_gets_no_jobs_until_resumed(harness: LeaseHarness) -> None:
    Server.objects.get().placements.filter(model="zimg").delete()
    pause(harness, Pause.Kind.MODEL, MODEL)
    harness.push("f1")
    assert (harness.claim(), harness.states()) == (None, ["free", "free"])
    assert counts(resume(harness, Pause.Kind.MODEL, MODEL).wakes) == {(POOL, None): 1}
    assert harness.must_claim().job_id == "f1"


def test_a_paused_system_finishes_jobs_and_starts_none_until_resumed(harness: LeaseHarness) -> None:
    harness.push("f1", "f2", "f3")
    lease = harness.must_claim()
    pause(harness, Pause.Kind.SYSTEM)
    assert harness.claim() is None
    assert harness.release(lease, next_attempt_id="next") is None
    harness.leases.confirm_ends([lease.ref])
    assert harness.states() == ["off", "off"]
    assert counts(resume(harness, Pause.Kind.SYSTEM).wakes) == {(POOL, None): 2}
    assert [harness.must_claim().job_id, harness.must_claim().job_id] == ["f2", "f3"]


def test_a_run_is_adopted_while_its_model_and_the_system_are_paused(harness: LeaseHarness) -> None:
    harness.push("f1")
    lease = harness.must_claim()
    pause(harness, Pause.Kind.MODEL, MODEL)
    pause(harness, Pause.Kind.SYSTEM)
    harness.release(lease, "adopt")
    assert harness.must_claim(worker="w2").attempt_id == lease.attempt_id


def test_a_paused_tenant_waits_and_the_others_go_on(harness: LeaseHarness) -> None:
    pause(harness, Pause.Kind.TENANT, "t1")
    harness.push("j1", tenant="t1")
    harness.push("j2", tenant="t2")
    assert harness.must_claim().job_id == "j2"
    assert harness.claim() is None
    assert counts(resume(harness, Pause.Kind.TENANT, "t1").wakes) == {(POOL, None): 1}
    assert harness.must_claim().job_id == "j1"


@pytest.mark.parametrize(
    ("kind", "name"), [(Pause.Kind.SYSTEM, ""), (Pause.Kind.MODEL, MODEL), (Pause.Kind.TENANT, "t1")]
)
def test_a_pause_outlives_the_index(harness: LeaseHarness, fleet: str, kind: Pause.Kind, name: str) -> None:
    pause(harness, kind, name)
    harness.client.delete(*harness.client.keys(f"{harness.prefix}*"))
    assert harness.leases.begin_rebuild("again")
    assert harness.leases.wipe("again")
    mirror_registry(harness.leases, fleet=fleet)
    harness.push("f1")
    harness.leases.open_generation("again")
    assert harness.claim() is None
    resume(harness, kind, name)
    assert harness.must_claim().job_id == "f1"


def test_a_models_pause_is_written_to_its_fleet_only(harness: LeaseHarness, fleet: str) -> None:
    make_server("far", model=make_model("far", fleet="east"))
    leases_by_fleet = {fleet: harness.leases}
    done = controls.pause(Pause.Kind.MODEL, MODEL, by="user:ada", leases=lambda name: leases_by_fleet[name])
    assert done.mirrored


def test_a_server_removed_during_its_write_is_not_left_in_the_index(
    harness: LeaseHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure_server = harness.leases.configure_server

    def removed_first(spec: Any) -> Any:
        Server.objects.filter(name=spec.name).delete()
        harness.leases.forget_server(spec.name)
        return configure_server(spec)

    monkeypatch.setattr(harness.leases, "configure_server", removed_first)
    pause(harness, Pause.Kind.SYSTEM)
    assert harness.leases.slots("s1") == []


def register_first(harness: LeaseHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's next removal from the index comes late: it is registered again by then."""
    forget = harness.leases.forget_server

    def late(name: str) -> None:
        monkeypatch.setattr(harness.leases, "forget_server", forget)
        model = ModelConfig.objects.get(name=MODEL)
        mirror(lambda fleet: harness.leases, model.pool, make_server(name, model=model, slots=2))
        forget(name)

    monkeypatch.setattr(harness.leases, "forget_server", late)


@pytest.mark.database
def test_a_server_registered_during_its_removal_stays(
    harness: LeaseHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_first(harness, monkeypatch)
    assert remove_server("s1", by="user:ada", leases=lambda fleet: harness.leases)
    assert len(harness.leases.slots("s1")) == 2
    harness.push("f1")
    assert harness.must_claim().job_id == "f1"


@pytest.mark.database
def test_a_server_registered_while_a_removed_one_is_forgotten_stays(
    harness: LeaseHarness, fleet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure_server = harness.leases.configure_server

    def removed_first(spec: Any) -> Any:
        monkeypatch.setattr(harness.leases, "configure_server", configure_server)
        Server.objects.filter(name=spec.name).delete()
        return configure_server(spec)

    register_first(harness, monkeypatch)
    monkeypatch.setattr(harness.leases, "configure_server", removed_first)
    mirror_registry(harness.leases, fleet=fleet)
    assert len(harness.leases.slots("s1")) == 2


def test_a_paused_tenant_starts_nothing_in_a_new_pool(harness: LeaseHarness, fleet: str) -> None:
    pause(harness, Pause.Kind.TENANT, "7")
    later = make_model("later", pool="later", fleet=fleet)
    server = make_server("s2", model=later)
    mirror(lambda fleet: harness.leases, later.pool, server)
    harness.leases.push("later", [harness.ticket("j", model="later", tenant="7")])
    assert harness.leases.claim("later", worker="w", attempt_id="a1") is None
