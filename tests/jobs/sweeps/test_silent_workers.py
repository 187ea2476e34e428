"""The sweep `silent_workers`: a pinned server gets jobs only while its worker sends heartbeats."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from gpus.errors import LeasingUnavailable
from gpus.health.pinned_servers import heartbeat_report, register_pinned
from gpus.leasing.values import Heartbeat
from gpus.models import ModelConfig, QuarantinedSlot, Server
from gpus.protocol import DesiredState
from jobs.models import Attempt
from jobs.sweeps import silent_workers
from tests.support.factories import make_job, make_running
from tests.support.fake_leases import FakeLeases
from tests.support.fakes import START, make_ports

pytestmark = pytest.mark.django_db

HOST = "box.1"


@pytest.fixture
def leases() -> FakeLeases:
    leases = FakeLeases()
    register_pinned(
        server="box", host=HOST, slots=2, models={"a": {}}, pool="p", by="cli:t", leases=lambda fleet: leases,
        at=timezone.now() - timedelta(seconds=60),
    )  # fmt: skip
    return leases


def look(leases: FakeLeases) -> tuple[int, DesiredState]:
    count = silent_workers.sweep(make_ports(leases))
    return count.repaired, leases.servers["box"].desired


@pytest.mark.database
def test_a_server_without_heartbeats_gets_no_jobs_until_they_resume(leases):
    leases.heard["box"] = Heartbeat(1.0, heartbeat_report(HOST, []))
    assert look(leases) == (0, DesiredState.ON)
    leases.heard["box"] = Heartbeat(16.0, heartbeat_report(HOST, []))
    assert look(leases) == (1, DesiredState.DRAINING)
    assert look(leases) == (0, DesiredState.DRAINING)
    assert "gone" in Server.objects.get().last_error
    leases.heard["box"] = Heartbeat(0.1, heartbeat_report(HOST, []))
    assert look(leases) == (1, DesiredState.ON)


def test_an_unreadable_gpu_gets_no_jobs_and_names_the_reason(leases):
    leases.heard["box"] = Heartbeat(1.0, heartbeat_report(HOST, [], why="ECC errors"))
    assert look(leases) == (1, DesiredState.DRAINING)
    assert Server.objects.get().last_error == "ECC errors"


def test_without_redis_no_server_is_judged(leases):
    leases.away = True
    with pytest.raises(LeasingUnavailable):
        leases.heartbeats(["box"])
    assert silent_workers.sweep(make_ports(leases)).repaired == 0
    assert Server.objects.get().healthy is True


def week_of_silence(**changes: object) -> None:
    Server.objects.update(checked_at=START - timedelta(days=8), **changes)


@pytest.mark.database
def test_a_server_silent_for_a_week_is_removed_and_can_register_again(leases):
    leases.heard["box"] = Heartbeat(8 * 86_400.0, heartbeat_report(HOST, []))
    assert look(leases)[0] == 1
    assert Server.objects.count() == 1, "according to the row silent for only a minute"
    week_of_silence()
    assert silent_workers.sweep(make_ports(leases)).repaired == 1
    assert not Server.objects.exists()
    assert "box" not in leases.servers


@pytest.mark.database
def test_servers_with_operators_settings_or_live_runs_are_not_removed(leases):
    leases.heard["box"] = Heartbeat(8 * 86_400.0, heartbeat_report(HOST, []))
    week_of_silence(desired="off")
    silent_workers.sweep(make_ports(leases))
    week_of_silence(desired="on")
    Server.objects.get().placements.update(endpoint="http://box:1/a")
    silent_workers.sweep(make_ports(leases))
    Server.objects.get().placements.update(endpoint="local://box/a")
    slot = QuarantinedSlot.objects.create(
        server_id="box", slot=0, reason="t", since=timezone.now(), until=timezone.now()
    )
    silent_workers.sweep(make_ports(leases))
    slot.delete()
    attempt = Attempt.objects.filter(id=make_running(make_job(ModelConfig.objects.get()), slot="box/0"))
    silent_workers.sweep(make_ports(leases))
    assert Server.objects.count() == 1
    attempt.delete()
    silent_workers.sweep(make_ports(leases))
    assert not Server.objects.exists()


@pytest.mark.database
def test_a_server_whose_heartbeat_resumes_after_a_week_stays(leases):
    leases.heard["box"] = Heartbeat(1.0, heartbeat_report(HOST, []))
    week_of_silence()
    silent_workers.sweep(make_ports(leases))
    assert Server.objects.get().healthy
