"""A rig with low circuit thresholds, and helpers that let servers and models fail."""

from __future__ import annotations

import pytest

from gpus.errors import Verdict
from gpus.leasing.scripts import Client
from gpus.leasing.values import CircuitRules
from gpus.protocol import CircuitState, Lease
from tests.gpus.leasing.rig import POOL, Rig

WELL, SERVER, MODEL, EITHER = Verdict.WELL, Verdict.SERVER, Verdict.MODEL, Verdict.EITHER
RULES = CircuitRules(failures=3, rest_seconds=10.0, cap_seconds=35.0)


ANSWERED, NOTHING = Verdict.ANSWERED, Verdict.NOTHING


@pytest.fixture
def rig(client: Client, fleet: str) -> Rig:
    return Rig(client, fleet, circuit_rules=RULES).open()


def end(rig: Rig, lease: Lease, verdict: Verdict) -> None:
    rig.release(lease, gpu_seconds=1.0, verdict=verdict)
    rig.leases.confirm_ends([lease.ref])


def fail(rig: Rig, times: int, verdict: Verdict = EITHER) -> None:
    """The next tickets fail, one after the other."""
    for _ in range(times):
        end(rig, rig.must_claim(), verdict)


def server(rig: Rig, name: str = "s1") -> CircuitState:
    found = rig.leases.circuits(POOL, [name]).servers.get(name)
    return found.state if found else CircuitState.CLOSED


def model(rig: Rig, name: str = "flux") -> CircuitState:
    found = rig.leases.circuits(POOL, []).models.get(name)
    return found.state if found else CircuitState.CLOSED


def expire(rig: Rig) -> None:
    for _ in range(9):
        rig.wait(2)
        rig.leases.expired()


def jobs(first: str, count: int) -> list[str]:
    return [f"{first}{number:02d}" for number in range(count)]
