"""How a circuit closes: by an answer, by a new registration, and without its resting entry."""

from __future__ import annotations

import pytest

from gpus.errors import Verdict
from gpus.protocol import CircuitKind, CircuitState
from tests.gpus.leasing.circuit_rig import (
    ANSWERED,
    MODEL,
    NOTHING,
    SERVER,
    fail,
    jobs,
    model,
    rig,
    server,
)
from tests.gpus.leasing.rig import POOL, Rig

__all__ = ["rig"]


def test_a_server_registered_again_starts_with_a_closed_circuit(rig: Rig) -> None:
    """Its circuit opened, it was removed while a run of its old life went on, and it comes back."""
    rig.server(slots=3)
    rig.push(*jobs("j", 9))
    rig.must_claim("old")
    fail(rig, 3, SERVER)
    assert server(rig) is CircuitState.OPEN
    rig.leases.forget_server("s1")
    rig.wait(10.1)
    rig.leases.fill()
    assert rig.claim() is None
    rig.server(slots=3)
    assert server(rig) is CircuitState.CLOSED
    assert [rig.claim() is not None for _ in range(3)] == [True, True, False]


def test_a_server_that_is_registered_again_does_not_rest_on(rig: Rig) -> None:
    rig.server(slots=2)
    rig.push(*jobs("j", 4))
    rig.must_claim("old")
    rig.leases.rest_server("s1", 60.0)
    rig.leases.forget_server("s1")
    rig.server(slots=2)
    assert rig.claim() is not None


def test_a_trial_slot_is_chosen_without_its_resting_entry(rig: Rig) -> None:
    """As an index looks in which an earlier release took the entry away."""
    rig.server(slots=2)
    rig.push(*jobs("j", 9))
    fail(rig, 3, SERVER)
    rig.client.zrem(f"{rig.prefix}resting", "s1")
    rig.wait(10.1)
    assert rig.claim() is None
    rig.server(slots=3)
    assert rig.claim() is not None


@pytest.mark.parametrize(("verdict", "state"), [
    (ANSWERED, CircuitState.CLOSED), (MODEL, CircuitState.CLOSED), (NOTHING, CircuitState.HALF_OPEN),
])  # fmt: skip
def test_a_server_that_is_tried_needs_no_success_but_an_answer(
    rig: Rig, verdict: Verdict, state: CircuitState
) -> None:
    rig.server(slots=2)
    rig.push(*jobs("j", 9))
    fail(rig, 3, SERVER)
    rig.wait(10.1)
    fail(rig, 1, verdict)
    assert server(rig) is state


def test_an_answer_of_a_blocked_model_closes_the_servers_circuit(rig: Rig) -> None:
    """The model's own try fails on it: the failure is the model's, and the server was there."""
    rig.server()
    rig.push(*jobs("j", 20))
    fail(rig, 3, MODEL)
    rig.wait(10.1)
    tried = rig.must_claim()
    rig.release(tried, "free", gpu_seconds=0.0)
    fail(rig, 1, SERVER)
    fail(rig, 1, SERVER)
    fail(rig, 1, SERVER)
    assert (server(rig), model(rig)) == (CircuitState.OPEN, CircuitState.HALF_OPEN)
    rig.wait(10.1)
    fail(rig, 1, MODEL)
    assert (server(rig), model(rig)) == (CircuitState.CLOSED, CircuitState.OPEN)


def test_an_answered_verdict_resets_no_other_circuit(rig: Rig) -> None:
    """Neither a model that is tried nor a server that just failed."""
    rig.server()
    rig.push(*jobs("j", 20))
    fail(rig, 2, SERVER)
    fail(rig, 1, ANSWERED)
    fail(rig, 1, SERVER)
    assert server(rig) is CircuitState.OPEN
    rig.leases.reset_circuit(CircuitKind.SERVER, "s1", POOL)
    fail(rig, 3, MODEL)
    rig.wait(10.1)
    fail(rig, 1, ANSWERED)
    assert model(rig) is CircuitState.HALF_OPEN
