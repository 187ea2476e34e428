"""A harness with low circuit thresholds, and helpers that let servers and models fail."""

from __future__ import annotations

import pytest

from gpus.errors import Verdict
from gpus.leasing.scripts import Client
from gpus.leasing.values import CircuitRules
from gpus.protocol import CircuitState, Lease
from tests.gpus.leasing.lease_harness import POOL, LeaseHarness

WELL, SERVER, MODEL, EITHER = Verdict.WELL, Verdict.SERVER, Verdict.MODEL, Verdict.EITHER
RULES = CircuitRules(failures=3, rest_seconds=10.0, cap_seconds=35.0)


ANSWERED, NOTHING = Verdict.ANSWERED, Verdict.NOTHING


@pytest.fixture
def harness(client: Client, fleet: str) -> LeaseHarness:
    return LeaseHarness(client, fleet, circuit_rules=RULES).open()


def end(harness: LeaseHarness, lease: Lease, verdict: Verdict) -> None:
    harness.release(lease, gpu_seconds=1.0, verdict=verdict)
    harness.leases.confirm_ends([lease.ref])


def fail(harness: LeaseHarness, times: int, verdict: Verdict = EITHER) -> None:
    """The next tickets fail, one after the other."""
    for _ in range(times):
        end(harness, harness.must_claim(), verdict)


def server(harness: LeaseHarness, name: str = "s1") -> CircuitState:
    found = harness.leases.circuits(POOL, [name]).servers.get(name)
    return found.state if found else CircuitState.CLOSED


def model(harness: LeaseHarness, name: str = "flux") -> CircuitState:
    found = harness.leases.circuits(POOL, []).models.get(name)
    return found.state if found else CircuitState.CLOSED


def expire(harness: LeaseHarness) -> None:
    for _ in range(9):
        harness.wait(2)
        harness.leases.expired()


def jobs(first: str, count: int) -> list[str]:
    return [f"{first}{number:02d}" for number in range(count)]
