"""Pauses in a real lease layer: tickets keep their places, running jobs finish, and a resume restores all."""

from __future__ import annotations

from typing import Any

import pytest

from gpus.models import ModelConfig, Pause, Server
from gpus.protocol import PushOutcome
from gpus.registry import controls
from gpus.registry.index_sync import mirror, mirror_registry
from gpus.registry.registry import remove_server
from tests.gpus.leasing.rig import MODEL, POOL, Rig, counts
from tests.support.factories import make_model, make_server
from tests.support.lease_client import client

__all__ = ["client"]
pytestmark = pytest.mark.django_db


@pytest.fixture
def rig(client: Any, fleet: str) -> Rig:
    """One server with two slots that runs two models."""
    rig = Rig(client, fleet).open()
    flux, zimg = (make_model(name, pool=POOL, fleet=fleet) for name in (MODEL, "zimg"))
    server = make_server("s1", model=flux, slots=2)
    server.placements.create(model=zimg, endpoint="http://127.0.0.1:9/zimg")
    mirror_registry(rig.leases, fleet=fleet)
    return rig


def pause(rig: Rig, kind: Pause.Kind, name: str = "") -> None:
    controls.pause(kind, name, by="user:ada", leases=lambda fleet: rig.leases)


def resume(rig: Rig, kind: Pause.Kind, name: str = "") -> Any:
    return controls.resume(kind, name, by="user:ada", leases=lambda fleet: rig.leases)


def test_a_paused_models_jobs_wait_while_others_run(rig: Rig) -> None:
    rig.push("f1")
    running = rig.must_claim()
    pause(rig, Pause.Kind.MODEL, MODEL)
    [pushed] = rig.push("f2", place=0)
    assert pushed.outcome is PushOutcome.QUEUED, "there is a free slot, but not for this model"
    rig.push("z1", model="zimg")
    assert rig.must_claim().job_id == "z1"
    assert rig.release(running, next_attempt_id="next") is None, "the slot is not handed on to what is paused"
    rig.leases.confirm_ends([running.ref])
    assert (rig.claim(), counts(rig.leases.fill())) == (None, {}), "no wake without work"
    assert rig.in_line("f2")


def test_a_resumed_model_gets_wakes_and_a_warm_slot(rig: Rig) -> None:
    rig.push("f1")
    rig.release(rig.must_claim(), "free")
    pause(rig, Pause.Kind.MODEL, MODEL)
    rig.push("f2", "f3")
    done = resume(rig, Pause.Kind.MODEL, MODEL)
    assert counts(done.wakes) == {(POOL, None): 2}
    assert rig.must_claim().slot == "s1/0", "the slot is warm for it"
    assert rig.client.scard(f"{rig.prefix}serving:{POOL}:{MODEL}") == 1


def test_a_server_whose_only_model_is_paused_gets_no_jobs_until_resumed(rig: Rig) -> None:
    Server.objects.get().placements.filter(model="zimg").delete()
    pause(rig, Pause.Kind.MODEL, MODEL)
    rig.push("f1")
    assert (rig.claim(), rig.states()) == (None, ["free", "free"])
    assert counts(resume(rig, Pause.Kind.MODEL, MODEL).wakes) == {(POOL, None): 1}
    assert rig.must_claim().job_id == "f1"


def test_a_paused_system_finishes_jobs_and_starts_none_until_resumed(rig: Rig) -> None:
    rig.push("f1", "f2", "f3")
    lease = rig.must_claim()
    pause(rig, Pause.Kind.SYSTEM)
    assert rig.claim() is None
    assert rig.release(lease, next_attempt_id="next") is None
    rig.leases.confirm_ends([lease.ref])
    assert rig.states() == ["off", "off"]
    assert counts(resume(rig, Pause.Kind.SYSTEM).wakes) == {(POOL, None): 2}
    assert [rig.must_claim().job_id, rig.must_claim().job_id] == ["f2", "f3"]


def test_a_run_is_adopted_while_its_model_and_the_system_are_paused(rig: Rig) -> None:
    rig.push("f1")
    lease = rig.must_claim()
    pause(rig, Pause.Kind.MODEL, MODEL)
    pause(rig, Pause.Kind.SYSTEM)
    rig.release(lease, "adopt")
    assert rig.must_claim(worker="w2").attempt_id == lease.attempt_id


