"""A machine is switched as one: all its servers or none, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from gpus.errors import LeasingUnavailable
from gpus.health.pinned_servers import register_pinned
from gpus.leasing.contract import Leases
from gpus.models import AuditEntry, Server
from gpus.protocol import DesiredState
from gpus.registry import controls
from gpus.registry.controls import switch_machine
from gpus.registry.model_fields import RegistryRefused
from gpus.registry.registry import register_server
from tests.support.factories import make_model, make_server
from tests.support.fake_leases import FakeLeases

pytestmark = pytest.mark.django_db
BY = "user:ada"


@pytest.fixture
def leases() -> FakeLeases:
    return FakeLeases()


@pytest.fixture
def of(leases: FakeLeases) -> Callable[[str], Leases]:
    """box: two GPUs and an HTTP server, in two fleets. Beside it another machine, and a server of none."""
    flux, far = make_model("flux"), make_model("far", fleet="east")
    make_server("box-gpu0", model=flux, machine="box", host="box-gpu0.1", healthy=True)
    make_server("box-gpu1", model=far, machine="box", host="box-gpu1.1", healthy=True)
    make_server("box-http", model=flux, machine="box", desired="off")
    make_server("box-2-gpu0", model=flux, machine="box-2")
    make_server("alone", model=flux, host="box")
    return lambda fleet: leases  # type: ignore[arg-type, return-value]


def wanted() -> dict[str, str]:
    return dict(Server.objects.values_list("name", "desired"))


def test_only_a_machines_servers_are_switched(leases: FakeLeases, of: Any) -> None:
    done = switch_machine("box", DesiredState.OFF, by=BY, leases=of)
    assert (done.servers, done.changed) == (("box-gpu0", "box-gpu1", "box-http"), ("box-gpu0", "box-gpu1"))
    assert wanted() == {
        "box-gpu0": "off",
        "box-gpu1": "off",
        "box-http": "off",
        "box-2-gpu0": "on",
        "alone": "on",
    }
    assert {name: spec.desired for name, spec in leases.servers.items()} == dict.fromkeys(done.servers, "off")
    assert done.mirrored
    assert {wake.pool for wake in done.wakes} == {"flux", "far"}


def test_switching_a_machine_is_audited_for_it_and_each_changed_server(of: Any) -> None:
    switch_machine("box", DesiredState.OFF, by=BY, leases=of)
    entries = list(AuditEntry.objects.order_by("id").values_list("actor", "action", "target", "detail"))
    each = {"before": "on", "after": "off", "machine": "box"}
    assert entries == [
        (BY, "switch_machine", "machine:box", {"after": "off", "servers": ["box-gpu0", "box-gpu1"]}),
        (BY, "switch_server", "server:box-gpu0", each),
        (BY, "switch_server", "server:box-gpu1", each),
    ]
    assert switch_machine("box", DesiredState.OFF, by=BY, leases=of).changed == ()
    assert AuditEntry.objects.count() == 3, "what is so already leaves none"


def test_a_machine_is_switched_completely_or_not_at_all(of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(actor: str, action: str, target: str, **detail: Any) -> None:
        if target == "server:box-gpu1":
            raise RuntimeError("the disk is full")

    monkeypatch.setattr(controls, "record", fails)
    with pytest.raises(RuntimeError):
        switch_machine("box", DesiredState.OFF, by=BY, leases=of)
    assert wanted()["box-gpu0"] == "on"


def test_a_machine_without_servers_is_refused(of: Any) -> None:
    with pytest.raises(RegistryRefused, match="machine 'nope'", check=lambda error: error.status == 404):
        switch_machine("nope", DesiredState.OFF, by=BY, leases=of)
    with pytest.raises(RegistryRefused):
        switch_machine("", DesiredState.OFF, by=BY, leases=of)
    assert not AuditEntry.objects.exists()


@pytest.mark.database
def test_a_machine_is_written_to_other_fleets_if_one_redis_is_down(leases: FakeLeases, of: Any) -> None:
    def leases_of(fleet: str) -> Any:
        if fleet == "east":
            raise LeasingUnavailable
        return leases

    done = switch_machine("box", DesiredState.DRAINING, by=BY, leases=leases_of)
    assert (done.mirrored, wanted()["box-gpu1"]) == (False, "draining")
    assert set(leases.servers) == {"box-gpu0", "box-http"}


@pytest.mark.database
def test_the_desired_state_survives_restarts_of_a_pinned_worker(of: Any) -> None:
    def start(process: str) -> Server:
        return register_pinned(
            server="new-gpu0", host=process, slots=1, models={"m": {}}, pool="m", by="worker:new-gpu0",
            leases=of, at=timezone.now(), machine="new",
        ).server  # fmt: skip

    assert (start("new-gpu0.1").machine, wanted()["new-gpu0"]) == ("new", "on")
    switch_machine("new", DesiredState.OFF, by=BY, leases=of)
    assert start("new-gpu0.2").desired == "off"
    switch_machine("new", DesiredState.ON, by=BY, leases=of)
    assert start("new-gpu0.3").desired == "on"


@pytest.mark.database
def test_a_registration_without_a_machine_keeps_it(of: Any) -> None:
    asked: dict[str, Any] = {"model": "flux", "server": "box-http", "slots": 1, "by": BY, "leases": of}
    url = "http://127.0.0.1:9/generate"
    assert register_server(**asked, endpoint=url).server.machine == "box"
    before = AuditEntry.objects.count()
    assert register_server(**asked, endpoint=url, machine="other").server.machine == "other"
    assert AuditEntry.objects.count() == before + 1
