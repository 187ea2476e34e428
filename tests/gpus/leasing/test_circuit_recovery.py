"""How a circuit closes: by an answer, by a new registration, and without its resting entry."""

from __future__ import annotations

import pytest

from gpus.errors import Verdict
from gpus.protocol import CircuitKind, CircuitState
from tests.gpus.leasing.circuit_harness import (
    ANSWERED,
    MODEL,
    NOTHING,
    SERVER,
    fail,
    harness,
    jobs,
    model,
    server,
)
from tests.gpus.leasing.lease_harness import POOL, LeaseHarness

__all__ = ["harness"]


def test_a_server_registered_again_starts_with_a_closed_circuit(harness: LeaseHarness) -> None:
    """Its circuit opened, it was removed while a run of its old life went on, and it comes back."""
    harness.server(slots=3)
    harness.push(*jobs("j", 9))
    harness.must_claim("old")
    fail(harness, 3, SERVER)
    assert server(harness) is CircuitState.OPEN
    harness.leases.forget_server("s1")
    harness.wait(10.1)
    harness.leases.fill()
    assert harness.claim() is None
    harness.server(slots=3)
    assert server(harness) is CircuitState.CLOSED
    assert [harness.claim() is not None for _ in range(3)] == [True, True, False]


def test_a_server_that_is_registered_again_does_not_rest_on(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push(*jobs("j", 4))
    harness.must_claim("old")
    harness.leases.rest_server("s1", 60.0)
    harness.leases.forget_server("s1")
    harness.server(slots=2)
    assert harness.claim() is not None


def test_a_trial_slot_is_chosen_without_its_resting_entry(harness: LeaseHarness) -> None:
    """As an index looks in which an earlier release took the entry away."""
    harness.server(slots=2)
    harness.push(*jobs("j", 9))
    fail(harness, 3, SERVER)
    harness.client.zrem(f"{harness.prefix}resting", "s1")
    harness.wait(10.1)
    assert harness.claim() is None
    harness.server(slots=3)
    assert harness.claim() is not None


@pytest.mark.parametrize(("verdict", "state"), [
    (ANSWERED, CircuitState.CLOSED), (MODEL, CircuitState.CLOSED), (NOTHING, CircuitState.HALF_OPEN),
])  # fmt: skip
def test_a_server_that_is_tried_needs_no_success_but_an_answer(
    harness: LeaseHarness, verdict: Verdict, state: CircuitState
) -> None:
    harness.server(slots=2)
    harness.push(*jobs("j", 9))
    fail(harness, 3, SERVER)
    harness.wait(10.1)
    fail(harness, 1, verdict)
    assert server(harness) is state


def test_an_answer_of_a_blocked_model_closes_the_servers_circuit(harness: LeaseHarness) -> None:
    """The model's own try fails on it: the failure is the model's, and the server was there."""
    harness.server()
    harness.push(*jobs("j", 20))
    fail(harness, 3, MODEL)
    harness.wait(10.1)
    tried = harness.must_claim()
    harness.release(tried, "free", gpu_seconds=0.0)
    fail(harness, 1, SERVER)
    fail(harness, 1, SERVER)
    fail(harness, 1, SERVER)
    assert (server(harness), model(harness)) == (CircuitState.OPEN, CircuitState.HALF_OPEN)
    harness.wait(10.1)
    fail(harness, 1, MODEL)
    assert (server(harness), model(harness)) == (CircuitState.CLOSED, CircuitState.OPEN)


def test_an_answered_verdict_resets_no_other_circuit(harness: LeaseHarness) -> None:
    """Neither a model that is tried nor a server that just failed."""
    harness.server()
    harness.push(*jobs("j", 20))
    fail(harness, 2, SERVER)
    fail(harness, 1, ANSWERED)
    fail(harness, 1, SERVER)
    assert server(harness) is CircuitState.OPEN
    harness.leases.reset_circuit(CircuitKind.SERVER, "s1", POOL)
    fail(harness, 3, MODEL)
    harness.wait(10.1)
    fail(harness, 1, ANSWERED)
    assert model(harness) is CircuitState.HALF_OPEN
