"""Pinned servers: registration, heartbeats, and sign-off."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from gpus.health.pinned_servers import health_from_heartbeat, heartbeat_report, register_pinned, sign_off
from gpus.leasing.values import Heartbeat
from gpus.models import ModelConfig, Placement, Server
from gpus.protocol import DesiredState
from gpus.registry.index_sync import index_spec, read_paused
from gpus.registry.model_fields import RegistryRefused
from gpus.registry.registry import register_server
from tests.support.fake_leases import FakeLeases

pytestmark = pytest.mark.django_db


@pytest.fixture
def leases() -> FakeLeases:
    return FakeLeases()


def register(leases: FakeLeases, *models: str, host: str = "box-gpu0.1", **values):
    given = {
        "server": "box-gpu0",
        "slots": 1,
        "pool": "shared",
        "models": {name: {"max_run_seconds": 30.0} for name in models},
    }
    return register_pinned(
        **{**given, **values}, host=host, by="cli:t", leases=lambda fleet: leases, at=timezone.now()
    )


def test_a_worker_registers_its_server_with_all_its_models(leases):
    found = register(leases, "a", "b")
    assert (found.server.pool_id, found.server.host, found.server.boot_id) == (
        "shared",
        "box-gpu0.1",
        "box-gpu0.1",
    )
    assert found.server.healthy is True
    assert leases.servers["box-gpu0"].models == ("a", "b")
    assert leases.servers["box-gpu0"].host == "box-gpu0.1"
    assert ModelConfig.objects.get(name="a").max_run_seconds == 30.0


def test_a_second_registration_changes_the_process_and_keeps_operator_settings(leases):
    register(leases, "a", "b")
    ModelConfig.objects.filter(name="a").update(max_run_seconds=7.0)
    Server.objects.update(desired="off", healthy=False, last_error="gone")
    found = register(leases, "a", host="box-gpu0.2")
    assert (found.server.host, found.server.desired, found.server.healthy) == ("box-gpu0.2", "off", True)
    assert ModelConfig.objects.get(name="a").max_run_seconds == 7.0
    assert list(Placement.objects.values_list("model_id", flat=True)) == ["a"]


def test_known_models_stay_in_their_pool(leases):
    register(leases, "a")
    assert register(leases, "a", "b", server="box-gpu1", pool="other").server.pool_id == "shared"
    register(leases, "c", server="box-gpu2", pool="third")
    with pytest.raises(RegistryRefused, match="shared, third"):
        register(leases, "a", "c", server="box-gpu3")


def test_an_http_server_is_not_taken_over(leases):
    register_server(
        model="m", server="box", endpoint="http://box:1/run", slots=1, by="cli:t", leases=lambda fleet: leases
    )
    with pytest.raises(RegistryRefused, match="HTTP endpoints"):
        register(leases, "a", server="box")


def test_only_a_pinned_server_has_an_endpoint_without_http(leases):
    with pytest.raises(RegistryRefused, match="http://"):
        register_server(
            model="m",
            server="box",
            endpoint="local://box/m",
            slots=1,
            by="cli:t",
            leases=lambda fleet: leases,
        )


def test_a_server_without_its_worker_is_not_capacity(leases):
    register(leases, "a")
    sign_off("box-gpu0", "another", leases=lambda fleet: leases)
    assert leases.servers["box-gpu0"].desired is DesiredState.ON
    sign_off("box-gpu0", "box-gpu0.1", leases=lambda fleet: leases)
    assert leases.servers["box-gpu0"].desired is DesiredState.DRAINING
    assert leases.heard["box-gpu0"].report["why"], "its last beat must not say that it is there"
    row = Server.objects.get()
    assert (row.desired, row.healthy) == ("on", False)
    row.host = None
    assert index_spec(row, read_paused()).desired is DesiredState.ON, (
        "others may drive a server that does not answer"
    )


def test_a_workers_health_follows_its_heartbeat_and_its_age(leases):
    server = register(leases, "a").server
    now, later = timezone.now(), timezone.now() + timedelta(seconds=16)
    said = heartbeat_report("box-gpu0.1", [("job", "attempt")])
    well = health_from_heartbeat(Heartbeat(4.0, said), server, later)
    assert well is not None
    assert (well.ok, well.boot_id, well.age_seconds) == (True, "box-gpu0.1", 4.0)
    assert well.runs("attempt")
    gone = health_from_heartbeat(Heartbeat(15.1, said), server, later)
    assert gone is not None
    assert not gone.ok
    blind = health_from_heartbeat(
        Heartbeat(1.0, heartbeat_report("box-gpu0.1", [], why="Xid 79")), server, later
    )
    assert blind is not None
    assert (blind.ok, blind.error) == (False, "Xid 79")
    for other in (None, Heartbeat(1.0, heartbeat_report("older", []))):
        assert health_from_heartbeat(other, server, now) is None, "its own first beat is due"
        silent = health_from_heartbeat(other, server, later)
        assert silent is not None
        assert not silent.ok