def test_a_paused_tenant_waits_and_the_others_go_on(rig: Rig) -> None:
    pause(rig, Pause.Kind.TENANT, "t1")
    rig.push("j1", tenant="t1")
    rig.push("j2", tenant="t2")
    assert rig.must_claim().job_id == "j2"
    assert rig.claim() is None
    assert counts(resume(rig, Pause.Kind.TENANT, "t1").wakes) == {(POOL, None): 1}
    assert rig.must_claim().job_id == "j1"


@pytest.mark.parametrize(
    ("kind", "name"), [(Pause.Kind.SYSTEM, ""), (Pause.Kind.MODEL, MODEL), (Pause.Kind.TENANT, "t1")]
)
def test_a_pause_outlives_the_index(rig: Rig, fleet: str, kind: Pause.Kind, name: str) -> None:
    pause(rig, kind, name)
    rig.client.delete(*rig.client.keys(f"{rig.prefix}*"))
    assert rig.leases.begin_rebuild("again")
    assert rig.leases.wipe("again")
    mirror_registry(rig.leases, fleet=fleet)
    rig.push("f1")
    rig.leases.open_generation("again")
    assert rig.claim() is None
    resume(rig, kind, name)
    assert rig.must_claim().job_id == "f1"


def test_a_models_pause_is_written_to_its_fleet_only(rig: Rig, fleet: str) -> None:
    make_server("far", model=make_model("far", fleet="east"))
    leases_by_fleet = {fleet: rig.leases}
    done = controls.pause(Pause.Kind.MODEL, MODEL, by="user:ada", leases=lambda name: leases_by_fleet[name])
    assert done.mirrored


def test_a_server_removed_during_its_write_is_not_left_in_the_index(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure_server = rig.leases.configure_server

    def removed_first(spec: Any) -> Any:
        Server.objects.filter(name=spec.name).delete()
        rig.leases.forget_server(spec.name)
        return configure_server(spec)

    monkeypatch.setattr(rig.leases, "configure_server", removed_first)
    pause(rig, Pause.Kind.SYSTEM)
    assert rig.leases.slots("s1") == []


def register_first(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's next removal from the index comes late: it is registered again by then."""
    forget = rig.leases.forget_server

    def late(name: str) -> None:
        monkeypatch.setattr(rig.leases, "forget_server", forget)
        model = ModelConfig.objects.get(name=MODEL)
        mirror(lambda fleet: rig.leases, model.pool, make_server(name, model=model, slots=2))
        forget(name)

    monkeypatch.setattr(rig.leases, "forget_server", late)


@pytest.mark.database
def test_a_server_registered_during_its_removal_stays(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    register_first(rig, monkeypatch)
    assert remove_server("s1", by="user:ada", leases=lambda fleet: rig.leases)
    assert len(rig.leases.slots("s1")) == 2
    rig.push("f1")
    assert rig.must_claim().job_id == "f1"


@pytest.mark.database
def test_a_server_registered_while_a_removed_one_is_forgotten_stays(
    rig: Rig, fleet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure_server = rig.leases.configure_server

    def removed_first(spec: Any) -> Any:
        monkeypatch.setattr(rig.leases, "configure_server", configure_server)
        Server.objects.filter(name=spec.name).delete()
        return configure_server(spec)

    register_first(rig, monkeypatch)
    monkeypatch.setattr(rig.leases, "configure_server", removed_first)
    mirror_registry(rig.leases, fleet=fleet)
    assert len(rig.leases.slots("s1")) == 2


def test_a_paused_tenant_starts_nothing_in_a_new_pool(rig: Rig, fleet: str) -> None:
    pause(rig, Pause.Kind.TENANT, "7")
    later = make_model("later", pool="later", fleet=fleet)
    server = make_server("s2", model=later)
    mirror(lambda fleet: rig.leases, later.pool, server)
    rig.leases.push("later", [rig.ticket("j", model="later", tenant="7")])
    assert rig.leases.claim("later", worker="w", attempt_id="a1") is None
