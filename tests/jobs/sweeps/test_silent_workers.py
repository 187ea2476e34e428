"""A pinned server is capacity only while its worker is heard."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from gpus.errors import LeasingUnavailable
from gpus.leasing.values import Beat
from gpus.models import Server
from gpus.protocol import DesiredState
from gpus.services.pinned import beat_of, register_pinned
from jobs.sweeps import silent_workers
from tests.builders import make_ports
from tests.jobs.fake_leases import FakeLeases

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


def test_a_silent_worker_is_no_capacity_until_it_is_heard_again(leases):
    leases.heard["box"] = Beat(1.0, beat_of(HOST, []))
    assert look(leases) == (0, DesiredState.ON)
    leases.heard["box"] = Beat(16.0, beat_of(HOST, []))
    assert look(leases) == (1, DesiredState.DRAINING)
    assert look(leases) == (0, DesiredState.DRAINING)
    assert "gone" in Server.objects.get().last_error
    leases.heard["box"] = Beat(0.1, beat_of(HOST, []))
    assert look(leases) == (1, DesiredState.ON)


def test_a_blind_gpu_takes_nothing_and_says_why(leases):
    leases.heard["box"] = Beat(1.0, beat_of(HOST, [], why="ECC errors"))
    assert look(leases) == (1, DesiredState.DRAINING)
    assert Server.objects.get().last_error == "ECC errors"


def test_without_redis_nobody_is_judged(leases):
    leases.away = True
    with pytest.raises(LeasingUnavailable):
        leases.beats(["box"])
    assert silent_workers.sweep(make_ports(leases)).repaired == 0
    assert Server.objects.get().healthy is True
